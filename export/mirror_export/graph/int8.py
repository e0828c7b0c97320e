"""Quantize to int8, with a scale for every token vector and for every column of a weight.

A token vector is divided by its largest magnitude and rounded to 8 bits. So the vector of a text
does not depend on the other texts of the batch, and is rounded several times finer than by
`onnxruntime.quantization.quantize_dynamic`, which has one scale for the whole batch. Weights use
7 of their 8 bits, because processors without VNNI add two 8-bit products in 16 bits, which would
overflow otherwise.
The table of word embeddings has a scale for every row.
"""

from __future__ import annotations

import bisect
import logging
from collections.abc import Collection

import numpy as np
import numpy.typing as npt
import onnx_ir as ir
from onnx_ir.passes import common

from mirror_export.graph.graph_edit import (
    ORT,
    array,
    attention_parts,
    by_rows,
    constant,
    converted,
    is_dense,
    is_weight,
    layer_name,
    replace,
    split_embeddings,
)
from mirror_export.graph.probe import Probe, run_batch
from mirror_export.parity import Gate
from mirror_rt.encoding.batch_encoder import Vectors

logger = logging.getLogger("mirror_export")

# The name of the input that `quantize(switches=True)` adds to the graph.
SWITCH = "int8_layers"
# 2 * 255 * 64 < 2^15: the sum of two products fits into 16 bits.
_WEIGHT_MAX = 64
_ROW_MAX = 127
# Activations are uint8 around 128, a form for which every processor has a fast product.
_ZERO = 128
_TINY = np.float32(1e-30)
# Each layer alone is measured over one batch in six, which is enough to rank the layers.
_EVERY = 6
Floats = npt.NDArray[np.float32]


def quantize(model: ir.Model, keep: Collection[str] = (), *, switches: bool = False) -> list[str]:
    """Quantize a float32 graph's dense layers, but for `keep`, and word embeddings in place.

    With `switches`, every layer is kept in both precisions; the graph gets an input `SWITCH`, bool
    [layers], that chooses int8 (true) or float32 for each. Return the names of these layers.
    """
    graph = model.graph
    split_embeddings(graph)
    for node in [node for node in graph if node.op_type == "Attention"]:
        if layer_name(node) not in keep:
            _split_attention(graph, node)
    nodes = [node for node in graph if is_dense(node) or _is_word_table(node)]
    names = {node: str(node.metadata_props.get("layer") or layer_name(node)) for node in nodes}
    layers = [name for name in dict.fromkeys(names.values()) if name not in keep]
    switch = None
    if switches:
        kind, shape = ir.TensorType(ir.DataType.BOOL), ir.Shape([len(layers)])
        switch = ir.Value(name=SWITCH, type=kind, shape=shape)
        graph.inputs.append(switch)
    for node, name in names.items():
        if name in layers:
            tape = ir.tape.Tape()
            rounded = _rounded_dense if is_dense(node) else _rounded_table
            result = rounded(graph, node, tape)
            if switch is None:
                replace(graph, node, tape, result)
            else:
                _choose(graph, node, tape, result, (switch, layers.index(name)))
    common.RemoveUnusedNodesPass()(model)
    return layers


def sensitive_layers(
    model: ir.Model, layers: list[str], probe: Probe, expected: Vectors, gate: Gate
) -> list[str]:
    """Find layers that, kept in float32, bring the rest of the graph within the gate.

    First each layer alone is kept in float32, over some of the texts, which ranks the layers. Then
    as many as it takes are kept, the most helpful first; bisection over all texts finds their
    number. Since a text's vector does not depend on the batch, the loss measured here is that of
    the graph without switches. The result does not depend on the speed of the machine.

    The graph has a switch for each of the `layers`, as `quantize` makes them. `expected` are
    PyTorch's unit vectors of the probe's texts, float32 [n, D]; only the gate's cosines count.
    """
    session = probe.session(model)
    exact = expected.astype(np.float64)

    def loss(kept: Collection[int], every: int = 1) -> float:
        """Measure how far cosines are from 1, as a fraction of the gate's allowance.

        The layers `kept` are in float32; one batch in `every` is run.
        """
        switch = np.ones(len(layers), bool)
        switch[list(kept)] = False
        cosines = []
        for batch, rows in list(zip(probe.batches, probe.rows, strict=True))[::every]:
            (found,) = run_batch(session, batch, ["sentence_embedding"], **{SWITCH: switch})
            cosines.append(np.einsum("nd,nd->n", exact[rows], found))
        cosine = np.concatenate(cosines)
        mean = (1 - cosine.mean()) / (1 - (gate.mean_cosine or 0))
        worst = (1 - cosine.min()) / (1 - (gate.min_cosine or 0))
        return float(np.nan_to_num(max(mean, worst), nan=np.inf))

    logger.info("int8: loss %.2f of the allowed one; looking for sensitive layers", loss(()))
    alone = [loss((i,), _EVERY) for i in range(len(layers))]
    order = sorted(range(len(layers)), key=alone.__getitem__)
    count = bisect.bisect_left(range(len(order)), True, key=lambda n: loss(order[:n]) <= 1)
    return [layers[i] for i in sorted(order[:count])]


def _is_word_table(node: ir.Node) -> bool:
    """Tell whether a node looks up the input ids in a table."""
    if node.op_type != "Gather" or not is_weight(node.inputs[0], 2):
        return False
    ids = node.inputs[1]
    producer = None if ids is None else ids.producer()
    if producer is not None and producer.op_type == "Cast":
        ids = producer.inputs[0]
    return ids is not None and ids.name == "input_ids"


def _split_attention(graph: ir.Graph, node: ir.Node) -> None:
    """Split a fused attention into its projections and the attention proper."""
    (hidden, weight, bias, mask), position_bias, attributes = attention_parts(node)
    tape = ir.tape.Tape()
    projected = tape.op("MatMul", [hidden, weight], metadata_props={"layer": layer_name(node)})
    projected.dtype = ir.DataType.FLOAT
    parts = tape.op_multi_out("Split", [projected], {"axis": -1, "num_outputs": 3}, num_outputs=3)
    inputs = [*parts, bias, mask, position_bias]
    replace(graph, node, tape, tape.op("MultiHeadAttention", inputs, attributes, domain=ORT))


def _rounded_dense(graph: ir.Graph, node: ir.Node, tape: ir.tape.Tape) -> ir.Value:
    hidden, weight = node.inputs
    assert hidden is not None
    assert weight is not None
    scale = _scale(array(weight), 0, _WEIGHT_MAX)
    name, kind = f"{weight.name}.int8", ir.DataType.INT8
    integers = converted(graph, weight, name, lambda rows: np.rint(rows / scale), kind)
    scales = constant(graph, f"{weight.name}.scale", scale)
    rounded, largest = _rounded_rows(graph, hidden, tape)
    step, zero = _step(graph), _zero(graph)
    product = tape.op("MatMulIntegerToFloat", [rounded, integers, step, scales, zero], domain=ORT)
    return tape.op("Mul", [product, largest])


def _rounded_rows(
    graph: ir.Graph, hidden: ir.Value, tape: ir.tape.Tape
) -> tuple[ir.Value, ir.Value]:
    """Return the vectors as uint8 and their magnitudes, computed once for all layers they feed."""
    for user, _ in hidden.uses():
        if user.op_type == "Div" and user.metadata_props.get("rows") == "rounded":
            (rounded,) = (following for following, _ in user.outputs[0].uses())
            assert user.inputs[1] is not None
            return rounded.outputs[0], user.inputs[1]
    axis = constant(graph, "int8.axis", np.array([-1]))
    largest = tape.op("ReduceMax", [tape.op("Abs", [hidden]), axis], {"keepdims": 1})
    largest = tape.op("Max", [largest, constant(graph, "int8.tiny", np.array(_TINY))])
    unit = tape.op("Div", [hidden, largest], metadata_props={"rows": "rounded"})
    return tape.op("QuantizeLinear", [unit, _step(graph), _zero(graph)]), largest


def _rounded_table(graph: ir.Graph, node: ir.Node, tape: ir.tape.Tape) -> ir.Value:
    table, ids = node.inputs
    assert table is not None
    name, kind = f"{table.name}.int8", ir.DataType.INT8
    integers = converted(graph, table, name, lambda rows: np.rint(rows / _row_scale(rows)), kind)
    scale = by_rows(table, _row_scale, np.float32, columns=1)
    scales = constant(graph, f"{table.name}.scale", scale)
    rows = tape.op("Cast", [tape.op("Gather", [integers, ids])], {"to": ir.DataType.FLOAT})
    return tape.op("Mul", [rows, tape.op("Gather", [scales, ids])])


def _choose(
    graph: ir.Graph,
    node: ir.Node,
    tape: ir.tape.Tape,
    result: ir.Value,
    switch: tuple[ir.Value, int],
) -> None:
    """Keep a node beside its quantized form; an element of the switch chooses between them."""
    exact = node.outputs[0]
    users = list(exact.uses())
    where = constant(graph, f"{SWITCH}.{switch[1]}", np.array(switch[1]))
    chosen = tape.op("Where", [tape.op("Gather", [switch[0], where]), result, exact])
    chosen.type, chosen.shape = exact.type, exact.shape
    graph.insert_after(node, tape.nodes)
    for user, i in users:
        user.replace_input_with(i, chosen)


def _step(graph: ir.Graph) -> ir.Value:
    return constant(graph, "int8.step", np.array(1 / _ROW_MAX, np.float32))


def _zero(graph: ir.Graph) -> ir.Value:
    return constant(graph, "int8.zero", np.array(_ZERO, np.uint8))


def _row_scale(rows: Floats) -> Floats:
    return _scale(rows, 1, _ROW_MAX)[:, None]


def _scale(weight: Floats, axis: int, most: int) -> Floats:
    largest = np.maximum(weight.max(axis), -weight.min(axis))
    return np.asarray(np.maximum(largest / most, _TINY))
