"""Read nodes and weights of an ONNX file without the package `onnx`; weights stay mapped.

The file is a protobuf message; https://protobuf.dev/programming-guides/encoding describes the
format, and onnx.proto the numbers of the fields.
"""

from __future__ import annotations

import math
import mmap
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from mirror_rt.errors import BundleError

Floats = npt.NDArray[np.float32]
Pair = tuple[Floats, Floats]
_TYPES: dict[int, type[np.generic]] = {1: np.float32, 6: np.int32, 7: np.int64, 9: np.bool_}


class UnsupportedGraphError(BundleError):
    """The graph is not one that the native engine can run."""


@dataclass(frozen=True, slots=True)
class Node:
    """A node of a graph."""

    op_type: str
    inputs: list[str]
    outputs: list[str]
    attributes: dict[str, Any]

    def input(self, number: int) -> str:
        """Return the name of an input; "" if it is left out."""
        return self.inputs[number] if number < len(self.inputs) else ""


@dataclass(slots=True)
class _Tensor:
    dims: list[int] = field(default_factory=list)
    data_type: int = 0
    raw: memoryview | None = None
    external: dict[str, str] = field(default_factory=dict)


class Graph:
    """The nodes of an ONNX file, and its weights as arrays that are mapped from it.

    Args:
        path: the file.

    Raises:
        BundleError: the file is not a whole ONNX graph.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._maps: dict[Path, mmap.mmap] = {}
        self.nodes: list[Node] = []
        self._tensors: dict[str, _Tensor] = {}
        try:
            self._read(memoryview(self._map(path)))
        except (_DamagedError, UnicodeDecodeError) as error:
            raise BundleError(f"{path} is not a whole ONNX file: {error}") from None
        self.producers = {name: node for node in self.nodes for name in node.outputs if name}

    def holds(self, name: str) -> bool:
        """Return whether `name` is a weight."""
        return name in self._tensors

    def type_and_shape(self, name: str) -> tuple[int, list[int]]:
        """Return ONNX's number of a weight's type, and its shape; (0, []) if it is no weight."""
        tensor = self._tensors.get(name, _Tensor())
        return tensor.data_type, tensor.dims

    def weight(self, name: str) -> npt.NDArray[Any]:
        """Return a weight, without copying it where it is aligned.

        Raises:
            BundleError: there is no such weight, or its numbers cannot be read.
        """
        tensor = self._tensors.get(name)
        kind = None if tensor is None else _TYPES.get(tensor.data_type)
        if tensor is None or kind is None:
            raise BundleError(f"{self.path}: weight {name!r} is absent or of another type")
        raw = self._external(tensor) if tensor.external else tensor.raw
        size = math.prod(tensor.dims) * np.dtype(kind).itemsize
        if raw is None or len(raw) != size or min(tensor.dims, default=0) < 0:
            raise BundleError(f"{self.path}: weight {name!r} has not the bytes of its shape")
        array = np.frombuffer(raw, kind).reshape(tensor.dims)
        return array if array.flags.aligned else array.copy()

    def release(self) -> None:
        """Tell the system that the pages that were read are not needed soon."""
        if hasattr(mmap, "MADV_DONTNEED"):
            for mapped in self._maps.values():
                mapped.madvise(mmap.MADV_DONTNEED)

    def _map(self, path: Path) -> mmap.mmap:
        if path not in self._maps:
            if path.exists() and not path.is_file():  # reading a pipe would wait forever
                raise BundleError(f"{path} is not a regular file")
            try:
                with path.open("rb") as file:
                    self._maps[path] = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            except (OSError, ValueError) as error:
                raise BundleError(f"cannot read {path}: {error}") from error
        return self._maps[path]

    def _external(self, tensor: _Tensor) -> memoryview:
        """Return the bytes of a weight in a file beside this one."""
        location = tensor.external.get("location", "")
        try:
            offset, length = (int(tensor.external[key]) for key in ("offset", "length"))
        except (KeyError, ValueError):
            raise BundleError(f"{self.path}: a weight in another file has no place") from None
        if location != Path(location).name or offset < 0 or length < 0:
            raise BundleError(f"{self.path}: a weight is at {location!r}, outside the bundle")
        return memoryview(self._map(self.path.parent / location))[offset : offset + length]

    def _read(self, model: memoryview) -> None:
        for number, graph in _fields(model):
            if number != 7:
                continue
            for part, value in _fields(_bytes(graph)):
                if part == 1:
                    self.nodes.append(_node(_bytes(value)))
                elif part == 5:
                    name, tensor = _tensor(_bytes(value))
                    self._tensors[name] = tensor


def made(graph: Graph, name: str, *op_types: str, behind: tuple[str, ...] = ()) -> Node:
    """Return the operator of a type given that makes `name`, behind those of types `behind`."""
    node = graph.producers.get(name)
    for _ in graph.nodes:  # there may be a circle
        if node is None or node.op_type not in behind:
            break
        node = graph.producers.get(node.input(0))
    if node is None or node.op_type not in op_types:
        found = f"{'nothing' if node is None else node.op_type} makes {name!r}"
        raise UnsupportedGraphError(f"{graph.path}: {found}, expected {' or '.join(op_types)}")
    return node


def expect(graph: Graph, condition: bool, what: str) -> None:
    """Refuse a graph with `what` of another form, unless the condition holds."""
    if not condition:
        raise UnsupportedGraphError(
            f"{graph.path}: {what} of another form than the engine computes"
        )


def floats(graph: Graph, name: str) -> Floats:
    """Return a weight, which must be float32."""
    array = graph.weight(name)
    expect(graph, array.dtype == np.float32, f"weight {name} ({array.dtype})")
    return array


def pair(graph: Graph, weight: str, bias: str = "") -> Pair:
    """Return a weight and its bias, which is zero without a name."""
    found = floats(graph, weight)
    return found, floats(graph, bias) if bias else np.zeros(found.shape[-1], np.float32)


class _DamagedError(ValueError):
    """Raised where a message ends too early or has a wrong type."""


def _fields(message: memoryview) -> Iterator[tuple[int, int | float | memoryview]]:
    """Yield number and value of every field of a message."""
    place = 0
    while place < len(message):
        tag, place = _varint(message, place)
        kind = tag & 7
        value: int | float | memoryview
        if kind == 0:
            value, place = _varint(message, place)
        else:
            length = {1: 8, 5: 4}.get(kind)
            if kind == 2:
                length, place = _varint(message, place)
            if length is None or place + length > len(message):
                raise _DamagedError(f"a field of {length} bytes at {place} of {len(message)}")
            value = message[place : place + length]
            place += length
            if kind == 5:
                value = struct.unpack("<f", value)[0]
        yield tag >> 3, value


def _varint(message: memoryview, place: int) -> tuple[int, int]:
    number = shift = 0
    while place < len(message) and shift < 64:
        byte = message[place]
        place += 1
        number |= (byte & 127) << shift
        if byte < 128:
            return number, place
        shift += 7
    raise _DamagedError(f"a number at {place} does not end")


def _bytes(value: int | float | memoryview) -> memoryview:
    if not isinstance(value, memoryview):
        raise _DamagedError("a number in place of a message")
    return value


def _text(value: int | float | memoryview) -> str:
    return str(_bytes(value), "utf-8")


def _node(message: memoryview) -> Node:
    node = Node("", [], [], {})
    op_type = ""
    for number, value in _fields(message):
        if number == 1:
            node.inputs.append(_text(value))
        elif number == 2:
            node.outputs.append(_text(value))
        elif number == 4:
            op_type = _text(value)
        elif number == 5:
            parts = dict(_fields(_bytes(value)))
            found = parts.get(2, parts.get(3, parts.get(4)))
            node.attributes[_text(parts.get(1, 0))] = (
                str(found, "utf-8") if isinstance(found, memoryview) else found
            )
    return Node(op_type, node.inputs, node.outputs, node.attributes)


def _tensor(message: memoryview) -> tuple[str, _Tensor]:
    name, tensor = "", _Tensor()
    for number, value in _fields(message):
        if number == 1:
            tensor.dims += _dims(value)
        elif number == 2 and isinstance(value, int):
            tensor.data_type = value
        elif number == 8:
            name = _text(value)
        elif number == 9:
            tensor.raw = _bytes(value)
        elif number == 13:
            entry = dict(_fields(_bytes(value)))
            tensor.external[_text(entry.get(1, 0))] = _text(entry.get(2, 0))
    return name, tensor


def _dims(value: int | float | memoryview) -> list[int]:
    """Return the sizes of a field, which holds one, or several without tags between them."""
    if isinstance(value, int):
        return [value]
    packed, sizes, place = _bytes(value), [], 0
    while place < len(packed):
        size, place = _varint(packed, place)
        sizes.append(size)
    return sizes
