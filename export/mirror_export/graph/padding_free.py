"""Make a fused graph padding-free, for CUDA: the tokens of a batch joined into one sequence.

The form is that of `onnxruntime.transformers.convert_to_packing_mode`, but that tool passes
RemovePadding the mask of the attention as the lengths of the texts, whereas our mask has a number
for every token. Texts must be padded on the right.
"""

from __future__ import annotations

from collections import Counter

import numpy as np
import onnx_ir as ir

from mirror_export.graph.graph_edit import ORT, attention_parts, constant, replace
from mirror_rt.errors import ModelError

_NORMS = ("SkipLayerNormalization", "LayerNormalization")


def can_pack(model: ir.Model) -> bool:
    """Tell whether all attention in the graph is the operator that has a padding-free form."""
    operators = {node.op_type for node in model.graph}
    return "Attention" in operators and not operators & {"MultiHeadAttention", "Softmax"}


def pack(model: ir.Model) -> None:
    """Remove the padding before the first attention, and restore it after the last norm."""
    graph = model.graph
    attentions = [node for node in graph if node.op_type == "Attention"]
    last = [node for node in graph if node.op_type in _NORMS and _rank(node.outputs[0]) == 3][-1]
    offsets, starts = _remove_padding(graph, attentions[0])
    for node in attentions:
        _pack_attention(graph, node, offsets, starts)
    _restore_padding(graph, last.outputs[0], offsets)
    for node in graph:
        for value in node.outputs:
            if not value.is_graph_output():
                value.shape = None  # [batch, length, D] has become [tokens, D]


def check_packed(model: ir.Model, layers: int) -> None:
    """Check a packed graph by its operators, since without CUDA it cannot be run.

    Raises:
        ModelError: their numbers are not those of a model with so many layers.
    """
    found = Counter(node.op_type for node in model.graph)
    expected = {"RemovePadding": 1, "PackedAttention": layers, "RestorePadding": 1, "Attention": 0}
    if wrong := [name for name, count in expected.items() if found[name] != count]:
        raise ModelError(
            "the padding-free graph holds "
            + ", ".join(f"{found[name]} {name} (expected {expected[name]})" for name in wrong)
        )


def _remove_padding(graph: ir.Graph, first: ir.Node) -> tuple[ir.Value, ir.Value]:
    """Join the tokens before attention `first`; return their offsets and the texts' starts."""
    hidden, mask = first.inputs[0], first.inputs[3]
    assert hidden is not None
    assert mask is not None  # mirror_export.graph.attention always gives one, int32 [batch, length]
    tape = ir.tape.Tape()
    axis = constant(graph, "packing.axis", np.array([1]))
    lengths = tape.op("ReduceSum", [mask, axis], {"keepdims": 0})
    joined, offsets, starts, _longest = tape.op_multi_out(
        "RemovePadding", [hidden, lengths], num_outputs=4, domain=ORT
    )
    for value in (lengths, offsets, starts):
        value.dtype = ir.DataType.INT32
    joined.type = hidden.type
    users = [(user, i) for user, i in hidden.uses() if user is not joined.producer()]
    graph.insert_before(first, tape.nodes)
    for user, i in users:
        user.replace_input_with(i, joined)
    return offsets, starts


def _pack_attention(graph: ir.Graph, node: ir.Node, offsets: ir.Value, starts: ir.Value) -> None:
    (hidden, weight, bias, _), position_bias, attributes = attention_parts(node)
    tape = ir.tape.Tape()
    inputs = [hidden, weight, bias, offsets, starts, position_bias]
    replace(graph, node, tape, tape.op("PackedAttention", inputs, attributes, domain=ORT))


def _restore_padding(graph: ir.Graph, hidden: ir.Value, offsets: ir.Value) -> None:
    """Restore the padding for all readers of the hidden states, including the graph's output."""
    producer = hidden.producer()
    assert producer is not None  # it is the output of a norm
    node = ir.Node(ORT, "RestorePadding", [hidden, offsets])
    restored = node.outputs[0]
    restored.type, restored.shape = hidden.type, hidden.shape
    name = hidden.name
    hidden.replace_all_uses_with(restored, replace_graph_outputs=True)
    node.replace_input_with(0, hidden)
    hidden.name, restored.name = f"{name}.joined", name
    graph.insert_after(producer, node)


def _rank(value: ir.Value) -> int | None:
    return None if value.shape is None else len(value.shape)
