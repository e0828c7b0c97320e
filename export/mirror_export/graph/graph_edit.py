"""Helpers shared by the passes that edit a written graph."""

from __future__ import annotations

import mmap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from mirror_rt.system import release_pages

Compute = Callable[[npt.NDArray[Any]], npt.NDArray[Any]]
# The domain of onnxruntime's own operators.
ORT = "com.microsoft"
# How many numbers of a weight `by_rows` processes at once.
_CHUNK = 2**22


def source(path: Path) -> Path:
    """Return where `write_onnx` puts a copy of the graph `path` that reads its large weights."""
    return path.with_suffix(".source")


def read_graph(path: Path) -> ir.Model:
    """Read a graph that `write_onnx` wrote; if possible its large weights stay in the file."""
    return ir.load(source(path) if source(path).is_file() else path)


def array(value: ir.Value) -> npt.NDArray[Any]:
    """Return the numbers of a weight, mapped from its file."""
    assert value.const_value is not None  # callers pass weights only
    return value.const_value.numpy()


def share_weights(model: ir.Model, path: Path) -> None:
    """Let weights refer to those of the same name that the graph `path` keeps in a file."""
    stored = read_graph(path).graph.initializers
    for name, value in model.graph.initializers.items():
        if name in stored and isinstance(stored[name].const_value, ir.ExternalTensor):
            value.const_value = stored[name].const_value


def by_rows(
    value: ir.Value, compute: Compute, dtype: npt.DTypeLike, columns: int | None = None
) -> npt.NDArray[Any]:
    """Compute an array from a weight, some rows at a time.

    An embedding table may be most of a model, so its memory pages are released as they are done.
    `compute` maps some rows of the weight to the same rows of the result. `columns` is the number
    of its columns; None for the shape of the weight.
    """
    weight = array(value)
    result = np.empty(weight.shape if columns is None else (len(weight), columns), dtype)
    rows = max(1, _CHUNK // max(1, weight[:1].size))
    for start in range(0, len(weight), rows):
        result[start : start + rows] = compute(weight[start : start + rows])
        file = getattr(value.const_value, "raw", None)
        if isinstance(file, mmap.mmap):
            release_pages([file])
    return result


def constant(graph: ir.Graph, name: str, numbers: npt.NDArray[Any]) -> ir.Value:
    """Return the weight `name` of the graph, adding it if there is none of that name."""
    return _added(graph, ir.tensor(numbers, name=name))


def converted(
    graph: ir.Graph, weight: ir.Value, name: str, compute: Compute, dtype: ir.DataType
) -> ir.Value:
    """Return the weight `name`, which `by_rows` computes of another only when it is written."""
    return _added(
        graph,
        ir.LazyTensor(
            lambda: ir.tensor(by_rows(weight, compute, dtype.numpy())),
            dtype,
            ir.Shape(array(weight).shape),
            name=name,
        ),
    )


def _added(graph: ir.Graph, tensor: ir.TensorProtocol) -> ir.Value:
    name = str(tensor.name)
    if name not in graph.initializers:
        kind, shape = ir.TensorType(tensor.dtype), ir.Shape(tensor.shape.numpy())
        value = ir.Value(name=name, const_value=tensor, shape=shape, type=kind)
        graph.register_initializer(value)
    return graph.initializers[name]


def attention_parts(
    node: ir.Node,
) -> tuple[list[ir.Value | None], ir.Value | None, dict[str, ir.Attr]]:
    """Return an Attention's hidden states, weight, bias and mask; position bias; and attributes."""
    position_bias = node.inputs[5] if len(node.inputs) > 5 else None
    attributes = {name: node.attributes[name] for name in ("num_heads", "scale")}
    return list(node.inputs[:4]), position_bias, attributes


def replace(graph: ir.Graph, node: ir.Node, tape: ir.tape.Tape, result: ir.Value) -> None:
    """Replace `node` by the nodes of `tape`, and its first output by `result`."""
    ir.convenience.replace_nodes_and_values(
        graph, node, [node], tape.nodes, node.outputs[:1], [result]
    )


def insert_behind(graph: ir.Graph, value: ir.Value, node: ir.Node, old_name: str) -> None:
    """Insert `node`, which reads `value` first, between it and all others that read it.

    The node's output takes over the name of the value, which is called `old_name` from then on.
    """
    producer = value.producer()
    assert producer is not None  # callers pass no inputs of the graph
    result = node.outputs[0]
    result.type, result.shape = value.type, value.shape
    name = value.name
    value.replace_all_uses_with(result, replace_graph_outputs=True)
    node.replace_input_with(0, value)
    value.name, result.name = old_name, name
    graph.insert_after(producer, node)


def is_weight(value: ir.Value | None, rank: int) -> bool:
    """Tell whether a value is a float32 weight with `rank` dimensions."""
    tensor = None if value is None else value.const_value
    return tensor is not None and len(tensor.shape) == rank and tensor.dtype == ir.DataType.FLOAT


def is_dense(node: ir.Node) -> bool:
    """Tell whether a node multiplies token vectors (not the pooled vector) by a weight matrix."""
    if node.op_type != "MatMul" or not is_weight(node.inputs[1], 2):
        return False
    shape = None if node.inputs[0] is None else node.inputs[0].shape
    return shape is not None and len(shape) > 2


def layer_name(node: ir.Node) -> str:
    """Name a layer in a report after one of its parameters that kept its name.

    The exporter renames weights that it transposes, but not the bias, an input of this node or the
    next.
    """
    if node.op_type == "Attention":
        return f"attention ({node.outputs[0].name})"
    following = [user for user, _ in node.outputs[0].uses()]
    for value in (value for each in (node, *following) for value in each.inputs):
        if value is not None and value.const_value is not None:
            name = str(value.name)
            if name.endswith((".bias", ".weight")) and "norm" not in name.lower():
                return name.rpartition(".")[0].removeprefix("encoder.")
    return str(node.outputs[0].name)


def split_embeddings(graph: ir.Graph) -> None:
    """Split EmbedLayerNormalization, which would force one precision on its tables and norm."""
    for node in [node for node in graph if node.op_type == "EmbedLayerNormalization"]:
        inputs = [*node.inputs, *[None] * (9 - len(node.inputs))]
        ids, types, words, places, kinds, gamma, beta, _, positions = inputs
        tape = ir.tape.Tape()
        total = tape.op("Gather", [words, ids])
        for table, indices in ((places, positions), (kinds, types)):
            if table is not None:
                total = tape.op("Add", [total, tape.op("Gather", [table, indices])])
        options = {"axis": -1, "epsilon": node.attributes.get_float("epsilon", 1e-12)}
        normalised = tape.op("LayerNormalization", [total, gamma, beta], options)
        replace(graph, node, tape, normalised)
