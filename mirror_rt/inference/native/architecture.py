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

import numpy as np

from mirror_rt.inference.native.engine_model import (
    Arguments,
    Embeddings,
    Floats,
    Layer,
    Names,
    expect,
)
from mirror_rt.inference.native.onnx_graph import Graph, Node, made

HIDDEN, _POOLED = "last_hidden_state", "pooled_embedding"
# What makes the value that enters the first layer; Add is that of a projection.
_BEFORE = ("EmbedLayerNormalization", "Add")
# Matrices behind the pooling: an aligned bundle has one, and one more for each time it is aligned.
_MOST_MAPS = 8
# The distance in tokens from which on MPNet has one bucket, as in transformers.
_MPNET_DISTANCE = 128


def read_bert(graph: Graph) -> tuple[Embeddings, list[Layer]]:
    """Return the embeddings and the layers of the BERT family."""
    layers: list[Layer] = []
    name, seen = HIDDEN, {HIDDEN}
    while made(graph, name, "SkipLayerNormalization", *_BEFORE).op_type not in _BEFORE:
        layer, name = _read_layer(graph, name)
        layers.append(layer)
        expect(graph, name not in seen, "a circle of layers")
        seen.add(name)
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
        "query_key_value": (attention.input(1), attention.input(2)),
        "attention_out": (project.input(1), norm.input(4)),
        "attention_norm": (norm.input(2), norm.input(3)),
        "inner": (inner.input(1), activation.input(1)),
        "out": (out.input(1), last.input(4)),
        "out_norm": (last.input(2), last.input(3)),
    }
    kind = "gelu" if activation.op_type == "BiasGelu" else "gelu_tanh"
    common = common_of(graph, attention, weights, activation=kind)
    return Layer(common, weights, _relative(graph, attention.input(5))), attention.input(0)


def _read_embeddings(graph: Graph, name: str) -> Embeddings:
    """Return the embeddings that make `name`."""
    node, projection = made(graph, name, *_BEFORE), ("", "")
    if node.op_type == "Add":
        bias, dense = sorted(node.inputs, key=graph.holds, reverse=True)
        product = made(graph, dense, "MatMul")
        projection = (product.input(1), bias)
        node = made(graph, product.input(0), "EmbedLayerNormalization")
    expect(graph, not node.input(7), "embeddings with a mask")
    skipped_id, first = _positions(graph, node.input(8))
    given = {name for other in graph.nodes for name in other.inputs}
    return Embeddings(
        words=node.input(2),
        norm=(node.input(5), node.input(6)),
        epsilon=node.attributes.get("epsilon", 1e-12),
        positions=node.input(3),
        types=node.input(4),
        typed=node.input(4) != "" and "token_type_ids" in given,
        first=first,
        skipped_id=skipped_id,
        projection=projection,
    )


def common_of(
    graph: Graph, attention: Node, weights: dict[str, Names], *, activation: str
) -> Arguments:
    """Return the arguments that a layer with this attention has in common with all others."""
    heads = attention.attributes.get("num_heads", 0)
    hidden, inner = (graph.shape(weights[name][0])[0] for name in ("attention_out", "out"))
    expect(graph, heads > 0 and hidden % heads == 0, f"attention ({heads} heads)")
    scale = attention.attributes.get("scale", (hidden // heads) ** -0.5)
    return {"heads": heads, "inner": inner, "scale": scale, "activation": activation}


def find_pooling(graph: Graph) -> tuple[str, list[str]]:
    """Return how the graph pools token vectors, and the matrices behind it, the last one first."""
    name, maps = _POOLED, list[str]()
    while len(maps) < _MOST_MAPS and graph.producers[name].op_type == "MatMul":
        name, weight = graph.producers[name].inputs
        maps.append(weight)
    return _find_pooling(graph, name), maps


def _find_pooling(graph: Graph, name: str) -> str:
    node = made(graph, name, "Gather", "Div", "ReduceMax")
    if node.op_type == "Gather":
        index = graph.weight(node.input(1)).tolist()
        expect(graph, (node.input(0), index) == (HIDDEN, 0), "pooling")
        return "cls"
    if node.op_type == "ReduceMax":
        chosen = made(graph, node.input(0), "Where")
        padded = made(graph, chosen.input(0), "Equal")
        axes, lowest, zero = (
            graph.weight(each).ravel().tolist()
            for each in (node.input(1), chosen.input(1), padded.input(1))
        )
        of = (chosen.input(2), made(graph, padded.input(0), "Unsqueeze").input(0))
        found = (of, axes, lowest, zero, node.attributes.get("keepdims"))
        wanted = ((HIDDEN, "attention_mask"), [1], [-np.inf], [0], 0)
        expect(graph, found == wanted, "pooling")
        return "max"
    product = made(graph, made(graph, node.input(0), "ReduceSum").input(0), "Mul")
    # A sum may also be divided by the root of the number of tokens, which is no mean.
    count = made(graph, node.input(1), "ReduceSum")
    expect(graph, count.input(0) == product.input(1), "pooling")
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


def _relative(graph: Graph, name: str) -> str:
    """Return the name of the bias that is added to scores of attention, by bucket of distance."""
    if not name:
        return ""
    return made(graph, name, "Gather", behind=("Expand", "Unsqueeze", "Transpose")).input(0)
