"""Write an ONNX file weight by weight, and beside it a small graph that maps those weights.

Serialising a model in one piece holds two more copies of all its weights in memory. But a protobuf
message is a sequence of (tag, length, content), so once the lengths are known the weights can be
written one after the other, straight from where PyTorch holds them. The result is an ordinary file.

onnxruntime copies the weights out of such a file, whereas it maps weights that are external data
into memory, which loads faster and is shared by processes. So a second, small file holds the graph
and names the bytes of the first file as its external data. In this second graph
SkipLayerNormalization is split into parts again, because on a CPU onnxruntime's operator adds
number by number and is slower than Add and LayerNormalization.
"""

from __future__ import annotations

from pathlib import Path
from typing import BinaryIO, NamedTuple

import numpy as np
import onnx
import onnx_ir as ir

from mirror_export.graph.graph_edit import replace, share_weights, source
from mirror_rt.bundle.manifest import Layout

# Field number and wire type (2: a length follows) of ModelProto.graph, GraphProto.initializer,
# TensorProto.doc_string and .raw_data in onnx.proto.
_GRAPH, _INITIALIZER, _DOC, _RAW_DATA = (bytes([number << 3 | 2]) for number in (7, 5, 12, 9))
# The most bytes of a protobuf message; larger models keep their weights in a separate file.
_LIMIT = 2**31 - 1
# Weights of at least _MAPPED_BYTES are mapped, at offsets that are multiples of _ALIGNMENT.
_MAPPED_BYTES = 65_536
_ALIGNMENT = 64
# Every length is written in as many bytes as the largest needs, so that the first can be filled in.
_VARINT_BYTES = 5


class Placed(NamedTuple):
    """A weight of a graph that was written: its numbers, their file, and where they are there."""

    tensor: ir.TensorProtocol
    file: Path
    offset: int


def write_onnx(model: ir.Model, path: Path) -> list[Placed]:
    """Write `model` to `path`, holding one weight at a time in memory beside the model itself.

    A model over 2 GB gets its weights in a second file, `path` with `_data` at the end. Any other
    model gets a second graph, `Layout.mapped(path)`, which reads its large weights from `path`,
    and until `remove_sources` is called a third, `source(path)`, to derive others from. Return
    where the weights are.
    """
    weights = list(model.graph.initializers.values())
    if sum(_tensor(value).nbytes for value in weights) > 0.99 * _LIMIT:
        beside = path.with_name(f"{path.name}_data")
        ir.save(model, path, external_data=beside.name)
        saved = [value.const_value for value in ir.load(path).graph.initializers.values()]
        return [Placed(one, beside, one.offset or 0) for one in saved
                if isinstance(one, ir.ExternalTensor)]  # fmt: skip
    proto = _without_weights(model)
    with path.open("wb") as file:
        offsets = _write(file, proto, weights)
    for value, offset in zip(weights, offsets, strict=True):
        proto.graph.initializer.append(_mapped(value, path.name, offset))
    source(path).write_bytes(proto.SerializeToString())
    mapped = ir.from_proto(proto)
    _split_skip_norms(mapped.graph)
    ir.save(mapped, Layout.mapped(str(path)))
    return [
        Placed(_tensor(value), path, offset) for value, offset in zip(weights, offsets, strict=True)
    ]


def write_sharing(model: ir.Model, path: Path, weights: Path | None) -> list[Placed]:
    """Write `model` with the large weights that the graph `weights` has in a file; None for all.

    Return where those are that it has itself.
    """
    if weights is None:
        return write_onnx(model, path)
    share_weights(model, weights)
    ir.save(model, path)
    return []


def remove_sources(folder: Path) -> None:
    """Remove the files that are only needed to derive graphs."""
    for path in folder.glob("*.source"):
        path.unlink()


def _split_skip_norms(graph: ir.Graph) -> None:
    """Replace SkipLayerNormalization by Add and LayerNormalization, except on a GPU."""
    if any(node.op_type.startswith("Packed") for node in graph):
        return  # these run on a GPU
    for node in [node for node in graph if node.op_type == "SkipLayerNormalization"]:
        hidden, skip, gamma, beta, bias = node.inputs  # by graph/fusion.py, which gives all
        tape = ir.tape.Tape()
        total = tape.op("Add", [tape.op("Add", [hidden, bias]), skip])
        options = {"axis": -1, "epsilon": node.attributes.get_float("epsilon")}
        replace(graph, node, tape, tape.op("LayerNormalization", [total, gamma, beta], options))


def _write(file: BinaryIO, proto: onnx.ModelProto, weights: list[ir.Value]) -> list[int]:
    """Write the graph and its weights; return the offset of the numbers of each weight."""
    graph = proto.graph.SerializeToString()
    rest = onnx.ModelProto()
    rest.CopyFrom(proto)
    rest.ClearField("graph")
    file.write(rest.SerializeToString() + _GRAPH)
    start = file.tell()
    file.write(_varint(0) + graph)
    offsets = []
    for value in weights:
        file.write(_field(value, file.tell()))
        offsets.append(file.tell())
        file.write(_content(value))
    length = file.tell() - start - _VARINT_BYTES
    file.seek(start)
    file.write(_varint(length))
    return offsets


def _without_weights(model: ir.Model) -> onnx.ModelProto:
    graph = model.graph
    kept = dict(graph.initializers)
    graph.initializers.clear()
    try:
        return ir.to_proto(model)
    finally:
        graph.initializers.update(kept)


def _field(value: ir.Value, place: int) -> bytes:
    """Return the bytes of an initializer at offset `place` of the file, up to its numbers."""
    tensor = _tensor(value)
    end = _RAW_DATA + _varint(tensor.nbytes)
    # Tag and length of the initializer, then of a doc_string of spaces that aligns the numbers.
    before = 2 * (1 + _VARINT_BYTES) + len(_start(value)) + len(end)
    padding = -(place + before) % _ALIGNMENT
    content = _start(value) + _DOC + _varint(padding) + b" " * padding + end
    return _INITIALIZER + _varint(len(content) + tensor.nbytes) + content


def _start(value: ir.Value) -> bytes:
    """Return a serialised TensorProto without its numbers."""
    tensor = _tensor(value)
    start: bytes = onnx.TensorProto(
        name=value.name, data_type=int(tensor.dtype), dims=tensor.shape.numpy()
    ).SerializeToString()
    return start


def _mapped(value: ir.Value, location: str, offset: int) -> onnx.TensorProto:
    """Return a weight as external data in the file `location`; a small one with its numbers."""
    proto = onnx.TensorProto.FromString(_start(value))
    size = _tensor(value).nbytes
    if size < _MAPPED_BYTES:
        proto.raw_data = bytes(_content(value))
        return proto
    proto.data_location = onnx.TensorProto.EXTERNAL
    for key, entry in (("location", location), ("offset", offset), ("length", size)):
        proto.external_data.add(key=key, value=str(entry))
    return proto


def _content(value: ir.Value) -> memoryview:
    """Return the numbers of a weight, little-endian, row by row."""
    array = np.ascontiguousarray(_tensor(value).numpy())
    if array.dtype.kind == "V":  # numpy does not know bfloat16, and gives no view of its memory
        array = array.view(f"u{array.itemsize}")
    return array.astype(array.dtype.newbyteorder("<"), copy=False).data


def _tensor(value: ir.Value) -> ir.TensorProtocol:
    assert value.const_value is not None  # an initializer has one
    return value.const_value


def _varint(number: int) -> bytes:
    """Encode a number as a protobuf varint: 7 bits a byte, lowest first, `_VARINT_BYTES` long."""
    last = _VARINT_BYTES - 1
    groups = [number >> 7 * i & 127 | (128 if i < last else 0) for i in range(_VARINT_BYTES)]
    return bytes(groups)
