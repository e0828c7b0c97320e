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
    bias_alignment,
)
from mirror_rt.inference.native.onnx_graph import Graph, Node

# ONNX's numbers of the types that an attention computes in.
_PRECISIONS: dict[int, Literal["fp32", "fp16", "bf16"]] = {1: "fp32", 10: "fp16", 16: "bf16"}
# The numbers of the inputs that hold the three biases, which ModernBERT does not have, the mask of
# a padded attention, and what is added to the scores.
_BIAS = {
    "Attention": 2, "MultiHeadAttention": 3, "PackedAttention": 2, "PackedMultiHeadAttention": 3
}  # fmt: skip
_MASK = {"Attention": 3, "MultiHeadAttention": 4}
_POSITION_BIAS = {
    "Attention": 5, "MultiHeadAttention": 5, "PackedAttention": 5, "PackedMultiHeadAttention": 6
}  # fmt: skip
_VALUES = 2  # the number of the input that holds the values, where they are apart


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
        kind, width = _type_and_width(graph, node)
        heads = node.attributes.get("num_heads")
        if kind not in _PRECISIONS or not width or not isinstance(heads, int) or heads < 1:
            continue
        yield Attention(
            operator=cast(Operator, node.op_type),
            precision=_PRECISIONS[kind],
            head_size=width // heads,
            mask=_mask(graph, node),
            position_bias=bool(node.input(_POSITION_BIAS[node.op_type])),
        )


def _type_and_width(graph: Graph, node: Node) -> tuple[int, int]:
    """Return the number of the type that an attention computes in, and how wide its values are.

    The three biases tell both; without them the product that the values come from does, and what
    it is converted to. (0, 0) where that has another form.
    """
    kind, shape = graph.type_and_shape(node.input(_BIAS[node.op_type]))
    if shape:
        return kind, shape[-1] // 3
    kind, parts, name = 0, 1, node.input(_VALUES)
    for _ in graph.nodes:  # there may be a circle
        values = graph.producers.get(name)
        if values is None or values.op_type not in ("Cast", "Split", "Add"):
            break
        if values.op_type == "Cast":
            kind = kind or int(values.attributes.get("to", 0))
        elif values.op_type == "Split":
            parts *= len(values.outputs)
        name = values.input(0)
    if values is None or values.op_type != "MatMul":
        return 0, 0
    weight, shape = graph.type_and_shape(values.input(1))
    return kind or weight, shape[-1] // parts if shape else 0


def _mask(graph: Graph, node: Node) -> Literal["lengths", "tokens"] | None:
    if node.op_type not in _MASK:
        return None
    producer = graph.producers.get(node.input(_MASK[node.op_type]))
    return "lengths" if producer is not None and producer.op_type == "ReduceSum" else "tokens"


def _counts(variant: Variant) -> bool:
    """Return whether a graph counts tokens on the card, and so cannot be captured."""
    return "RemovePadding" in variant.graph.get("fused", {})


def _kernels(
    nodes: list[Attention], capability: tuple[int, int], longest: int, sdpa_kernel: int
) -> str:
    """Return the kernels of all layers for texts of up to 128 tokens, and for longer ones.

    With something added to the scores, they are also told of other numbers of tokens than
    multiples of what CUTLASS's kernel wants.
    """

    def kernels(length: int) -> str:
        found = Counter(
            attention_kernel(
                node,
                capability=capability,
                length=length,
                sdpa_kernel=sdpa_kernel,
                environment=os.environ,
            )
            for node in nodes
        )
        return ", ".join(f"{kernel} x {n}" for kernel, n in found.items())

    step = max((bias_alignment(node) for node in nodes if node.position_bias), default=1)
    lengths = [max(1, n // step) * step for n in (min(128, longest), longest)]
    texts = {f"of {n} tokens": n for n in lengths}
    if step > 1:
        texts[f"of no multiple of {step} tokens"] = lengths[-1] - 1
    found: dict[str, list[str]] = {}
    for described, length in texts.items():
        found.setdefault(kernels(length), []).append(described)
    if len(found) == 1:
        return next(iter(found))
    return "; ".join(f"{said} {' and '.join(described)}" for said, described in found.items())
