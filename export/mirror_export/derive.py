"""Derive the graphs of all other variants from the traced float32 graph."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any, NamedTuple

import onnx
import onnx_ir as ir

from mirror_export.graph.fusion import describe_graph
from mirror_export.graph.graph_edit import read_graph, share_weights, source
from mirror_export.graph.half import single_layers, to_half
from mirror_export.graph.int8 import quantize, sensitive_layers
from mirror_export.graph.onnx_file import write_sharing
from mirror_export.graph.padding_free import (
    ATTENTIONS,
    can_pack,
    check_packed,
    pack,
    use_key_lengths,
)
from mirror_export.graph.probe import Probe
from mirror_export.parity import GATES
from mirror_rt import Manifest
from mirror_rt.bundle.manifest import Layout, Precision, Target, Variant
from mirror_rt.encoding.batch_encoder import Vectors
from mirror_rt.tokens.windows import size_of

logger = logging.getLogger("mirror_export")


class Kind(NamedTuple):
    """The precision, target and file that the name of a variant stands for."""

    precision: Precision
    target: Target
    file: str


# The file names of the CPU variants are those that sentence-transformers, optimum and
# transformers.js look for.
KINDS = {
    "fp32": Kind("fp32", "cpu", Layout.model),
    "fp16": Kind("fp16", "cpu", "onnx/model_fp16.onnx"),
    "int8": Kind("int8", "cpu", "onnx/model_int8.onnx"),
    "fp32-cuda": Kind("fp32", "cuda", "onnx/model_packed.onnx"),
    "fp16-cuda": Kind("fp16", "cuda", "onnx/model_fp16_packed.onnx"),
    "bf16-cuda": Kind("bf16", "cuda", "onnx/model_bf16.onnx"),
    "bf16-native": Kind("bf16", "native", Layout.model),
    "int8-native": Kind("int8", "native", Layout.model),
}
# How the precisions of 16 bits are called in a graph.
_HALVES = {"fp16": ir.DataType.FLOAT16, "bf16": ir.DataType.BFLOAT16}
# How many texts, the longest, are run to measure the range of the layers for float16.
_MEASURED = 8
# Batch size in the search for layers that int8 harms.
_ROWS = 4


def derive(
    folder: Path, manifest: Manifest, texts: list[Any], traced: dict[str, Any], wanted: list[str]
) -> dict[str, Variant]:
    """Write the graphs of the variants `wanted`, names in `KINDS`, and describe the variants.

    `folder` holds the float32 graph, described by `traced`, and the tokenizer; layers are measured
    on `texts`.
    """
    # Without padding there is none to pool.
    packs = manifest.pad_to is None and can_pack(read_graph(folder / Layout.model))
    if not packs and any(name.endswith("-cuda") for name in wanted):
        logger.warning(
            "this model has no padding-free form: its cuda variants are the graphs that "
            "every execution provider runs"
        )
    halves = {KINDS[name].precision for name in wanted if KINDS[name].target != "native"}
    keep: dict[str, list[str]] = {
        name: _single_layers(folder, manifest, texts, _HALVES[name])
        for name in sorted(halves & _HALVES.keys())
    }
    variants, graphs = {}, {"fp32": traced}
    for name in wanted:
        precision, target, file = KINDS[name]
        if target == "native":  # the engine takes its weights from the float32 graph
            variants[name] = Variant(file, precision, target, traced)
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


def _single_layers(
    folder: Path, manifest: Manifest, texts: list[Any], kind: ir.DataType
) -> list[str]:
    longest = sorted(texts, key=size_of)[-_MEASURED:]
    probe = Probe(folder, manifest, longest, rows=1)
    return single_layers(read_graph(folder / Layout.model), probe, kind)


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


def find_sensitive_layers(
    folder: Path, manifest: Manifest, texts: list[Any], expected: Vectors
) -> list[str]:
    """Return the layers that must be float32 for the int8 graph in `folder` to pass its gate."""
    model = read_graph(folder / Layout.model)
    layers = quantize(model, switches=True)
    share_weights(model, folder / KINDS["int8"].file)
    probe = Probe(folder, manifest, texts, rows=_ROWS)
    return sensitive_layers(model, layers, probe, expected, GATES["int8"])


def graph_bytes(folder: Path, file: str) -> int:
    """Return the size of a graph in bytes, including a separate file of weights if it has one."""
    paths = (folder / file, folder / f"{file}_data")
    return sum(path.stat().st_size for path in paths if path.is_file())


def remove_graph(folder: Path, file: str) -> None:
    """Remove a graph and the files that belong to it."""
    for name in (file, Layout.mapped(file), source(Path(file)), f"{file}_data"):
        (folder / name).unlink(missing_ok=True)
