"""What only ModernBERT needs in a padding-free graph: rotated positions, and layers in parts.

Local windows stay a bias of the scores, [1, 1, length, length]. No operator of onnxruntime takes a
window to both sides: see docs/decisions/2026-11-22-local-windows-as-a-bias.md.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from mirror_export.graph.graph_edit import ORT, constant, replace


def first_product(graph: ir.Graph) -> ir.Node:
    """Return the product that reads the embeddings: that of the first queries, keys and values."""
    node: ir.Node | None = next(node for node in graph if node.op_type == "RotaryEmbedding")
    while node is not None and node.op_type != "MatMul":
        node = None if node.inputs[0] is None else node.inputs[0].producer()
    assert node is not None  # mirror_export.graph.attention makes them of a product
    return node


def pack_heads(graph: ir.Graph, node: ir.Node, offsets: ir.Value, starts: ir.Value) -> None:
    """Let a MultiHeadAttention attend among joined tokens."""
    query, key, value, bias, _mask, *position_bias = node.inputs
    inputs = [query, key, value, bias, offsets, starts, *position_bias]
    tape = ir.tape.Tape()
    packed = tape.op("PackedMultiHeadAttention", inputs, node.attributes, domain=ORT)
    replace(graph, node, tape, packed)


def rotate_joined(graph: ir.Graph, indices: ir.Value) -> None:
    """Rotate joined tokens by their places in the texts, and split them at their last axis.

    `RotaryEmbedding` refuses more tokens of a text than it has angles. So each joined token is a
    text of its own. `indices`, int64 [tokens], are the places of the tokens in the padded batch.
    """
    axis, flat = (constant(graph, f"packing.{n}", np.array([n])) for n in (1, -1))
    rotations = [node for node in graph if node.op_type == "RotaryEmbedding"]
    padded = rotations[0].inputs[1]  # the place of every token, int64 [batch, length]
    assert padded is not None
    producer = padded.producer()
    assert producer is not None  # an Expand
    tape = ir.tape.Tape()
    places = tape.op("Gather", [tape.op("Reshape", [padded, flat]), indices], {"axis": 0})
    places = tape.op("Unsqueeze", [places, axis])
    graph.insert_after(producer, tape.nodes)
    for node in rotations:
        tape = ir.tape.Tape()
        inputs = [tape.op("Unsqueeze", [node.inputs[0], axis]), places, *node.inputs[2:]]
        rotated = tape.op("RotaryEmbedding", inputs, node.attributes, domain=ORT)
        replace(graph, node, tape, tape.op("Squeeze", [rotated, axis]))
    for node in graph:
        if node.op_type == "Split":
            node.attributes["axis"] = ir.AttrInt64("axis", -1)
