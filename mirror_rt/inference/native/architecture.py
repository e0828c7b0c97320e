"""Recognise an encoder of the BERT family in its fused graph, and find its weights there.

The exporter writes every such encoder as the same chain of fused operators:

    EmbedLayerNormalization (MatMul Add)?
    (Attention MatMul SkipLayerNormalization MatMul BiasGelu|FastGelu MatMul
     SkipLayerNormalization)*

so the chain says both what to compute and which weights to take. Whatever deviates from it, in an
input, an attribute or what follows, is refused, and onnxruntime can still run it. ModernBERT's is
in mirror_rt/inference/native/modern.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from mirror_rt.inference.native.onnx_graph import (
    Floats,
    Graph,
    Node,
    Pair,
    expect,
    floats,
    made,
    pair,
)

HIDDEN, _POOLED = "last_hidden_state", "pooled_embedding"
Arguments = dict[str, Any]
# What makes the value that enters the first layer; Add is that of a projection.
_BEFORE = ("EmbedLayerNormalization", "Add")
# The distance in tokens from which on MPNet has one bucket, as in transformers.
_MPNET_DISTANCE = 128


@dataclass(frozen=True, slots=True)
class Layer:
    """A layer of an encoder.

    Attributes:
        name: of some of its weights; layers of the same name share their weights.
        common: arguments of `NativeEncoder` that are the same for all layers.
        weights: arguments of `add_layer`, matrices [inputs, outputs] and norms with their biases.
        relative: name of the bias of the scores, [buckets, heads], by distance; "" for none.
        window: how far a token attends; 0 for everywhere.
        frequencies: name of those by which positions rotate, float32 [d / 2]; "" for none.
    """

    name: str
    common: Arguments
    weights: dict[str, Pair]
    relative: str = ""
    window: int = 0
    frequencies: str = ""


def read_bert(graph: Graph) -> tuple[Arguments, list[Layer]]:
    """Return the embeddings, as `NativeEncoder` takes them, and the layers, of the BERT family."""
    layers: list[Layer] = []
    name = HIDDEN
    while made(graph, name, "SkipLayerNormalization", *_BEFORE).op_type not in _BEFORE:
        layer, name = _read_layer(graph, name)
        layers.append(layer)
        expect(graph, len(layers) <= len(graph.nodes), "a circle of layers")
    return _read_embeddings(graph, name), layers[::-1]


def _read_layer(graph: Graph, name: str) -> tuple[Layer, str]:
    """Return the layer that makes `name`, and the name of what enters it."""
    last = made(graph, name, "SkipLayerNormalization")
    out = made(graph, last.input(0), "MatMul")
    activation = made(graph, out.input(0), "BiasGelu", "FastGelu")
    inner = made(graph, activation.input(0), "MatMul")
    norm = made(graph, inner.input(0), "SkipLayerNormalization")
    project = made(graph, norm.input(0), "MatMul")
    attention = made(graph, project.input(0), "Attention")
    residuals = (last.input(1), norm.input(1))
    expect(graph, residuals == (inner.input(0), attention.input(0)), "residuals")
    plain = attention.attributes.keys() <= {"num_heads", "scale"}
    plain = plain and not (attention.input(4) or attention.input(6))
    expect(graph, plain, f"attention ({sorted(attention.attributes)})")
    weights = {
        "query_key_value": pair(graph, attention.input(1), attention.input(2)),
        "attention_out": pair(graph, project.input(1), norm.input(4)),
        "attention_norm": pair(graph, norm.input(2), norm.input(3)),
        "inner": pair(graph, inner.input(1), activation.input(1)),
        "out": pair(graph, out.input(1), last.input(4)),
        "out_norm": pair(graph, last.input(2), last.input(3)),
    }
    kind = "gelu" if activation.op_type == "BiasGelu" else "gelu_tanh"
    width = weights["inner"][0].shape[-1]
    common = common_of(graph, attention, weights, activation=kind, inner=width)
    relative = _relative(graph, attention.input(5), common["heads"])
    label = " ".join((attention.input(1), out.input(1), last.input(2)))
    return Layer(label, common, weights, relative), attention.input(0)


def _read_embeddings(graph: Graph, name: str) -> Arguments:
    """Return the embeddings that make `name`."""
    node, projection = made(graph, name, *_BEFORE), None
    if node.op_type == "Add":
        bias, dense = sorted(node.inputs, key=graph.holds, reverse=True)
        product = made(graph, dense, "MatMul")
        projection = pair(graph, product.input(1), bias)
        node = made(graph, product.input(0), "EmbedLayerNormalization")
    words, positions = (floats(graph, node.input(i)) for i in (2, 3))
    expect(graph, not node.input(7), "embeddings with a mask")
    if node.input(4):
        positions = positions + floats(graph, node.input(4))[:1]
    skipped_id, first = _positions(graph, node.input(8))
    return {
        "words": words,
        "positions": np.ascontiguousarray(positions[first:]),
        "norm": pair(graph, node.input(5), node.input(6)),
        "epsilon": node.attributes.get("epsilon", 1e-12),
        "projection": projection,
        "skipped_id": skipped_id,
        "skipped": None if skipped_id < 0 else positions[first - 1].copy(),
    }


def common_of(
    graph: Graph, attention: Node, weights: dict[str, Pair], *, activation: str, inner: int
) -> Arguments:
    """Return the arguments that a layer with this attention has in common with all others."""
    heads, hidden = attention.attributes.get("num_heads", 0), len(weights["attention_out"][0])
    expect(graph, heads > 0 and hidden % heads == 0, f"attention ({heads} heads)")
    scale = attention.attributes.get("scale", (hidden // max(heads, 1)) ** -0.5)
    return {"heads": heads, "inner": inner, "scale": scale, "activation": activation}


def find_pooling(graph: Graph) -> str:
    """Return how the graph pools token vectors: `mean` or `cls`."""
    node = made(graph, _POOLED, "Gather", "Div")
    if node.op_type == "Gather":
        index = graph.weight(node.input(1)).tolist()
        expect(graph, (node.input(0), index) == (HIDDEN, 0), "pooling")
        return "cls"
    product = made(graph, made(graph, node.input(0), "ReduceSum").input(0), "Mul")
    mask = made(graph, made(graph, product.input(1), "Cast").input(0), "Unsqueeze")
    factors = (product.input(0), mask.input(0))
    expect(graph, factors == (HIDDEN, "attention_mask"), "pooling")
    return "mean"


def distances(relative: Floats, positions: int) -> Floats:
    """Return MPNet's bias by distance, float32 [heads, 2 positions - 1], from that by bucket."""
    buckets = len(relative) // 2
    exact = buckets // 2
    key = np.arange(-positions + 1, positions)  # its place, seen from the query
    distance = np.abs(key)
    far = np.maximum(distance, 1).astype(np.float32) / np.float32(exact)
    steps = np.log(far) / np.float32(np.log(_MPNET_DISTANCE / exact)) * np.float32(buckets - exact)
    coarse = np.minimum(exact + steps.astype(np.int64), buckets - 1)
    bucket = np.where(distance < exact, distance, coarse) + np.where(key > 0, buckets, 0)
    return np.ascontiguousarray(relative[bucket].T)


def _positions(graph: Graph, name: str) -> tuple[int, int]:
    """Return the token id without a position, or -1, and the position of a text's first token."""
    node = made(graph, name, "Slice", "Add", behind=("Cast",))
    if node.op_type == "Slice":
        expect(graph, graph.holds(node.input(0)), "a numbering of positions")
        numbers, start = (graph.weight(node.input(i)).ravel() for i in (0, 1))
        plain = np.array_equal(numbers, np.arange(len(numbers))) and not start.any()
        expect(graph, plain, "a numbering of positions")
        return -1, 0
    others = {other.op_type: other for other in graph.nodes}
    known = graph.holds(node.input(1)) and {"Equal", "CumSum"} <= others.keys()
    expect(graph, known and others["Equal"].input(0) == "input_ids", "a numbering of positions")
    padding, skipped = (int(graph.weight(x.input(1))) for x in (node, others["Equal"]))
    expect(graph, padding == skipped >= 0, "a numbering of positions")
    return padding, padding + 1


def _relative(graph: Graph, name: str, heads: int) -> str:
    """Return the name of the bias that is added to scores of attention, by bucket of distance."""
    if not name:
        return ""
    table = made(graph, name, "Gather", behind=("Expand", "Unsqueeze", "Transpose")).input(0)
    shape = floats(graph, table).shape
    expect(graph, len(shape) == 2 and shape[1] == heads and shape[0] >= 4, "a bias of attention")
    return table
