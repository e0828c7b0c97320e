"""Recognise an encoder of the BERT family in its fused graph, and find its weights there.

The exporter writes every such encoder as the same chain of fused operators:

    EmbedLayerNormalization (MatMul Add)?
    (Attention MatMul SkipLayerNormalization MatMul BiasGelu|FastGelu MatMul
     SkipLayerNormalization)*

so the chain says both what to compute and which weights to take. Whatever deviates from it, in an
input, an attribute or what follows, is refused, and onnxruntime can still run it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from mirror_rt.errors import BundleError
from mirror_rt.inference.native.onnx_graph import Graph, Node

Floats = npt.NDArray[np.float32]
Pair = tuple[Floats, Floats]

_HIDDEN, _POOLED = "last_hidden_state", "pooled_embedding"
# The distance in tokens from which on MPNet has one bucket, as in transformers.
_MPNET_DISTANCE = 128


class UnsupportedGraphError(BundleError):
    """The graph is not one that the native engine can run."""


@dataclass(frozen=True, slots=True)
class Embeddings:
    """The embeddings of an encoder.

    Attributes:
        words: float32 [vocabulary, E], mapped.
        positions: float32 [n, E], with the vector of token type 0 added.
        norm: weight and bias of the layer normalisation, each float32 [E].
        epsilon: of every layer normalisation.
        projection: weight [E, H] and bias [H] of the layer that widens them; None for none.
        skipped_id: token id that takes no position of its own, which RoBERTa has; -1 for none.
        skipped: vector of its position, float32 [E]; None for none.
    """

    words: Floats
    positions: Floats
    norm: Pair
    epsilon: float
    projection: Pair | None
    skipped_id: int
    skipped: Floats | None


@dataclass(frozen=True, slots=True)
class Layer:
    """A layer; matrices are [inputs, outputs], each with its bias.

    Attributes:
        name: of some of its weights; layers of the same name share their weights.
        heads: number of heads.
        scale: factor of the scores of attention.
        relative: bias of the scores, [buckets, heads], by distance; None for none.
        activation: `gelu` or `gelu_tanh`.
        weights: arguments of `NativeEncoder.add_layer`.
    """

    name: str
    heads: int
    scale: float
    relative: Floats | None
    activation: str
    weights: dict[str, Pair]


def find_embeddings(graph: Graph) -> tuple[Embeddings, str]:
    """Return the embeddings, and the name of the value that enters the first layer."""
    nodes = [node for node in graph.nodes if node.op_type == "EmbedLayerNormalization"]
    if len(nodes) != 1:
        raise UnsupportedGraphError(f"{graph.path} has no fused embeddings")
    node = nodes[0]
    words, positions = (_floats(graph, node.input(i)) for i in (2, 3))
    if node.input(7):
        raise UnsupportedGraphError(f"{graph.path}: its embeddings take a mask")
    if node.input(4):
        positions = positions + _floats(graph, node.input(4))[:1]
    skipped_id, first = _positions(graph, node.input(8))
    name, projection = node.outputs[0], None
    if followers := _followers(graph, name, "MatMul"):
        add = _only(graph, followers[0].outputs[0])
        if add.op_type != "Add":
            raise UnsupportedGraphError(f"{graph.path}: {add.op_type} follows the embeddings")
        projection = _pair(graph, followers[0].input(1), _other(add, followers[0].outputs[0]))
        name = add.outputs[0]
    return (
        Embeddings(
            words,
            np.ascontiguousarray(positions[first:]),
            _pair(graph, node.input(5), node.input(6)),
            _number(node, "epsilon", 1e-12),
            projection,
            skipped_id,
            None if skipped_id < 0 else positions[first - 1].copy(),
        ),
        name,
    )


def find_layers(graph: Graph, name: str) -> Iterator[Layer]:
    """Yield the layers from the value `name` to the token vectors."""
    seen = {""}
    while name != _HIDDEN:
        if name in seen:
            raise UnsupportedGraphError(f"{graph.path}: its layers form a circle")
        seen.add(name)
        attention = _one(_followers(graph, name, "Attention"), graph, name)
        unknown = set(attention.attributes) - {"num_heads", "scale"}
        if unknown or attention.input(4) or attention.input(6):
            raise UnsupportedGraphError(
                f"{graph.path}: its attention has {sorted(unknown) or 'more inputs'}"
            )
        project = _step(graph, attention.outputs[0], "MatMul")
        norm = _step(graph, project.outputs[0], "SkipLayerNormalization", skip=name)
        inner = _step(graph, norm.outputs[0], "MatMul", among=2)
        activation = _step(graph, inner.outputs[0], "BiasGelu", "FastGelu")
        out = _step(graph, activation.outputs[0], "MatMul")
        last = _step(graph, out.outputs[0], "SkipLayerNormalization", skip=norm.outputs[0])
        qkv = _pair(graph, attention.input(1), attention.input(2))
        heads = int(_number(attention, "num_heads", 0))
        if heads < 1 or qkv[0].ndim != 2 or qkv[0].shape[0] % heads:
            raise UnsupportedGraphError(f"{graph.path}: {heads} heads of attention")
        scale = _number(attention, "scale", (qkv[0].shape[0] // heads) ** -0.5)
        yield Layer(
            " ".join((attention.input(1), out.input(1), last.input(2))),
            heads,
            scale,
            _relative(graph, attention.input(5), heads),
            "gelu" if activation.op_type == "BiasGelu" else "gelu_tanh",
            {
                "query_key_value": qkv,
                "attention_out": _pair(graph, project.input(1), norm.input(4)),
                "attention_norm": _pair(graph, norm.input(2), norm.input(3)),
                "inner": _pair(graph, inner.input(1), activation.input(1)),
                "out": _pair(graph, out.input(1), last.input(4)),
                "out_norm": _pair(graph, last.input(2), last.input(3)),
            },
        )
        name = last.outputs[0]


def find_pooling(graph: Graph) -> str:
    """Return how the graph pools token vectors: `mean` or `cls`."""
    node = graph.producers.get(_POOLED)
    if node is not None and node.op_type == "Gather" and node.input(0) == _HIDDEN:
        index = graph.weight(node.input(1)) if graph.holds(node.input(1)) else None
        if index is not None and index.tolist() == 0:
            return "cls"
    if node is not None and node.op_type == "Div":
        total = graph.producers.get(node.input(0))
        product = graph.producers.get(total.input(0)) if total else None
        if product is not None and product.op_type == "Mul" and _HIDDEN in product.inputs:
            mask = graph.producers.get(_other(product, _HIDDEN))
            unsqueezed = graph.producers.get(mask.input(0)) if mask else None
            if unsqueezed is not None and unsqueezed.inputs[:1] == ["attention_mask"]:
                return "mean"
    raise UnsupportedGraphError(
        f"{graph.path}: its pooling is neither the mean of all tokens nor the first"
    )


def distances(relative: Floats, positions: int) -> Floats:
    """Return MPNet's bias by distance, float32 [heads, 2 positions - 1], from that by bucket."""
    buckets = len(relative) // 2
    exact = buckets // 2
    distance = np.arange(-positions + 1, positions)  # of the key from the query
    far = np.maximum(np.abs(distance), 1).astype(np.float32) / np.float32(exact)
    steps = np.log(far) / np.float32(np.log(_MPNET_DISTANCE / exact)) * np.float32(buckets - exact)
    near = np.abs(distance) < exact
    bucket = np.where(
        near, np.abs(distance), np.minimum(exact + steps.astype(np.int64), buckets - 1)
    )
    bucket += np.where(distance > 0, buckets, 0)
    return np.ascontiguousarray(relative[bucket].T)


def _positions(graph: Graph, name: str) -> tuple[int, int]:
    """Return the token id without a position, or -1, and the position of a text's first token."""
    node: Node | None = _through(graph, name, "Cast")
    if node is not None and node.op_type == "Slice" and graph.holds(node.input(0)):
        numbers = graph.weight(node.input(0)).ravel()
        start = graph.weight(node.input(1)).ravel()
        if np.array_equal(numbers, np.arange(len(numbers))) and not start.any():
            return -1, 0
    if node is not None and node.op_type == "Add" and graph.holds(node.input(1)):
        others = {other.op_type: other for other in graph.nodes}
        padding, equal = int(graph.weight(node.input(1))), others.get("Equal")
        ids = equal is not None and equal.input(0) == "input_ids" and "CumSum" in others
        if equal is not None and ids and int(graph.weight(equal.input(1))) == padding >= 0:
            return padding, padding + 1
    raise UnsupportedGraphError(f"{graph.path}: it numbers positions in a way of its own")


def _relative(graph: Graph, name: str, heads: int) -> Floats | None:
    """Return the bias that is added to scores of attention, by bucket of distance."""
    if not name:
        return None
    node = _through(graph, name, "Expand", "Unsqueeze", "Transpose")
    if node is not None and node.op_type == "Gather" and graph.holds(node.input(0)):
        relative = _floats(graph, node.input(0))
        if relative.ndim == 2 and relative.shape[1] == heads and len(relative) >= 4:
            return relative
    raise UnsupportedGraphError(
        f"{graph.path}: its attention has a bias of another kind than MPNet's"
    )


def _through(graph: Graph, name: str, *op_types: str) -> Node | None:
    """Return the node that makes `name`, behind nodes of the types given."""
    node = graph.producers.get(name)
    for _ in graph.nodes:  # there may be a circle
        if node is None or node.op_type not in op_types:
            return node
        node = graph.producers.get(node.input(0))
    return None


def _followers(graph: Graph, name: str, op_type: str) -> list[Node]:
    return [node for node in graph.nodes if node.op_type == op_type and node.input(0) == name]


def _only(graph: Graph, name: str) -> Node:
    return _one([node for node in graph.nodes if name in node.inputs], graph, name)


def _one(nodes: list[Node], graph: Graph, name: str) -> Node:
    if len(nodes) != 1:
        raise UnsupportedGraphError(f"{graph.path}: {len(nodes)} known operators follow {name}")
    return nodes[0]


def _step(graph: Graph, name: str, *op_types: str, skip: str = "", among: int = 1) -> Node:
    """Return the operator that takes `name`, of a type given; `skip` is what it adds.

    Among the users of `name` there may be one more, which adds it further down.
    """
    users = [node for node in graph.nodes if name in node.inputs]
    found = [node for node in users if node.op_type in op_types and node.input(0) == name]
    if len(users) != among or len(found) != 1 or (skip and found[0].input(1) != skip):
        raise UnsupportedGraphError(f"{graph.path}: not {' or '.join(op_types)} follows {name}")
    return found[0]


def _other(node: Node, name: str) -> str:
    return next((other for other in node.inputs if other != name), "")


def _floats(graph: Graph, name: str) -> Floats:
    array = graph.weight(name)
    if array.dtype != np.float32:
        raise UnsupportedGraphError(
            f"{graph.path}: weight {name} is {array.dtype}, expected float32"
        )
    return array


def _pair(graph: Graph, weight: str, bias: str) -> Pair:
    found = _floats(graph, weight)
    return found, _floats(graph, bias) if bias else np.zeros(found.shape[-1], np.float32)


def _number(node: Node, name: str, default: float) -> Any:
    value = node.attributes.get(name)
    return default if value is None else value
