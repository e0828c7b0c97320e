"""Derive the graphs of all other variants from the traced float32 graph."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import onnx
import onnx_ir as ir

from mirror_export.config import KINDS
from mirror_export.graph.fusion import describe_graph
from mirror_export.graph.graph_edit import read_graph, share_weights, source
from mirror_export.graph.half import single_layers, to_half
from mirror_export.graph.int8 import quantize, sensitive_layers
from mirror_export.graph.onnx_file import remove_sources, write_sharing
from mirror_export.graph.padding_free import (
    ATTENTIONS,
    can_pack,
    check_packed,
    pack,
    use_key_lengths,
)
from mirror_export.graph.probe import Probe
from mirror_export.load import wanted_variants
from mirror_export.parity import GATES
from mirror_export.trace import Traced
from mirror_rt.bundle.manifest import Layout, Variant
from mirror_rt.tokens.windows import size_of

logger = logging.getLogger("mirror_export")


# How the precisions of 16 bits are called in a graph.
_HALVES = {"fp16": ir.DataType.FLOAT16, "bf16": ir.DataType.BFLOAT16}
# How many texts, the longest, are run to measure the range of the layers for float16.
_MEASURED = 8
# Batch size in the search for layers that int8 harms.
_ROWS = 4


def derive(traced: Traced) -> dict[str, Variant]:
    """Write the graphs of all variants that are wanted, and describe these: name -> variant.

    Layers are measured on the texts to compare on. Graphs that serve for this alone remain, until
    `remove_others`.
    """
    folder, manifest, wanted = traced.folder, traced.manifest, wanted_variants(traced.config)
    # Without padding there is none to pool.
    packs = manifest.pad_to is None and can_pack(read_graph(folder / Layout.model))
    if not packs and any(name.endswith("-cuda") for name in wanted):
        logger.warning(
            "this model has no padding-free form: its cuda variants are the graphs that "
            "every execution provider runs"
        )
    halves = {KINDS[name].precision for name in wanted if KINDS[name].target != "native"}
    keep: dict[str, list[str]] = {
        name: _single_layers(traced, _HALVES[name]) for name in sorted(halves & _HALVES.keys())
    }
    variants, graphs = {}, {"fp32": traced.graph}
    for name in wanted:
        precision, target, file = KINDS[name]
        if target == "native":  # the engine takes its weights from the float32 graph
            variants[name] = Variant(file, precision, target, traced.graph)
            continue
        written = name if packs or precision not in KINDS else precision
        weights = KINDS[precision].file if written != precision and precision in wanted else None
        if written not in graphs:
            graphs[written] = write_graph(
                folder, written, keep.get(precision, []), weights, packs=packs
            )
        file = KINDS[written].file
        variants[name] = Variant(file, precision, target, graphs[written], weights=weights)
    return variants


def _single_layers(traced: Traced, kind: ir.DataType) -> list[str]:
    longest = sorted(traced.reference.texts, key=size_of)[-_MEASURED:]
    probe = Probe(traced.folder, traced.manifest, longest, rows=1)
    return single_layers(read_graph(traced.folder / Layout.model), probe, kind)


def write_graph(
    folder: Path, name: str, keep: list[str], weights: str | None = None, *, packs: bool = True
) -> dict[str, Any]:
    """Write the graph of variant `name`, from the float32 graph; return its description.

    The layers `keep` stay in float32. `weights` is another graph of the bundle, of the same
    precision, from which the weights are read; None stores them once more. With `packs`, a graph
    for cards has no padding.
    """
    precision, target, file = KINDS[name]
    path = folder / file
    model = read_graph(folder / Layout.model)
    layers = sum(node.op_type in ATTENTIONS for node in model.graph)
    packed = target == "cuda" and packs
    if precision in _HALVES:
        to_half(model, keep, _HALVES[precision])
    elif precision == "int8":
        quantize(model, keep)
    if packed:
        pack(model)
    elif precision == "fp16":
        use_key_lengths(model)
    write_sharing(model, path, folder / weights if weights else None)
    if packed:
        check_packed(model, layers)
        onnx.checker.check_model(path)
    return describe_graph(model) | ({} if precision == "fp32" else {"float32_layers": keep})


def find_sensitive_layers(traced: Traced) -> list[str]:
    """Return the layers that must be float32 for the int8 graph to pass its gate."""
    model = read_graph(traced.folder / Layout.model)
    layers = quantize(model, switches=True)
    share_weights(model, traced.folder / KINDS["int8"].file)
    probe = Probe(traced.folder, traced.manifest, traced.reference.texts, rows=_ROWS)
    return sensitive_layers(model, layers, probe, traced.reference.vectors, GATES["int8"])


def remove_others(folder: Path, variants: Iterable[Variant]) -> None:
    """Remove all graphs but those of the variants, with the files that belong to them."""
    for file in {kind.file for kind in KINDS.values()} - {variant.file for variant in variants}:
        for name in (file, Layout.mapped(file), source(Path(file)), f"{file}_data"):
            (folder / name).unlink(missing_ok=True)
    remove_sources((folder / Layout.model).parent)
