"""Read the fields of protobuf messages, the format of ONNX files, without a library.

https://protobuf.dev/programming-guides/encoding describes the format.
"""

from __future__ import annotations

import mmap
import struct
from collections import defaultdict
from pathlib import Path

from mirror_rt.errors import BundleError

Value = int | float | memoryview
# The most fields of a file, as every field becomes objects of hundreds of bytes: ten times those of
# encoders of 28 layers.
_MOST_FIELDS = 1 << 18


class DamagedError(ValueError):
    """Raised where a message ends too early or has a wrong type."""


def map_file(path: Path) -> memoryview:
    """Map a file for reading; BundleError if it cannot be read."""
    try:
        if path.exists() and not path.is_file():  # reading a pipe would wait forever
            raise BundleError(f"{path} is not a regular file")
        with path.open("rb") as file:
            return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error  # without the path once more
        raise BundleError(f"cannot read {path}: {reason}") from error


class Messages:
    """The messages of one file, which may have `_MOST_FIELDS` fields altogether."""

    def __init__(self) -> None:
        self._left = _MOST_FIELDS

    def fields(self, message: memoryview) -> dict[int, list[Value]]:
        """Return the values of each field of a message by its number; an absent one has none."""
        values: dict[int, list[Value]] = defaultdict(list)
        place = 0
        while place < len(message):
            self._left -= 1
            if self._left < 0:
                raise DamagedError(f"it has more than {_MOST_FIELDS:,} fields")
            tag, place = varint(message, place)
            kind = tag & 7
            value: Value
            if kind == 0:
                value, place = varint(message, place)
            else:
                length = {1: 8, 5: 4}.get(kind)
                if kind == 2:
                    length, place = varint(message, place)
                if length is None or place + length > len(message):
                    raise DamagedError(f"a field of {length} bytes at {place} of {len(message)}")
                value = message[place : place + length]
                place += length
                if kind == 5:
                    value = struct.unpack("<f", value)[0]
            values[tag >> 3].append(value)
        return values


def varint(message: memoryview, place: int) -> tuple[int, int]:
    """Return the number at a place, and the place behind it."""
    number = shift = 0
    while place < len(message) and shift < 64:
        byte = message[place]
        place += 1
        number |= (byte & 127) << shift
        if byte < 128:
            return number, place
        shift += 7
    raise DamagedError(f"a number at {place} does not end")


def as_bytes(value: Value) -> memoryview:
    """Return the bytes of a value; DamagedError if it is a number."""
    if not isinstance(value, memoryview):
        raise DamagedError("a number in place of a message")
    return value


def as_text(values: list[Value]) -> str:
    """Return the text of a field that is there once at most: of several, the last one counts."""
    return str(as_bytes(values[-1]), "utf-8") if values else ""
