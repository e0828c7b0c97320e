"""Recognise ModernBERT in its graph: norms before the layers, rotated positions, local windows.

Gather LayerNormalization
(MatMul Split RotaryEmbedding MultiHeadAttention MatMul Add
 LayerNormalization MatMul Split Gelu Mul MatMul Add LayerNormalization)*
"""

from __future__ import annotations

import numpy as np

from mirror_rt.inference.native.architecture import HIDDEN, common_of
from mirror_rt.inference.native.engine_model import Embeddings, Floats, Layer, expect
from mirror_rt.inference.native.onnx_graph import Graph, Node, made


def is_modern(graph: Graph) -> bool:
    """Tell whether a graph may be that of ModernBERT."""
    return any(node.op_type == "RotaryEmbedding" for node in graph.nodes)


def read_modern(graph: Graph) -> tuple[Embeddings, list[Layer]]:
    """Return the embeddings and the layers of ModernBERT."""
    layers: list[Layer] = []
    norm = made(graph, HIDDEN, "LayerNormalization")
    seen = {norm.input(0)}
    while (gather := graph.producers.get(norm.input(0))) is not None and gather.op_type == "Add":
        layer, norm = _read_layer(graph, norm)
        layers.append(layer)
        expect(graph, norm.input(0) not in seen, "a circle of layers")
        seen.add(norm.input(0))
    gather = made(graph, norm.input(0), "Gather")
    expect(graph, gather.input(1) == "input_ids", "embeddings")
    embeddings = Embeddings(
        words=gather.input(0),
        norm=(norm.input(1), norm.input(2)),
        epsilon=norm.attributes.get("epsilon", 1e-5),
        modern=True,
    )
    return embeddings, layers[::-1]


def _read_layer(graph: Graph, following: Node) -> tuple[Layer, Node]:
    """Return the layer before a norm, and the norm before that layer."""
    last = made(graph, following.input(0), "Add")
    out = made(graph, last.input(1), "MatMul")
    gate = made(graph, out.input(0), "Mul")
    gelu = made(graph, gate.input(0), "Gelu")
    halves = made(graph, gelu.input(0), "Split")
    inner = made(graph, halves.input(0), "MatMul")
    norm = made(graph, inner.input(0), "LayerNormalization")
    total = made(graph, norm.input(0), "Add")
    project = made(graph, total.input(1), "MatMul")
    attention = made(graph, project.input(0), "MultiHeadAttention")
    queries, keys = (made(graph, attention.input(i), "RotaryEmbedding") for i in (0, 1))
    parts = made(graph, queries.input(0), "Split")
    projected = made(graph, parts.input(0), "MatMul")
    before = made(graph, projected.input(0), "LayerNormalization")
    # The first layer adds to the embeddings as they are normalised, and has no norm of its own.
    first = made(graph, before.input(0), "Add", "Gather").op_type == "Gather"
    residuals = (before.outputs[0] if first else before.input(0), norm.input(0))
    expect(graph, (total.input(0), last.input(0)) == residuals, "residuals")
    expect(graph, halves.outputs == [gelu.input(0), gate.input(1)], "a gate")
    inputs = [queries.input(0), keys.input(0), attention.input(2)]
    expect(graph, parts.outputs == inputs and not attention.input(3), "attention")
    weights = {
        "query_key_value": (projected.input(1), ""),
        "attention_out": (project.input(1), ""),
        "attention_norm": (norm.input(1), norm.input(2)),
        "inner": (inner.input(1), ""),
        "out": (out.input(1), ""),
        "out_norm": (following.input(1), following.input(2)),
    }
    kind = "gelu_tanh" if gelu.attributes.get("approximate", "none") == "tanh" else "gelu"
    common = common_of(graph, attention, weights, activation=kind)
    window, rotation = _window(graph, attention.input(5)), _frequencies(graph, queries, keys)
    return Layer(common, weights, "", window, rotation), before


def rotary_table(frequencies: Floats, longest: int) -> Floats:
    """Return the cosines, and then the sines, of each position: float32 [longest, d]."""
    angles = np.arange(longest, dtype=np.float32)[:, None] * frequencies
    return np.concatenate([np.cos(angles), np.sin(angles)], axis=1)


def _window(graph: Graph, bias: str) -> int:
    """Return how far keys may be, where the bias is lower for those further away; 0 for any."""
    if not bias:
        return 0
    factor = made(graph, bias, "Mul", behind=("Unsqueeze",))
    far = made(graph, factor.input(0), "Greater", behind=("Cast",))
    made(graph, far.input(0), "Abs")
    expect(graph, bool(graph.weight(factor.input(1)) <= -1e4), "a bias of attention")
    window = int(graph.weight(far.input(1)))
    expect(graph, window >= 1, f"a window of {window} tokens")
    return window


def _frequencies(graph: Graph, queries: Node, keys: Node) -> str:
    """Return the name of the frequencies by which queries and keys are rotated alike."""
    made(graph, queries.input(1), "Range", behind=("Expand", "Unsqueeze"))
    cosines, sines = (
        made(graph, queries.input(number), function, behind=("Slice", "Gather"))
        for number, function in ((2, "Cos"), (3, "Sin"))
    )
    alike = queries.attributes == keys.attributes == {"interleaved": 0}
    alike = alike and queries.inputs[1:] == keys.inputs[1:] and cosines.inputs == sines.inputs
    expect(graph, alike, "a rotation of positions")
    return made(graph, cosines.input(0), "Mul", behind=("Concat",)).input(1)
