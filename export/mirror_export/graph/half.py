"""Convert a graph to float16, except for what could overflow or lose digits.

Matrix products, attention and GELU run in float16; norms, sums, softmax outside of fused
attention, pooling and normalisation run in float32 (fused attention computes its softmax in
float32 itself). `onnxruntime.transformers.float16` would hold several copies of the model in
memory, and silently clip numbers beyond the range of float16 to 65,504.
"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
import onnx_ir as ir

from mirror_export.graph.graph_edit import (
    array,
    by_rows,
    is_weight,
    layer_name,
    lazy_constant,
    remove_unused,
    split_embeddings,
)
from mirror_export.graph.probe import Probe

_SINGLE, _HALF = ir.DataType.FLOAT, ir.DataType.FLOAT16

_COMPUTES = {"MatMul", "Attention", "MultiHeadAttention", "RotaryEmbedding"}
_COMPUTES |= {"BiasGelu", "FastGelu", "Gelu"}
# Operators that only move numbers keep the precision of their input.
_MOVES = {"Reshape", "Transpose", "Split", "Slice", "Squeeze", "Unsqueeze", "Expand", "Tile"}
# A quarter of the largest float16: other texts may give larger numbers than those measured.
_LIMIT = 65_504 / 4


def to_half(model: ir.Model, keep: Collection[str] = ()) -> None:
    """Convert a float32 graph in place; its inputs and outputs stay as they are.

    Args:
        model: the graph.
        keep: names of layers, as `layer_name` gives them, to leave in float32.
    """
    graph = model.graph
    split_embeddings(graph)
    for node in list(graph):
        if node.op_type == "Gather" and is_weight(node.inputs[0], 2):
            _compute_in_half(graph, node, only=(0,))
        elif node.op_type in _COMPUTES and layer_name(node) not in keep:
            _compute_in_half(graph, node)
        elif node.op_type in _MOVES and getattr(node.inputs[0], "dtype", None) == _HALF:
            _compute_in_half(graph, node, only=(0,))
        else:
            _compute_in_single(graph, node)
    for i, output in enumerate(graph.outputs):
        if output.dtype == _HALF:
            graph.outputs[i] = _cast(graph, output, _SINGLE)
            output.name, graph.outputs[i].name = f"{output.name}.fp16", output.name
    remove_unused(graph)


def single_layers(model: ir.Model, probe: Probe) -> list[str]:
    """Return the layers that must stay in float32: those that may overflow or follow the pooling.

    Args:
        model: the float32 graph; it is changed in place.
        probe: runs the graph to measure inputs, outputs and projections of the layers.
    """
    graph = model.graph
    split_embeddings(graph)
    layers = [node for node in graph if node.op_type in _COMPUTES]
    kept = {layer_name(node) for node in layers if _follows_pooling(node) or _has_large(node)}
    owners, outputs = [], []
    for node in layers:
        tape = ir.tape.Tape(graph)
        for value in (*node.inputs, *node.outputs, *_projections(node, tape)):
            if value is not None and value.const_value is None and value.dtype == _SINGLE:
                largest = tape.op("ReduceMax", [tape.op("Abs", [value])], {"keepdims": 0})
                largest.dtype, largest.shape = _SINGLE, ir.Shape([])
                graph.outputs.append(largest)
                owners.append(layer_name(node))
                outputs.append(largest)
    for found in probe.run(model, outputs):
        kept |= {owner for owner, x in zip(owners, found, strict=True) if not x <= _LIMIT}
    return sorted(kept)


def _projections(node: ir.Node, tape: ir.tape.Tape) -> list[ir.Value]:
    """Return the queries, keys and values that a fused attention computes inside."""
    if node.op_type != "Attention":
        return []
    product = tape.op("MatMul", node.inputs[:2])
    product.dtype = _SINGLE
    return [product]


def _follows_pooling(node: ir.Node) -> bool:
    shape = None if node.inputs[0] is None else node.inputs[0].shape
    return shape is not None and len(shape) == 2


def _has_large(node: ir.Node) -> bool:
    weights = (value for value in node.inputs if value is not None and value.dtype == _SINGLE)
    return any(
        value.const_value is not None and not np.abs(array(value)).max(initial=0) <= _LIMIT
        for value in weights
    )


def _compute_in_half(
    graph: ir.Graph, node: ir.Node, *, only: tuple[int, ...] | None = None
) -> None:
    """Give a node its float32 inputs as float16: all, or those at the positions `only`."""
    for i, value in enumerate(node.inputs):
        if value is not None and value.dtype == _SINGLE and (only is None or i in only):
            half = (
                _cast(graph, value, _HALF) if value.const_value is None else _halved(graph, value)
            )
            node.replace_input_with(i, half)
    for output in node.outputs:
        output.dtype = _HALF


def _compute_in_single(graph: ir.Graph, node: ir.Node) -> None:
    for i, value in enumerate(node.inputs):
        if value is not None and value.dtype == _HALF:
            node.replace_input_with(i, _cast(graph, value, _SINGLE))


def _cast(graph: ir.Graph, value: ir.Value, dtype: ir.DataType) -> ir.Value:
    """Return the value in another precision, with one cast for all nodes that need it."""
    for user, _ in value.uses():
        if user.op_type == "Cast" and user.outputs[0].dtype == dtype:
            return user.outputs[0]
    node = ir.Node("", "Cast", [value], [ir.AttrInt64("to", dtype)])
    node.outputs[0].dtype, node.outputs[0].shape = dtype, value.shape
    producer = value.producer()
    if producer is None:
        graph.insert_before(graph[0], node)
    else:
        graph.insert_after(producer, node)
    return node.outputs[0]


def _halved(graph: ir.Graph, value: ir.Value) -> ir.Value:
    """Return the weight in float16; it is converted when it is written."""
    shape = array(value).shape
    return lazy_constant(
        graph, f"{value.name}.fp16", lambda: by_rows(value, np.asarray, np.float16), _HALF, shape
    )
