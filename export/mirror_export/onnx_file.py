"""Writing an ONNX file weight by weight.

Serialising a model in one piece holds all of its weights twice more in memory. A protobuf message
is a sequence of (tag, length, content), so the weights can be written as they come, straight from
where PyTorch holds them, once the lengths are known. The file is the usual one.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir

__all__ = ["write_onnx"]

# Field number and wire type (2: a length follows) of ModelProto.graph, GraphProto.initializer
# and TensorProto.raw_data in onnx.proto.
_GRAPH, _INITIALIZER, _RAW_DATA = (bytes([number << 3 | 2]) for number in (7, 5, 9))
# What a protobuf message may hold; larger models keep their weights in a file beside.
_LIMIT = 2**31 - 1


def write_onnx(model: ir.Model, path: Path) -> None:
    """Write `model` as `path`, holding one weight at a time in memory beside the model itself.

    A model over 2 GB gets its weights in a second file, `path` with `_data` at the end.

    Raises:
        OSError: the disk is full.
    """
    weights = list(model.graph.initializers.values())
    if sum(_tensor(value).nbytes for value in weights) > 0.99 * _LIMIT:
        ir.save(model, path, external_data=f"{path.name}_data")
        return
    head, graph = _without_weights(model)
    starts = [_start(value) for value in weights]
    sizes = [len(s) + _tensor(v).nbytes for s, v in zip(starts, weights, strict=True)]
    fields = [_INITIALIZER + _varint(size) + s for s, size in zip(starts, sizes, strict=True)]
    length = len(graph) + sum(
        len(field) + _tensor(value).nbytes for field, value in zip(fields, weights, strict=True)
    )
    with path.open("wb") as file:
        file.write(head + _GRAPH + _varint(length) + graph)
        for field, value in zip(fields, weights, strict=True):
            file.write(field)
            file.write(_content(value))


def _without_weights(model: ir.Model) -> tuple[bytes, bytes]:
    """The serialised model but its graph, and the serialised graph but its weights."""
    graph = model.graph
    kept = dict(graph.initializers)
    graph.initializers.clear()
    try:
        proto = ir.to_proto(model)
    finally:
        graph.initializers.update(kept)
    body: bytes = proto.graph.SerializeToString()
    proto.ClearField("graph")
    return proto.SerializeToString(), body


def _start(value: ir.Value) -> bytes:
    """A serialised TensorProto up to its numbers."""
    tensor = _tensor(value)
    proto = onnx.TensorProto(
        name=value.name, data_type=int(tensor.dtype), dims=tensor.shape.numpy()
    )
    start: bytes = proto.SerializeToString()
    return start + _RAW_DATA + _varint(tensor.nbytes)


def _content(value: ir.Value) -> memoryview:
    """The numbers, little-endian, row by row."""
    array = np.ascontiguousarray(_tensor(value).numpy())
    return array.astype(array.dtype.newbyteorder("<"), copy=False).data


def _tensor(value: ir.Value) -> ir.TensorProtocol:
    assert value.const_value is not None  # an initializer has one
    return value.const_value


def _varint(number: int) -> bytes:
    """A number as protobuf writes lengths: 7 bits a byte, the lowest first."""
    groups = [number >> shift & 127 for shift in range(0, max(number.bit_length(), 1), 7)]
    return bytes([group | 128 for group in groups[:-1]] + groups[-1:])
