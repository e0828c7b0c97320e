"""Reach files in a folder of any file system: local, or an object store by its address.

pyarrow knows local files, s3://, gs://, abfs:// and hdfs://; fsspec, where it is installed, knows
the rest.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, Any

from mirror_rt.errors import DataError, MissingDependencyError, require
from mirror_rt.io.atomic import new_file

_WILDCARDS = re.compile(r"[*?\[]")


@dataclass(frozen=True, slots=True)
class Folder:
    """A folder, which need not exist."""

    filesystem: Any  # `pyarrow.fs.FileSystem` that has the folder
    path: str  # path of the folder in that file system
    local: Path | None  # the same as a path of this machine; None in an object store

    @classmethod
    def at(cls, where: str) -> Folder:
        """Return the folder of a path or an address (`s3://bucket/folder`)."""
        fs = require("pyarrow.fs", extra="tables", purpose="a folder of files")
        if "://" not in where:
            local = Path(where).absolute()
            return cls(fs.LocalFileSystem(), local.as_posix(), local)
        try:
            filesystem, path = fs.FileSystem.from_uri(where)
        except (ValueError, NotImplementedError):  # this build of pyarrow has no such file system
            filesystem, path = _by_fsspec(where, fs)
        except OSError as error:  # HDFS without Java, for example
            raise DataError(f"{where} cannot be reached: {error}") from error
        return cls(filesystem, path, Path(path) if filesystem.type_name == "local" else None)

    def files(self) -> dict[str, StoredFile]:
        """List the files below the folder by their paths relative to it, in order of these.

        Files whose names begin with "." are left out: those of `new_file` until they are whole.
        """
        fs = require("pyarrow.fs", extra="tables", purpose="a folder of files")
        selector = fs.FileSelector(self.path, recursive=True, allow_not_found=True)
        found = self.filesystem.get_file_info(selector)
        ends = len(self.path.rstrip("/")) + 1
        files = {
            info.path[ends:]: StoredFile(self, info.path[ends:], info.size, info.mtime_ns)
            for info in found
            if info.is_file and not info.base_name.startswith(".")
        }
        return dict(sorted(files.items()))

    def file(self, name: str) -> StoredFile | None:
        """Return one file; None where there is none."""
        info = self.filesystem.get_file_info(f"{self.path}/{name}")
        return StoredFile(self, name, info.size, info.mtime_ns) if info.is_file else None

    @contextlib.contextmanager
    def new_file(self, name: str) -> Iterator[IO[bytes]]:
        """Open a file that appears, or replaces another, when the block ends without an error."""
        if self.local is not None:
            with new_file(self.local / name, overwrite=True) as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            return
        # Closing an upload completes it, even after an error; so it begins when all is there.
        with tempfile.TemporaryFile() as file:
            yield file
            file.seek(0)
            with self.filesystem.open_output_stream(f"{self.path}/{name}") as stream:
                shutil.copyfileobj(file, stream, 1 << 20)

    def delete(self, name: str) -> None:
        """Delete a file, if it is there."""
        with contextlib.suppress(FileNotFoundError):
            self.filesystem.delete_file(f"{self.path}/{name}")

    def __str__(self) -> str:
        return self.path if self.local else f"{self.filesystem.type_name}:{self.path}"


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A file in a folder."""

    folder: Folder  # the folder
    name: str  # path relative to the folder, with slashes
    bytes: int  # size of the file
    modified: int | None  # nanoseconds since 1970 at its last change; None where that is unknown

    def open(self) -> io.BufferedReader:
        """Open the file for reading."""
        return io.BufferedReader(self.open_arrow())

    def open_arrow(self) -> Any:
        """Open the file for Arrow: a `pyarrow.NativeFile`, which does not read lines."""
        return self.folder.filesystem.open_input_file(f"{self.folder.path}/{self.name}")

    def __str__(self) -> str:
        return f"{self.folder}/{self.name}"


def find_files(
    where: str,
    suffixes: Iterable[str],
    among: Callable[[Iterable[str]], list[str]],
    *,
    outside: Folder,
) -> list[StoredFile]:
    """Return the files that a path, a pattern or an address means, in order of their names.

    A folder stands for the files below it that `among` picks by their names (those of `suffixes`,
    as an error says), without those whose name, or the name of a folder on the way, begins with
    "." or "_". In a pattern, `*` and `?` stand for
    characters of a name and `**` for folders. Files in the folder `outside` are never meant.
    """
    base, pattern = _split(where)
    folder = Folder.at(base)
    if pattern:
        matches = re.compile(_expression(pattern)).fullmatch
        found = [file for name, file in folder.files().items() if matches(name)]
    elif (one := _as_file(folder)) is not None:
        return [one]
    else:
        files = folder.files()
        found = [files[name] for name in among(files) if not re.search(r"(^|/)[._]", name)]
    found = [one for one in found if not f"{folder.path}/{one.name}".startswith(f"{outside.path}/")]
    if not found:
        kind = "matches" if pattern else f"in {', '.join(suffixes)} is at"
        raise DataError(f"no file {kind} {where} (those below {outside} do not count)")
    return found


def has_wildcards(where: str) -> bool:
    """Return whether a path is a pattern, and not the name of something that exists."""
    return bool(_WILDCARDS.search(where)) and not os.path.lexists(where)


def _split(where: str) -> tuple[str, str]:
    """Split a pattern into the folder before the first wildcard, and the rest."""
    if not has_wildcards(where):
        return where.rstrip("/") or "/", ""
    parts = where.split("/")
    first = next(i for i, part in enumerate(parts) if _WILDCARDS.search(part))
    base = "/".join(parts[:first]) or ("/" if where.startswith("/") else ".")
    return base, "/".join(parts[first:])


def _expression(pattern: str) -> str:
    """Translate a pattern into a regular expression."""
    said = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}
    tokens = re.findall(r"\*\*/|\*\*|\*|\?|\[[^\]]+\]|.", pattern)
    return "".join(
        said.get(token) or (token.replace("[!", "[^") if len(token) > 1 else re.escape(token))
        for token in tokens
    )


def _as_file(folder: Folder) -> StoredFile | None:
    """Return the file that has the path of the folder; None if it is none."""
    path = PurePosixPath(folder.path)
    above = folder.local.parent if folder.local is not None else None
    return Folder(folder.filesystem, path.parent.as_posix(), above).file(path.name)


def _by_fsspec(where: str, fs: Any) -> tuple[Any, str]:
    try:
        core = importlib.import_module("fsspec.core")
        found, path = core.url_to_fs(where)
    except ImportError as error:
        raise MissingDependencyError(
            f"{where}: pyarrow as installed here cannot reach it, and fsspec needs a package that "
            f"is not installed: {error}"
        ) from error
    except ValueError as error:
        raise DataError(f"{where}: neither pyarrow nor fsspec can reach it: {error}") from error
    return fs.PyFileSystem(fs.FSSpecHandler(found)), path
