"""Convert a graph to float16 or bfloat16, except for nodes that could overflow or lose digits.

Matrix products, attention and GELU run in 16 bits; norms, sums, softmax outside of fused
attention, pooling and normalisation run in float32 (fused attention computes its softmax in
float32 itself). `onnxruntime.transformers.float16` would hold several copies of the model in
memory, and silently clip numbers beyond the range of float16 to 65,504. bfloat16 has the range of
float32, but onnxruntime has no bfloat16 kernels for fused attention (in all versions that run
bundles), so that attention runs in float16 there.
"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
import onnx_ir as ir
from onnx_ir.passes import common

from mirror_export.graph.graph_edit import (
    array,
    converted,
    is_weight,
    layer_name,
    split_embeddings,
)
from mirror_export.graph.probe import Probe

_SINGLE, _HALF, _BRAIN = ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.BFLOAT16
_FLOATS = (_SINGLE, _HALF, _BRAIN)

_COMPUTES = {"MatMul", "Attention", "MultiHeadAttention", "RotaryEmbedding"}
_COMPUTES |= {"BiasGelu", "FastGelu", "Gelu"}
# Operators that only move numbers keep the precision of their input.
_MOVES = {"Reshape", "Transpose", "Split", "Slice", "Squeeze", "Unsqueeze", "Expand", "Tile"}
# Operators for which onnxruntime 1.20 has no bfloat16 kernel. PackedMultiHeadAttention, which
# comes of Attention, has none in 1.31.
_NO_BFLOAT16 = {"Attention", "MultiHeadAttention", "Gelu", "Tile"}
# A quarter of the largest float16: other texts may give larger numbers than those measured.
_LIMIT = 65_504 / 4


def to_half(model: ir.Model, keep: Collection[str] = (), kind: ir.DataType = _HALF) -> None:
    """Convert a float32 graph in place to float16 or bfloat16, except for its inputs and outputs.

    The layers that `keep` names, as `layer_name` does, stay in float32.
    """
    graph = model.graph
    split_embeddings(graph)
    for node in list(graph):
        if node.op_type == "Gather" and is_weight(node.inputs[0], 2):
            _compute_in(graph, node, kind, only=(0,))
        elif node.op_type in _COMPUTES and layer_name(node) not in keep:
            _compute_in(graph, node, _HALF if node.op_type in _NO_BFLOAT16 else kind)
        elif (moved := _moved(node)) is not None:
            _compute_in(graph, node, moved, only=(0,))
        else:
            for i, value in enumerate(node.inputs):
                if value is not None and value.dtype in (_HALF, _BRAIN):
                    node.replace_input_with(i, _cast(graph, value, _SINGLE))
    for i, output in enumerate(graph.outputs):
        if output.dtype in (_HALF, _BRAIN):
            graph.outputs[i] = _cast(graph, output, _SINGLE)
            output.name, graph.outputs[i].name = f"{output.name}.half", output.name
    common.RemoveUnusedNodesPass()(model)


def single_layers(model: ir.Model, probe: Probe, kind: ir.DataType = _HALF) -> list[str]:
    """Return the layers that must stay in float32: those that may overflow or follow the pooling.

    The probe runs the float32 graph, which is changed in place, to measure inputs, outputs and
    projections of the layers. In bfloat16, only attention and its like may overflow.
    """
    graph = model.graph
    split_embeddings(graph)
    layers = [node for node in graph if node.op_type in _COMPUTES]
    inputs = ((node, node.inputs[0]) for node in layers)
    # The layers behind the pooling take vectors of texts, [batch, D].
    kept = {layer_name(node) for node, x in inputs if x and x.shape and len(x.shape) == 2}
    layers = [node for node in layers if kind == _HALF or node.op_type in _NO_BFLOAT16]
    kept |= {layer_name(node) for node in layers if _has_large(node)}
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
    for found in probe.run(model, outputs) if outputs else ():  # none would stand for all
        kept |= {owner for owner, x in zip(owners, found, strict=True) if not x <= _LIMIT}
    return sorted(kept)


def _projections(node: ir.Node, tape: ir.tape.Tape) -> list[ir.Value]:
    """Return the queries, keys and values that a fused attention computes inside."""
    if node.op_type != "Attention":
        return []
    product = tape.op("MatMul", node.inputs[:2])
    product.dtype = _SINGLE
    return [product]


def _has_large(node: ir.Node) -> bool:
    weights = (value for value in node.inputs if value is not None and value.dtype == _SINGLE)
    return any(
        value.const_value is not None and not np.abs(array(value)).max(initial=0) <= _LIMIT
        for value in weights
    )


def _moved(node: ir.Node) -> ir.DataType | None:
    """Return the 16-bit type of the numbers that a node only moves; None if it does more."""
    value = node.inputs[0] if node.op_type in _MOVES else None
    if value is None or value.dtype not in (_HALF, _BRAIN):
        return None
    return None if value.dtype == _BRAIN and node.op_type in _NO_BFLOAT16 else value.dtype


def _compute_in(
    graph: ir.Graph, node: ir.Node, kind: ir.DataType, *, only: tuple[int, ...] | None = None
) -> None:
    """Give a node its float inputs as `kind`: all, or those at the positions `only`."""
    for i, value in enumerate(node.inputs):
        if value is None or value.dtype not in _FLOATS or (only is not None and i not in only):
            continue
        if value.dtype != kind:
            make = _cast if value.const_value is None else _halved
            node.replace_input_with(i, make(graph, value, kind))
    for output in node.outputs:
        output.dtype = kind


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


def _halved(graph: ir.Graph, value: ir.Value, kind: ir.DataType) -> ir.Value:
    """Return the weight in 16 bits; it is converted when it is written."""
    name = f"{value.name}.{'fp16' if kind == _HALF else 'bf16'}"
    return converted(graph, value, name, np.asarray, kind)
