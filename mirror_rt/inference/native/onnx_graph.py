"""Read nodes and weights of an ONNX file without the package `onnx`; weights stay mapped.

The file is a protobuf message; https://protobuf.dev/programming-guides/encoding describes the
format, and onnx.proto the numbers of the fields.
"""

from __future__ import annotations

import math
import mmap
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from mirror_rt.errors import BundleError
from mirror_rt.inference.native.engine_model import (
    Floats,
    UnsupportedModelError,
    expect,
    short,
)
from mirror_rt.io.protobuf import (
    MOST_DIMENSIONS,
    DamagedError,
    Messages,
    as_bytes,
    as_sizes,
    as_text,
    as_texts,
)

_TYPES: dict[int, type[np.generic]] = {1: np.float32, 6: np.int32, 7: np.int64, 9: np.bool_}
# How many operators that only pass a value on may follow each other.
_MOST_BEHIND = 8


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


@dataclass(frozen=True, slots=True)
class _Tensor:
    dims: list[int]
    data_type: int
    raw: memoryview | None
    external: dict[str, str]


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
        self._asked: set[str] = set()  # the weights that were asked for, and their bytes
        self._asked_bytes = 0
        try:
            self._read(_Messages(), memoryview(self._map(path)))
        except (DamagedError, UnicodeDecodeError) as error:
            raise BundleError(f"{path} is not a whole ONNX file: {error}") from None
        self.producers = {name: node for node in self.nodes for name in node.outputs if name}

    def holds(self, name: str) -> bool:
        """Return whether `name` is a weight."""
        return name in self._tensors

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of a float32 weight, whose bytes are all there.

        Raises:
            BundleError: there is no such weight, or it has other bytes than its shape says.
        """
        kind, shape, _ = self._stored(name)
        expect(self, kind is np.float32, f"weight {short(name)} ({kind.__name__})")
        return shape

    def weight(self, name: str) -> npt.NDArray[Any]:
        """Return a weight, without copying it where it is aligned.

        Raises:
            BundleError: there is no such weight, or it has other bytes than its shape says.
        """
        kind, shape, raw = self._stored(name)
        array = np.frombuffer(raw, kind).reshape(shape)
        return array if array.flags.aligned else array.copy()

    def floats(self, name: str) -> Floats:
        """Return a weight, which must be float32."""
        self.shape(name)
        return self.weight(name)

    def _stored(self, name: str) -> tuple[type[np.generic], tuple[int, ...], memoryview]:
        """Return the type, the shape and the bytes of a weight."""
        tensor = self._tensors.get(name)
        kind = None if tensor is None else _TYPES.get(tensor.data_type)
        if tensor is None or kind is None:
            raise BundleError(f"{self.path}: weight {short(name)} is absent or of another type")
        raw = self._external(tensor) if tensor.external else tensor.raw
        size = math.prod(tensor.dims) * np.dtype(kind).itemsize
        if raw is None or len(raw) != size or size == 0:
            raise BundleError(f"{self.path}: weight {short(name)} has not the bytes of its shape")
        # Many weights may be said to lie at one place of a file, and each would be packed.
        if name not in self._asked:
            self._asked.add(name)
            self._asked_bytes += size
        if self._asked_bytes > sum(map(len, self._maps.values())):
            raise BundleError(f"{self.path}: its weights have more bytes than its files")
        return kind, tuple(tensor.dims), raw

    def release(self) -> None:
        """Tell the system that the pages that were read are not needed soon."""
        if hasattr(mmap, "MADV_DONTNEED"):
            for mapped in self._maps.values():
                mapped.madvise(mmap.MADV_DONTNEED)

    def _map(self, path: Path) -> mmap.mmap:
        if path not in self._maps:
            try:
                if path.exists() and not path.is_file():  # reading a pipe would wait forever
                    raise BundleError(f"{path} is not a regular file")
                with path.open("rb") as file:
                    self._maps[path] = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            except (OSError, ValueError) as error:
                reason = getattr(error, "strerror", None) or error  # without the path once more
                raise BundleError(f"cannot read {short(str(path))}: {reason}") from error
        return self._maps[path]

    def _external(self, tensor: _Tensor) -> memoryview:
        """Return the bytes of a weight in a file beside this one."""
        location = tensor.external.get("location", "")
        try:
            offset, length = (int(tensor.external[key]) for key in ("offset", "length"))
        except (KeyError, ValueError):
            raise BundleError(f"{self.path}: a weight in another file has no place") from None
        if location != Path(location).name or offset < 0 or length < 0:
            raise BundleError(f"{self.path}: a weight is at {short(location)}, outside the bundle")
        return memoryview(self._map(self.path.parent / location))[offset : offset + length]

    def _read(self, messages: _Messages, model: memoryview) -> None:
        for graph in messages.fields(model)[7]:
            parts = messages.fields(as_bytes(graph))
            self.nodes += [messages.node(as_bytes(part)) for part in parts[1]]
            self._tensors |= dict(messages.tensor(as_bytes(part)) for part in parts[5])


def made(graph: Graph, name: str, *op_types: str, behind: tuple[str, ...] = ()) -> Node:
    """Return the operator of a type given that makes `name`, behind those of types `behind`."""
    node = graph.producers.get(name)
    for _ in range(_MOST_BEHIND):  # there may be a circle
        if node is None or node.op_type not in behind:
            break
        node = graph.producers.get(node.input(0))
    if node is None or node.op_type not in op_types:
        found = f"{'nothing' if node is None else short(node.op_type)} makes {short(name)}"
        raise UnsupportedModelError(f"{graph.path}: {found}, expected {' or '.join(op_types)}")
    return node


class _Messages(Messages):
    """The messages of one ONNX file."""

    def node(self, message: memoryview) -> Node:
        """Return the node of a message."""
        fields = self.fields(message)
        attributes: dict[str, Any] = {}
        for attribute in fields[5]:
            parts = self.fields(as_bytes(attribute))
            values = parts[2] or parts[3] or parts[4]
            found = values[-1] if values else None
            text = str(found, "utf-8") if isinstance(found, memoryview) else found
            attributes[as_text(parts[1])] = text
        return Node(as_text(fields[4]), as_texts(fields[1]), as_texts(fields[2]), attributes)

    def tensor(self, message: memoryview) -> tuple[str, _Tensor]:
        """Return the name and the place of the weight of a message."""
        fields = self.fields(message)
        dims = [size for value in fields[1] for size in as_sizes(value)]
        if len(dims) > MOST_DIMENSIONS:
            raise DamagedError(f"a weight of {len(dims)} dimensions")
        kind = next((value for value in fields[2] if isinstance(value, int)), 0)
        raw = as_bytes(fields[9][-1]) if fields[9] else None
        entries = [self.fields(as_bytes(entry)) for entry in fields[13]]
        external = {as_text(entry[1]): as_text(entry[2]) for entry in entries}
        return as_text(fields[8]), _Tensor(dims, kind, raw, external)
