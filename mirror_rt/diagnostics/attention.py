"""Say which attention kernel each graph of a bundle takes on an NVIDIA card."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, cast, get_args

from mirror_rt.bundle.manifest import Manifest, Variant
from mirror_rt.inference.attention_kernels import (
    ANY_SHAPE_KERNELS,
    Attention,
    Operator,
    attention_kernel,
)
from mirror_rt.inference.native.onnx_graph import Graph, Node

# ONNX's numbers of the types that an attention computes in.
_PRECISIONS: dict[int, Literal["fp32", "fp16", "bf16"]] = {1: "fp32", 10: "fp16", 16: "bf16"}
# The number of the input that holds the three biases, which every attention but ModernBERT's has.
_BIAS = {"Attention": 2, "PackedAttention": 2, "PackedMultiHeadAttention": 3}
_POSITION_BIAS = {"Attention": 5, "PackedAttention": 5, "PackedMultiHeadAttention": 6}


def describe_attention(
    folder: Path, manifest: Manifest, capability: tuple[int, int], options: Mapping[str, Any]
) -> Iterator[tuple[str, bool]]:
    """Yield a line for each graph that may run on a card, and whether its form is an earlier one.

    Args:
        folder: folder of the bundle.
        manifest: its manifest.
        capability: compute capability of the card.
        options: the caller's options for the CUDA provider.

    Raises:
        BundleError: a graph is not a whole ONNX file.
    """
    for name, variant in manifest.variants.items():
        path = folder / variant.file
        if variant.target == "native" or variant.precision == "int8" or not path.is_file():
            continue
        nodes = list(read_attention(path))
        if not nodes:
            yield f"{name}: no fused attention", False
            continue
        outdated = any(node.operator == "PackedAttention" for node in nodes)
        asked = int(options.get("sdpa_kernel", ANY_SHAPE_KERNELS))
        kernels = _kernels(nodes, capability, manifest.max_length, asked)
        line = f"{name}: {kernels}"
        if not outdated and not _counts(variant):
            asked = int(options.get("sdpa_kernel", 0))
            captured = _kernels(nodes, capability, 128, asked)
            line += f"; captured as a CUDA graph: {captured}" if captured != kernels else ""
        yield line, outdated


def read_attention(path: Path) -> Iterator[Attention]:
    """Yield the attention operators of an ONNX file that `attention_kernel` knows."""
    graph = Graph(path)
    for node in graph.nodes:
        if node.op_type not in get_args(Operator):
            continue
        bias = node.input(_BIAS[node.op_type]) or _projection(graph, node)
        kind, shape = graph.type_and_shape(bias)
        heads = node.attributes.get("num_heads")
        if kind not in _PRECISIONS or not shape or not isinstance(heads, int) or heads < 1:
            continue
        yield Attention(
            operator=cast(Operator, node.op_type),
            precision=_PRECISIONS[kind],
            head_size=shape[-1] // 3 // heads,
            mask=_mask(graph, node) if node.op_type == "Attention" else None,
            position_bias=bool(node.input(_POSITION_BIAS[node.op_type])),
        )


def _projection(graph: Graph, node: Node) -> str:
    """Return the name of the weight of values, keys and queries that an attention takes apart."""
    split = graph.producers.get(node.input(2))
    product = graph.producers.get(split.input(0)) if split and split.op_type == "Split" else None
    return product.input(1) if product and product.op_type == "MatMul" else ""


def _mask(graph: Graph, node: Node) -> Literal["lengths", "tokens"]:
    producer = graph.producers.get(node.input(3))
    return "lengths" if producer is not None and producer.op_type == "ReduceSum" else "tokens"


def _counts(variant: Variant) -> bool:
    """Return whether a graph counts tokens on the card, and so cannot be captured."""
    return "RemovePadding" in variant.graph.get("fused", {})


def _kernels(
    nodes: list[Attention], capability: tuple[int, int], longest: int, sdpa_kernel: int
) -> str:
    """Return the kernels of all layers for texts of up to 128 tokens, and for longer ones."""
    found = {
        length: Counter(
            attention_kernel(
                node,
                capability=capability,
                length=length,
                sdpa_kernel=sdpa_kernel,
                environment=os.environ,
            )
            for node in nodes
        )
        for length in dict.fromkeys((min(128, longest), longest))
    }
    said = [", ".join(f"{kernel} x {n}" for kernel, n in one.items()) for one in found.values()]
    if len(set(said)) == 1:
        return said[0]
    return "; ".join(f"{said} of {length} tokens" for said, length in zip(said, found, strict=True))
