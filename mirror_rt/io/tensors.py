"""Read and write tensors in files of safetensors (https://github.com/huggingface/safetensors).

A file is a length in 8 bytes, a JSON object of the tensors' types, shapes and places, and their
bytes.
"""

from __future__ import annotations

import json
import math
import mmap
import struct
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Self

import numpy as np
import numpy.typing as npt

from mirror_rt.errors import BundleError
from mirror_rt.io.limits import DOCUMENT, TENSORS
from mirror_rt.schema import build
from mirror_rt.system import release_pages

Array = npt.NDArray[Any]
_TYPES = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2", "I8": "i1", "U8": "u1",
          "I16": "<i2", "I32": "<i4", "I64": "<i8"}  # fmt: skip
_FLOATS = ("F32", "F16", "BF16")


@dataclass(frozen=True, slots=True)
class _Entry:
    """The type, the shape, and begin and end of a tensor in the bytes behind the header."""

    dtype: str
    shape: list[int]
    data_offsets: list[int]


def tensor_shapes(path: Path) -> dict[str, tuple[str, list[int]]]:
    """Return the type (`F32`, `F16`, `I8` ...) and the shape of each tensor of a file."""
    with path.open("rb") as file:
        return {name: (one.dtype, one.shape) for name, one in _entries(path, file)[0].items()}


def read_tensors(path: Path, names: Collection[str] | None = None) -> dict[str, Array]:
    """Return those of the named tensors (None: of all) that a file has, bfloat16 as float32.

    A file that is not whole, or has a tensor of another type, is a BundleError.
    """
    found: dict[str, Array] = {}
    with path.open("rb") as file:
        entries, begin = _entries(path, file)
        for name, entry in entries.items():
            if names is not None and name not in names:
                continue
            file.seek(begin + entry.data_offsets[0])
            count = math.prod(entry.shape)
            array = np.fromfile(file, _TYPES[entry.dtype], count).reshape(entry.shape)
            if entry.dtype == "BF16":  # the upper half of a float32
                array = (array.astype(np.uint32) << 16).view(np.float32)
            found[name] = array
    return found


class MappedTensors:
    """The tensors of one or several files, mapped: only those that are asked for are read.

    `path` is the file that names the others, or the only one. `named` maps the name that a tensor
    is stored by to its name here, or to those of its equal parts by the first dimension; two of one
    name, and a file that is not whole, are BundleErrors.
    """

    def __init__(
        self,
        path: Path,
        files: Collection[Path],
        named: Callable[[str], list[str]] = lambda name: [name],
    ) -> None:
        self.path = path
        self._maps: list[mmap.mmap] = []
        self._found: dict[str, tuple[mmap.mmap, int, _Entry]] = {}
        for one in files:
            if not one.is_file():  # reading a pipe would wait forever
                raise BundleError(f"{path} names {one.name}, which is not there: fetch all files")
            with one.open("rb") as file:
                entries, begin = _entries(one, file)
                mapped = self._map(file)
            for stored, entry in entries.items():
                names = named(stored)
                for name, part in zip(names, _cut(entry, len(names)), strict=False):
                    if name in self._found:
                        raise BundleError(
                            f"{one} has {stored[:80]}, and {name[:80]} is there already"
                        )
                    self._found[name] = mapped, begin, part

    @classmethod
    def of_table(cls, path: Path, table: Mapping[str, Sequence[int]]) -> Self:
        """Map float32 tensors of a file of any format: name -> offset and shape.

        Tensors outside the file, or of more than twice its bytes together, are a BundleError.
        """
        made = cls(path, ())
        try:
            if not path.is_file():  # reading a pipe would wait forever
                raise ValueError("it is not a regular file")
            with path.open("rb") as file:
                mapped = made._map(file)
            for name, (begin, *shape) in table.items():
                end = begin + 4 * math.prod(shape)
                entry = _Entry("F32", shape, [begin, end])
                _check(name[:80], entry, len(mapped))
                made._found[name] = mapped, 0, entry
        except (ValueError, OSError) as error:
            raise BundleError(f"{path} does not hold the weights of its table: {error}") from error
        # Equal vectors are stored once, and each is packed.
        if sum(math.prod(one[2].shape) for one in made._found.values()) > len(mapped) // 2:
            raise BundleError(f"{path}: its table has more bytes of weights than the file")
        return made

    def _map(self, file: IO[bytes]) -> mmap.mmap:
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        self._maps.append(mapped)
        return mapped

    @property
    def names(self) -> Collection[str]:
        """The names of all tensors."""
        return self._found.keys()

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of a tensor of floating-point numbers; BundleError without one."""
        if name not in self._found:
            raise BundleError(
                f"{self.path} lacks the tensor {name[:80]}, which its config.json asks for: take "
                "the whole folder of the model"
            )
        entry = self._found[name][2]
        if entry.dtype not in _FLOATS:
            raise BundleError(
                f"{self.path}: {name[:80]} is of type {entry.dtype}, expected one of "
                f"{', '.join(_FLOATS)}: take the folder of the model that is not quantised"
            )
        return tuple(entry.shape)

    def floats(self, name: str) -> npt.NDArray[np.float32]:
        """Return a tensor as float32, which is the mapped one where it is stored so."""
        shape = self.shape(name)
        mapped, begin, entry = self._found[name]
        array: Array = np.frombuffer(
            mapped, _TYPES[entry.dtype], math.prod(shape), begin + entry.data_offsets[0]
        )
        if entry.dtype == "BF16":  # the upper half of a float32
            wide = array.astype(np.uint32)
            wide <<= 16
            array = wide.view(np.float32)
        array = array.astype(np.float32, copy=False).reshape(shape)
        return array if array.flags.aligned else array.copy()

    def release(self) -> None:
        """Tell the system that the pages that were read are not needed soon."""
        release_pages(self._maps)


def write_tensors(path: Path, tensors: Mapping[str, npt.NDArray[np.float32]]) -> None:
    """Write float32 tensors to a new file."""
    place, header = 0, {}
    for name, array in tensors.items():
        header[name] = _Entry("F32", list(array.shape), [place, place + array.nbytes])
        place += array.nbytes
    text = json.dumps(header, default=lambda one: {n: getattr(one, n) for n in one.__slots__})
    text += " " * (-len(text) % 8)  # tensors are aligned
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text.encode())
        for array in tensors.values():
            file.write(np.ascontiguousarray(array, "<f4").data)


def _entries(path: Path, file: IO[bytes]) -> tuple[dict[str, _Entry], int]:
    """Return the tensors of a file, checked, and where their bytes begin."""
    size = path.stat().st_size
    try:
        (length,) = struct.unpack("<Q", file.read(8))
        if length > min(size - 8, DOCUMENT):
            raise ValueError(f"its header has {length:,} bytes")
        values = json.loads(file.read(length))
        if isinstance(values, dict):
            values.pop("__metadata__", None)
            if len(values) > TENSORS:
                raise ValueError(f"it has {len(values):,} tensors, expected at most {TENSORS:,}")
        entries: dict[str, _Entry] = build(dict[str, _Entry], values, "the header")
        for name, entry in entries.items():
            _check(name[:80], entry, size - 8 - length)
        _check_places(entries)
    except (ValueError, RecursionError, struct.error) as error:
        raise BundleError(f"{path} is not a whole safetensors file: {error}") from error
    return entries, 8 + length


def _cut(entry: _Entry, parts: int) -> list[_Entry]:
    """Return the equal parts of a tensor by its first dimension; none if it has no such parts."""
    if parts == 1:
        return [entry]
    if not entry.shape or entry.shape[0] % parts:
        return []
    shape, (begin, end) = [entry.shape[0] // parts, *entry.shape[1:]], entry.data_offsets
    size = (end - begin) // parts
    places = range(begin, begin + parts * size, size) if size else [begin] * parts
    return [_Entry(entry.dtype, shape, [place, place + size]) for place in places]


def _check_places(entries: Mapping[str, _Entry]) -> None:
    """Raise ValueError if two tensors have bytes in common, as the format forbids."""
    end, before = 0, ""
    for name, entry in sorted(entries.items(), key=lambda pair: tuple(pair[1].data_offsets)):
        if entry.data_offsets[0] < end:
            raise ValueError(f"{name[:80]} has bytes of {before[:80]}")
        end, before = entry.data_offsets[1], name


def _check(name: str, entry: _Entry, size: int) -> None:
    """Raise ValueError if a tensor is not within the `size` bytes of all."""
    if entry.dtype not in _TYPES:
        raise ValueError(f"{name} is of type {entry.dtype[:20]!r}, expected {', '.join(_TYPES)}")
    if len(entry.shape) > 8 or not all(0 <= one <= size for one in entry.shape):
        raise ValueError(f"{name} has the shape {entry.shape[:8]}")
    needed = math.prod(entry.shape) * np.dtype(_TYPES[entry.dtype]).itemsize
    begin, end = entry.data_offsets if len(entry.data_offsets) == 2 else (-1, -1)
    if not (0 <= begin <= end <= size and end - begin == needed):
        raise ValueError(f"{name} is at {entry.data_offsets[:2]}, expected {needed:,} bytes of it")
