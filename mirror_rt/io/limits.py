"""Limit the work that a stranger's file may cause a reader: one table, and the bounded readers.

Each limit is far above every published file of its kind, and keeps a damaged or hostile one from
taking hours or all memory.
"""

from __future__ import annotations

import errno
import io
import os
import stat
from pathlib import Path
from typing import IO, Any

from mirror_rt.errors import ConfigError, DataError

# Bytes of a line, and characters of a cell. The limit keeps a file without line ends, or with a
# quote that is never closed, from being read into memory as a whole. It is above 60 MB, the size of
# the 10 million characters that `chunk` takes if JSON escapes each of them.
LINE = 1 << 26
# Bytes of a document in JSON or TOML: more than 100 times the size of a pack.json of 100 languages.
# To parse and check them takes half a second.
DOCUMENT = 1 << 22
# Bytes of a JSON file beside a model: a tokenizer_config.json with all special tokens of a large
# vocabulary has a few million.
DECLARED = 1 << 26
# Bytes of the one large file of a data wheel; an index of Python packages takes 100 MB a wheel.
PART = 1 << 27
# Tensors of a file: ten times those of the largest encoders.
TENSORS = 10_000
# Columns of a table, which are those of a spreadsheet.
COLUMNS = 16_384
# Words that one sense of a thesaurus may list: WordNet's largest has 28. Each is a synonym of each,
# so their square counts for all senses together.
SYNONYMS, ALL_SYNONYMS = 1_000, 16_000_000
# The most by which unpacking may multiply a file's size, above the bytes that are free; text has 4.
RATIO, FREE = 200, 1 << 26
# The most bytes of a dictionary's entries for each byte of its file, as words share entries.
SHARED = 16


class _Unpacked(io.RawIOBase):
    """The content of a compressed file, of a bounded size."""

    def __init__(self, file: IO[bytes], most: int, name: object) -> None:
        self._file, self._left, self._most, self._name = file, most, most, name

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        block = self._file.read(len(buffer))
        self._left -= len(block)
        if self._left < 0:
            raise DataError(
                f"{self._name} unpacks to more than {self._most:,} bytes, {RATIO} times its size: "
                "unpack it first if it is what you expect"
            )
        buffer[: len(block)] = block
        return len(block)


def unpacked(file: IO[bytes], packed_bytes: int, name: object) -> io.BufferedReader:
    """Read the bytes of a decompressor; DataError for more than a file of that size may hold."""
    return io.BufferedReader(_Unpacked(file, max(FREE, RATIO * packed_bytes), name), 1 << 16)


def read_regular(path: Path, most_bytes: int) -> bytes:
    """Read a regular file; OSError for a larger one, or a pipe, which would wait for a writer."""
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
    with os.fdopen(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "it is not a regular file", str(path))
        content = file.read(most_bytes + 1)
    if len(content) > most_bytes:
        raise OSError(errno.EFBIG, f"it has more than {most_bytes} bytes", str(path))
    return content


def read_toml(path: Path) -> dict[str, Any]:
    """Parse a TOML file; ConfigError for one that is too large or is not TOML."""
    import tomllib  # which few need

    try:
        return tomllib.loads(read_regular(path, DOCUMENT).decode())
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:  # UnicodeDecodeError and TOMLDecodeError
        raise ConfigError(f"{path} is not a TOML file: {error}") from error
