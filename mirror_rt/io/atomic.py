"""Write files and folders whole or not at all, and compute hashes of files."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import IO, Any

from mirror_rt.errors import OutputExistsError, Setting
from mirror_rt.io.exchange import replace_folder, unfinished
from mirror_rt.system import name_trouble

# Advice for errors of the operating system.
_ADVICE = {
    errno.EACCES: "run as a user who has the right, or give it with chmod or chown",
    errno.EROFS: "name a folder that can be written",
    errno.ENOSPC: "free some, or write to another disk",
}


def sha256(path: Path) -> str:
    """Return the hexadecimal SHA-256 of a file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def files_sha256(
    paths: Iterable[Path], below: Path, content: Callable[[Path], str] = sha256
) -> str:
    """Return a hash of the `content` of files and of their paths relative to the folder `below`."""
    digest = hashlib.sha256()
    for path in paths:
        place = os.fsencode(path.relative_to(below).as_posix())
        digest.update(place + f"\0{content(path)}\n".encode())
    return digest.hexdigest()


def path_sha256(path: Path) -> str:
    """Return the hash of a file, or of the files of a folder."""
    if path.is_file():
        return sha256(path)
    return files_sha256((one for one in sorted(path.rglob("*")) if one.is_file()), path)


def files_under(folder: Path) -> Iterator[Path]:
    """Yield the files of a folder and of the folders in it, while others may write there.

    Path.rglob fails with FileNotFoundError when a folder goes away that it has just seen.
    """
    for place, _, names in os.walk(folder):
        yield from (Path(place, name) for name in names)


def write_json(path: Path, value: Any) -> None:
    """Write `value` as indented UTF-8 JSON, whole or not at all."""
    with new_file(path, overwrite=True) as file:
        file.write(json.dumps(value, indent=2, ensure_ascii=False).encode() + b"\n")


def check_free(path: Path, *, overwrite: bool) -> None:
    """Check before any work is done that `path` can be written later.

    An existing empty folder counts as free; a broken symbolic link does not.
    """
    if trouble := name_trouble(path.name):
        raise OSError(f"cannot write {path}: {trouble}")
    if os.path.lexists(path):
        if not (overwrite or (path.is_dir() and not any(path.iterdir()))):
            raise OutputExistsError(
                f"{path} already exists: choose another output, or pass ",
                Setting("overwrite", True),
            )
        # Path.is_mount fails where another process moves the folder at this moment.
        if path.is_dir() and (path.resolve() == Path.cwd() or os.path.ismount(path)):
            raise OSError(f"cannot replace {path}, in use as a folder: name a new folder inside it")
    parent = _existing_parent(path)
    if not parent.is_dir():
        raise NotADirectoryError(f"cannot write {path}: {parent} is a file, not a folder")
    Path(tempfile.mkdtemp(prefix=f".{path.name}.", dir=parent)).rmdir()


@contextlib.contextmanager
def new_file(path: Path, *, overwrite: bool) -> Iterator[IO[bytes]]:
    """Open a temporary file that is renamed to `path` when the block ends without an error."""
    if path.is_dir():
        raise IsADirectoryError(f"cannot write the file {path}: a folder has that name")
    check_free(path, overwrite=overwrite)
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        with unfinished(path, folder=False) as temporary:
            with temporary.open("wb") as file:
                yield file
            temporary.chmod(0o666 & ~_umask())
            temporary.replace(path)
    except BaseException as error:
        _name_path(error, path)
        raise


@contextlib.contextmanager
def new_folder(path: Path, *, overwrite: bool) -> Iterator[Path]:
    """Make a temporary folder that replaces `path` when the block ends without an error."""
    check_free(path, overwrite=overwrite)
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        with unfinished(path, folder=True) as temporary:
            yield temporary
            _share(temporary)
            replace_folder(temporary, path)
    except BaseException as error:
        _name_path(error, path)
        raise


def link_or_copy(source: Path, target: Path) -> bool:
    """Make `target` a hard link to `source`, or a copy if that fails; return whether it is a link.

    Not every file system has hard links, and no link can cross file systems.
    """
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)
        return False
    return True


def os_reason(error: OSError) -> str:
    """Return an error of the operating system with the file first, and advice."""
    if error.strerror is None or error.filename is None:
        return str(error)
    advice = _ADVICE.get(error.errno or 0)
    said = f"{error.filename}: {error.strerror}"
    return said if advice is None else f"{said}: {advice}"


def check_space(path: Path, needed: int) -> None:
    """Raise OSError if the disk of `path` has fewer than `needed` bytes free."""
    if (free := shutil.disk_usage(_existing_parent(path)).free) < needed:
        raise OSError(
            errno.ENOSPC,
            f"{os.strerror(errno.ENOSPC)}: {needed / 1e6:.0f} MB are needed, {free / 1e6:.0f} free",
            str(path),
        )


def _name_path(error: BaseException, path: Path) -> None:
    """Add the path of the output to an error of write(), which does not know it."""
    if isinstance(error, OSError) and error.errno is not None and error.filename is None:
        error.filename = str(path)


def _existing_parent(path: Path) -> Path:
    return next(parent for parent in path.absolute().parents if parent.exists())


def _share(folder: Path) -> None:
    """Give a temporary folder and its files the permissions that mkdir and open would give."""
    mask = _umask()
    for path in (folder, *folder.rglob("*")):
        path.chmod((0o777 if path.is_dir() else 0o666) & ~mask)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
