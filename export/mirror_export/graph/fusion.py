"""Put onnxruntime's fused operators into a graph, by rules of pattern, check and replacement.

The rules see the graph of the dynamo exporter, in which every value has a shape. The rule for
`Attention` starts from the nodes that `mirror_export.graph.attention` emits, the other rules from
ONNX's own operators.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from typing import Any

import numpy as np
import onnx_ir as ir
from onnx_ir.passes import common
from onnxscript.rewriter import RewriteRule, rewrite

from mirror_export.graph.graph_edit import ORT, array


def fuse(model: ir.Model) -> None:
    """Replace patterns in place by onnxruntime's fused operators."""
    _transpose_shared_weights(model)
    for stage in _STAGES:
        rewrite(model, stage)
        common.IdentityEliminationPass()(model)
    _share_equal_initializers(model)
    # The metadata says where in the source each node came from, with paths of this machine.
    common.ClearMetadataAndDocStringPass()(model)


def describe_graph(model: ir.Model) -> dict[str, Any]:
    """Return the number of nodes, those of onnxruntime's own operators by name, and the opset."""
    graph = model.graph
    fused = Counter(node.op_type for node in graph if node.domain == ORT)
    opset = graph.opset_imports[""]
    return {"nodes": len(graph), "fused": dict(sorted(fused.items())), "opset": opset}


def _transpose_shared_weights(model: ir.Model) -> None:
    """Store the transposed weight in the place of each `Transpose` of a weight.

    The exporter does so itself, but not with large weights of several uses, as ALBERT's layers
    have them.
    """
    graph, made = model.graph, dict[tuple[str, tuple[int, ...]], ir.Value]()
    for node in [node for node in graph if node.op_type == "Transpose"]:
        weight, axes = node.inputs[0], node.attributes.get_ints("perm")
        if weight is None or axes is None or not weight.is_initializer():
            continue
        key = str(weight.name), tuple(axes)
        if key not in made:
            numbers = np.ascontiguousarray(array(weight).transpose(axes))
            name = f"{weight.name}.transposed{len(made)}"
            value = ir.Value(name=name, const_value=ir.tensor(numbers, name=name))
            value.shape, value.type = ir.Shape(numbers.shape), weight.type
            graph.register_initializer(value)
            made[key] = value
        node.outputs[0].replace_all_uses_with(made[key])
        graph.remove(node, safe=True)
    if made:
        common.RemoveUnusedNodesPass()(model)


def _share_equal_initializers(model: ir.Model) -> None:
    """Store equal weights once; layers that share weights (ALBERT) got a folded copy each.

    onnx_ir's own pass cannot hash the transposed views that the exporter leaves.
    """
    first: dict[tuple[str, bytes], ir.Value] = {}
    for value in list(model.graph.initializers.values()):
        content = hashlib.sha256(np.ascontiguousarray(array(value)).data).digest()
        key = f"{value.dtype} {value.shape}", content
        if (kept := first.setdefault(key, value)) is not value and not value.is_graph_output():
            value.replace_all_uses_with(kept)
            del model.graph.initializers[str(value.name)]


# --- Reshape pairs that split the heads and join them again: the fused attention splits them itself


def _reshaped_twice(op: Any, x: Any, first: Any, second: Any) -> Any:
    return op.Reshape(op.Reshape(x, first), second, _outputs=["reshaped"])


def _is_restored(_: Any, x: ir.Value, reshaped: ir.Value, **__: Any) -> bool:
    return _same_shape(x, reshaped)


# --- Attention, including the three projections of its input


def _projected_attention(biased: bool) -> RewriteRule:
    def pattern(
        op: Any, x: Any, wq: Any, bq: Any, wk: Any, bk: Any, wv: Any, bv: Any, mask: Any, bias: Any
    ) -> Any:
        projected = [op.Add(op.MatMul(x, w), b) for w, b in ((wq, bq), (wk, bk), (wv, bv))]
        extra = (bias,) if biased else ()
        return op.MultiHeadAttention(
            *projected, None, mask, *extra, _domain=ORT, _outputs=["attended"]
        )

    return RewriteRule(pattern, _attention, _has_constant_projections)


def _has_constant_projections(_: Any, **values: ir.Value) -> bool:
    weights = [values[name] for name in ("wq", "wk", "wv")]
    biases = [values[name] for name in ("bq", "bk", "bv")]
    return all(_is_constant(w, 2) and w.shape == weights[0].shape for w in weights) and all(
        _is_constant(b, 1) for b in biases
    )


def _attention(op: Any, x: ir.Value, mask: ir.Value, attended: ir.Value, **values: Any) -> Any:
    weight = np.concatenate([array(values[name]) for name in ("wq", "wk", "wv")], axis=1)
    bias = np.concatenate([array(values[name]) for name in ("bq", "bk", "bv")])
    name = attended.name
    attributes = _node(attended).attributes
    position_bias = values.get("bias")
    extra = () if position_bias is None else (None, position_bias)
    return op.Attention(
        x,
        op.initializer(ir.tensor(weight, name=f"{name}.weight")),
        op.initializer(ir.tensor(bias, name=f"{name}.bias")),
        mask,
        *extra,
        num_heads=attributes["num_heads"].as_int(),
        scale=attributes["scale"].as_float(),
        _domain=ORT,
    )


# --- BiasGelu and, for the tanh form, FastGelu


def _biased_gelu(op: Any, x: Any, bias: Any) -> Any:
    return op.Gelu(op.Add(x, bias), _outputs=["gelu"])


def _bias_gelu(op: Any, x: ir.Value, bias: ir.Value, gelu: ir.Value, **_: Any) -> Any:
    tanh = _node(gelu).attributes.get_string("approximate", "none") == "tanh"
    fused = op.FastGelu if tanh else op.BiasGelu
    return fused(x, bias, _domain=ORT)


# --- SkipLayerNormalization: the sum of a layer's output, its bias and the residual, normalised


def _normalised_sum(op: Any, x: Any, bias: Any, skip: Any, gamma: Any, beta: Any) -> Any:
    return op.LayerNormalization(
        op.Add(op.Add(x, bias), skip), gamma, beta, axis=-1, _outputs=["normalised"]
    )


def _is_residual(
    _: Any, x: ir.Value, bias: ir.Value, skip: ir.Value, normalised: ir.Value, **__: Any
) -> bool:
    same = _same_shape(x, skip) and _same_shape(x, normalised)
    return _is_constant(bias, 1) and same and x.shape is not None and len(x.shape) == 3


def _skip_layer_norm(op: Any, normalised: ir.Value, **values: Any) -> Any:
    inputs = [values[name] for name in ("x", "skip", "gamma", "beta", "bias")]
    return op.SkipLayerNormalization(*inputs, epsilon=_epsilon(normalised), _domain=ORT)


# --- EmbedLayerNormalization: word, position and, in some families, type embeddings


def _embeddings(typed: bool) -> RewriteRule:
    def pattern(
        op: Any,
        ids: Any,
        words: Any,
        types: Any,
        kinds: Any,
        positions: Any,
        places: Any,
        gamma: Any,
        beta: Any,
    ) -> Any:
        embedded = op.Gather(words, ids, axis=0)
        if typed:
            embedded = op.Add(embedded, op.Gather(kinds, types, axis=0))
        embedded = op.Add(embedded, op.Gather(places, positions, axis=0))
        return op.LayerNormalization(embedded, gamma, beta, axis=-1, _outputs=["normalised"])

    return RewriteRule(pattern, _embed_layer_norm, _embeds_input)


def _embeds_input(
    _: Any, ids: ir.Value, positions: ir.Value, types: ir.Value | None = None, **__: Any
) -> bool:
    by_token = types is None or _same_shape(types, ids)
    known = positions.shape is not None and len(positions.shape) == 2
    return ids.name == "input_ids" and by_token and known


def _embed_layer_norm(op: Any, normalised: ir.Value, **values: Any) -> Any:
    def narrow(indices: ir.Value | None) -> Any:  # the operator takes only int32
        return None if indices is None else op.Cast(indices, to=ir.DataType.INT32)

    ids, types, positions = (narrow(values.get(x)) for x in ("ids", "types", "positions"))
    weights = [values.get(name) for name in ("words", "places", "kinds", "gamma", "beta")]
    epsilon = _epsilon(normalised)
    embedded, _lengths = op.EmbedLayerNormalization(
        ids, types, *weights, None, positions, epsilon=epsilon, _domain=ORT, _outputs=2
    )
    return embedded


# --- helpers of the checks


def _same_shape(a: ir.Value, b: ir.Value) -> bool:
    """Tell whether two values certainly have the same dimensions, by number or by name."""
    if a.shape is None or b.shape is None:
        return False
    known = all(isinstance(dim, int) or dim.value is not None for dim in a.shape)
    return known and a.shape == b.shape


def _is_constant(value: ir.Value, rank: int) -> bool:
    return value.const_value is not None and len(value.const_value.shape) == rank


def _node(value: ir.Value) -> ir.Node:
    node = value.producer()
    assert node is not None  # it is the output of a matched node
    return node


def _epsilon(normalised: ir.Value) -> float:
    return float(_node(normalised).attributes.get_float("epsilon", 1e-5))


def _commuted(*rules: RewriteRule) -> list[RewriteRule]:
    """Return the rules in both orders of every addition in them."""
    return [variant for rule in rules for variant in rule.commute()]


_STAGES = (
    [RewriteRule(_reshaped_twice, lambda op, x, **_: op.Identity(x), _is_restored)],
    _commuted(_projected_attention(biased=False), _projected_attention(biased=True)),
    _commuted(RewriteRule(_biased_gelu, _bias_gelu, lambda _, bias, **__: _is_constant(bias, 1))),
    _commuted(_embeddings(typed=True), _embeddings(typed=False)),
    _commuted(RewriteRule(_normalised_sum, _skip_layer_norm, _is_residual)),
)
