"""Derive the graphs of all other variants from the traced float32 graph."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any, NamedTuple

import onnx
import onnx_ir as ir

from mirror_export.graph.fusion import fused_counts
from mirror_export.graph.graph_edit import read_graph, share_weights
from mirror_export.graph.half import single_layers, to_half
from mirror_export.graph.int8 import quantize
from mirror_export.graph.onnx_file import source, write_onnx
from mirror_export.graph.padding_free import can_pack, check_packed, pack
from mirror_export.graph.probe import Probe
from mirror_export.graph.sensitivity import sensitive_layers
from mirror_export.graph.torch_export import GraphReport
from mirror_export.parity import GATES
from mirror_rt import Manifest
from mirror_rt.bundle.manifest import Layout, Precision, Target, Variant
from mirror_rt.encoding.batch_encoder import Vectors

__all__ = [
    "KINDS",
    "Kind",
    "derive",
    "find_sensitive_layers",
    "graph_bytes",
    "remove_graph",
    "write_int8",
]

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
    "bf16-native": Kind("bf16", "native", Layout.model),
    "int8-native": Kind("int8", "native", Layout.model),
}
# How many texts, the longest, are run to measure the range of the layers for float16.
_MEASURED = 8
# Batch size in the search for layers that int8 harms.
_ROWS = 4


def derive(
    folder: Path, manifest: Manifest, texts: list[str], traced: GraphReport, wanted: list[str]
) -> dict[str, Variant]:
    """Write the graphs of the variants `wanted`, deriving them from the float32 graph.

    Graphs of variants that were not asked for may be left in the folder.

    Args:
        folder: folder of the bundle; it holds the float32 graph and the tokenizer.
        manifest: description of the bundle.
        texts: texts to measure layers on.
        traced: report on the float32 graph.
        wanted: names of variants, keys of `KINDS`.

    Returns:
        The variants, by name, not yet compared with PyTorch.
    """
    variants = {}
    packs = can_pack(read_graph(folder / Layout.model))
    if not packs and any(name.endswith("-cuda") for name in wanted):
        logger.warning(
            "this architecture has no padding-free form: its cuda variants are the graphs that "
            "every execution provider runs"
        )
    graphs = {"fp32": traced.to_dict()}
    keep: list[str] = []
    if any(KINDS[name].precision == "fp16" for name in wanted):
        keep = _single_layers(folder, manifest, texts)
        graphs["fp16"] = _write_half(folder, keep)
    if "int8" in wanted:
        graphs["int8"] = write_int8(folder, [])
    for name in wanted:
        precision, target, file = KINDS[name]
        graph, weights = graphs["fp32" if target == "native" else precision], None
        if target == "cuda" and packs:
            weights = KINDS[precision].file if precision in wanted else None
            graph = _write_packed(folder, name, keep, weights)
        elif target == "cuda":
            file = KINDS[precision].file
        variants[name] = Variant(file, precision, target, graph, weights=weights)
    return variants


def _single_layers(folder: Path, manifest: Manifest, texts: list[str]) -> list[str]:
    longest = sorted(texts, key=len)[-_MEASURED:]
    probe = Probe(folder, manifest, longest, rows=1)
    return single_layers(read_graph(folder / Layout.model), probe)


def _write_half(folder: Path, keep: list[str]) -> dict[str, Any]:
    """Write the float16 graph, with the layers `keep` in float32; return its description."""
    model = read_graph(folder / Layout.model)
    to_half(model, keep)
    write_onnx(model, folder / KINDS["fp16"].file)
    return _describe(model) | {"float32_layers": keep}


def write_int8(folder: Path, keep: list[str]) -> dict[str, Any]:
    """Write the int8 graph, with the layers `keep` in float32; return its description."""
    model = read_graph(folder / Layout.model)
    quantize(model, keep)
    write_onnx(model, folder / KINDS["int8"].file)
    return _describe(model) | {"float32_layers": keep}


def find_sensitive_layers(
    folder: Path, manifest: Manifest, texts: list[str], expected: Vectors
) -> list[str]:
    """Return the layers that must be float32 for the int8 graph in `folder` to pass its gate."""
    model = read_graph(folder / Layout.model)
    layers = quantize(model, switches=True)
    share_weights(model, folder / KINDS["int8"].file)
    probe = Probe(folder, manifest, texts, rows=_ROWS)
    return sensitive_layers(model, layers, probe, expected, GATES["int8"])


def _write_packed(folder: Path, name: str, keep: list[str], weights: str | None) -> dict[str, Any]:
    """Write the padding-free graph of variant `name`; return its description.

    Args:
        folder: folder of the bundle; it holds the float32 graph.
        name: `fp32-cuda` or `fp16-cuda`.
        keep: names of the layers that stay float32 in `fp16-cuda`.
        weights: path of another graph of the bundle, of the same precision, from which the
            weights are read; None to store the weights once more.

    Raises:
        ModelError: the graph could not be made padding-free.
    """
    precision = KINDS[name].precision
    model = read_graph(folder / Layout.model)
    layers = sum(node.op_type == "Attention" for node in model.graph)
    pack(model)
    if precision == "fp16":
        to_half(model, keep)
    path = folder / KINDS[name].file
    if weights:
        share_weights(model, folder / weights)
        ir.save(model, path)
    else:
        write_onnx(model, path)
    check_packed(model, layers)
    onnx.checker.check_model(path)
    return _describe(model) | ({"float32_layers": keep} if precision == "fp16" else {})


def _describe(model: ir.Model) -> dict[str, Any]:
    """Return the number of nodes, the fused operators and the opset, for the manifest."""
    opset = model.graph.opset_imports[""]
    return GraphReport(len(model.graph), fused_counts(model), opset).to_dict()


def graph_bytes(folder: Path, file: str) -> int:
    """Return the size of a graph in bytes, including a separate file of weights if it has one."""
    paths = (folder / file, folder / f"{file}_data")
    return sum(path.stat().st_size for path in paths if path.is_file())


def remove_graph(folder: Path, file: str) -> None:
    """Remove a graph and the files that belong to it."""
    for name in (file, Layout.mapped(file), source(Path(file)), f"{file}_data"):
        (folder / name).unlink(missing_ok=True)
