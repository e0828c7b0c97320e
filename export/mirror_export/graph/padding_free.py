"""Let the attention of a fused graph leave padding out: for CUDA, by joining the tokens of a batch.

Where the tokens are is computed on the host (mirror_rt/tokens/joining.py), and given to the graph
as four more inputs. An operator that counts the tokens on the card (`RemovePadding`, as
`onnxruntime.transformers.convert_to_packing_mode` uses it) waits for the card in every run, and so
cannot be captured as a CUDA graph. Texts must be padded on the right.

ModernBERT needs rotated positions, and layers in parts. Its local windows stay a bias of the
scores, [1, 1, length, length], because no operator of onnxruntime takes a window to both sides: see
docs/decisions/2026-11-22-local-windows-as-a-bias.md.
"""

from __future__ import annotations

from collections import Counter

import numpy as np
import onnx_ir as ir
from onnx_ir.passes import common

from mirror_export.graph.graph_edit import ORT, attention_parts, constant, insert_behind, replace
from mirror_rt.errors import ModelError
from mirror_rt.tokens.joining import JoinedTokens

# The operators of attention that a traced graph may hold: the second is ModernBERT's.
ATTENTIONS = ("Attention", "MultiHeadAttention")
_NORMS = ("SkipLayerNormalization", "LayerNormalization")
_TOKENS = ir.SymbolicDim("tokens")
# The number of the input that is the mask.
_MASKS = {"Attention": 3, "MultiHeadAttention": 4}


def can_pack(model: ir.Model) -> bool:
    """Tell whether all attention in the graph is an operator that has a padding-free form."""
    operators = {node.op_type for node in model.graph}
    if "RotaryEmbedding" in operators:
        return not operators & {"Attention", "Softmax"}
    return "Attention" in operators and not operators & {"MultiHeadAttention", "Softmax"}


def pack(model: ir.Model) -> None:
    """Join the tokens before the first attention, and restore the padding after the last norm.

    The graph may be in float32 or in float16.
    """
    graph = model.graph
    attentions = [node for node in graph if node.op_type in ATTENTIONS]
    whole = attentions[0].op_type == "Attention"  # with the projections inside
    norms = [node for node in graph if node.op_type in _NORMS]
    last = [node for node in norms if len(node.outputs[0].shape or ()) == 3][-1]
    indices, positions, offsets, starts = _add_inputs(graph)
    _join_tokens(graph, attentions[0] if whole else _first_product(graph), indices)
    for node in attentions:
        (_pack_attention if whole else _pack_heads)(graph, node, offsets, starts)
    if not whole:
        _rotate_joined(graph, indices)
    _restore_padding(graph, last.outputs[0], positions)
    for node in graph:
        for value in node.outputs:
            if not value.is_graph_output():
                value.shape = None  # [batch, length, D] has become [tokens, D]
    common.RemoveUnusedNodesPass()(model)


def check_packed(model: ir.Model, layers: int) -> None:
    """Check a packed graph by its operators, since without CUDA it cannot be run."""
    found = Counter(node.op_type for node in model.graph)
    expected = {"PackedMultiHeadAttention": layers} | dict.fromkeys(ATTENTIONS, 0)
    if wrong := [name for name, count in expected.items() if found[name] != count]:
        raise ModelError(
            "the padding-free graph holds "
            + ", ".join(f"{found[name]} {name} (expected {expected[name]})" for name in wrong)
        )


def use_key_lengths(model: ir.Model) -> None:
    """Replace every mask int32 [batch, length] of an attention by its sum over the tokens.

    Both say the same of texts that are padded on the right. For lengths, onnxruntime has fused
    kernels of its `Attention` (cuDNN's on compute capability 9.0 and above, TensorRT's before); a
    mask by token, which may hide any tokens, it computes without one.
    """
    lengths: dict[ir.Value, ir.Value] = {}
    for node in [node for node in model.graph if node.op_type in _MASKS]:
        place = _MASKS[node.op_type]
        mask = node.inputs[place]
        assert mask is not None  # mirror_export.graph.attention always gives one
        if mask not in lengths:
            tape = ir.tape.Tape()
            axis = constant(model.graph, "lengths.axis", np.array([1]))
            total = tape.op("ReduceSum", [mask, axis], {"keepdims": 0})
            total.dtype, total.shape = ir.DataType.INT32, ir.Shape((mask.shape or [None])[:1])
            model.graph.insert_before(node, tape.nodes)
            lengths[mask] = total
        node.replace_input_with(place, lengths[mask])


def _add_inputs(graph: ir.Graph) -> tuple[ir.Value, ir.Value, ir.Value, ir.Value]:
    """Add the inputs of `JoinedTokens`; return them, the last two as int32 for the operators."""
    padded, starts = graph.inputs[0].shape, ir.Shape([ir.SymbolicDim("starts")])
    shapes = (ir.Shape([_TOKENS]), padded, padded, starts)
    kind = ir.TensorType(ir.DataType.INT64)
    given = [
        ir.Value(name=name, shape=shape, type=kind)
        for name, shape in zip(JoinedTokens._fields, shapes, strict=True)
    ]
    graph.inputs.extend(given)
    tape = ir.tape.Tape()
    narrow = [tape.op("Cast", [value], {"to": ir.DataType.INT32}) for value in given[2:]]
    for value in narrow:
        value.dtype = ir.DataType.INT32
    graph.insert_before(graph[0], tape.nodes)
    return given[0], given[1], narrow[0], narrow[1]


def _join_tokens(graph: ir.Graph, first: ir.Node, indices: ir.Value) -> None:
    """Join the tokens before node `first`, for all readers of its hidden states."""
    hidden = first.inputs[0]
    while hidden is not None and (cast := hidden.producer()) and cast.op_type == "Cast":
        hidden = cast.inputs[0]  # the residual reads the same numbers in float32
    assert hidden is not None
    assert hidden.shape is not None  # the output of a norm: [batch, length, H]
    producer = hidden.producer()
    assert producer is not None
    users = list(hidden.uses())
    tape = ir.tape.Tape()
    flat = constant(graph, "packing.flat", np.array([-1, hidden.shape[2]]))
    joined = tape.op("Gather", [tape.op("Reshape", [hidden, flat]), indices], {"axis": 0})
    joined.type, joined.shape = hidden.type, ir.Shape([_TOKENS, hidden.shape[2]])
    graph.insert_after(producer, tape.nodes)
    for user, i in users:
        user.replace_input_with(i, joined)


def _pack_attention(graph: ir.Graph, node: ir.Node, offsets: ir.Value, starts: ir.Value) -> None:
    """Give an attention queries, keys and values that are apart: so it runs as flash attention.

    The weights stay one constant, which other graphs of the bundle share; onnxruntime splits it
    while it loads.
    """
    (hidden, weight, bias, _), position_bias, attributes = attention_parts(node)
    assert weight is not None
    tape = ir.tape.Tape()
    parts = tape.op_multi_out("Split", [weight], {"axis": 1, "num_outputs": 3}, num_outputs=3)
    projected = [tape.op("MatMul", [hidden, part]) for part in parts]
    for value in (*parts, *projected):
        value.type = weight.type
    inputs = [*projected, bias, offsets, starts, position_bias]
    packed = tape.op("PackedMultiHeadAttention", inputs, attributes, domain=ORT)
    replace(graph, node, tape, packed)


def _first_product(graph: ir.Graph) -> ir.Node:
    """Return the product that reads the embeddings: that of the first queries, keys and values."""
    node: ir.Node | None = next(node for node in graph if node.op_type == "RotaryEmbedding")
    while node is not None and node.op_type != "MatMul":
        node = None if node.inputs[0] is None else node.inputs[0].producer()
    assert node is not None  # mirror_export.graph.attention makes them of a product
    return node


def _pack_heads(graph: ir.Graph, node: ir.Node, offsets: ir.Value, starts: ir.Value) -> None:
    """Let a MultiHeadAttention attend among joined tokens."""
    query, key, value, bias, _mask, *position_bias = node.inputs
    inputs = [query, key, value, bias, offsets, starts, *position_bias]
    tape = ir.tape.Tape()
    packed = tape.op("PackedMultiHeadAttention", inputs, node.attributes, domain=ORT)
    replace(graph, node, tape, packed)


def _rotate_joined(graph: ir.Graph, indices: ir.Value) -> None:
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


def _restore_padding(graph: ir.Graph, hidden: ir.Value, positions: ir.Value) -> None:
    """Restore the padding for all readers of the hidden states, including the graph's output.

    The padding becomes a copy of some token of a text: a captured graph computes as many tokens
    as fit, and those that no text has are never written by the attention, so they may be NaN, also
    times a mask of 0. `RestorePadding` would wait for the card to check the places of the tokens.
    """
    node = ir.Node("", "Gather", [hidden, positions], [ir.AttrInt64("axis", 0)])
    insert_behind(graph, hidden, node, f"{hidden.name}.joined")
