"""Rename folders to their places, and remove the files of killed processes, in one step each."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mirror_rt.system import HAS_LOCKS, lock

_ENDING = ".unfinished"
_REMNANT = re.compile(r"\..+\.[a-z0-9_]{8}\.unfinished")  # as tempfile names them
_AT_FDCWD, _EXCHANGE = -100, 2
# The errors of a rename where another process was faster.
_OVERTAKEN = (errno.ENOENT, errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR, errno.EISDIR)
_MOST_ATTEMPTS = 1000
_TO_LOCK = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)


# Folders in which this process has looked for files that others have left.
_seen: set[Path] = set()


@contextlib.contextmanager
def unfinished(path: Path, *, folder: bool) -> Iterator[Path]:
    """Make a temporary file or folder beside `path`, in which its content is prepared.

    It is locked until the block ends. Those beside it that are not locked were left by processes
    that were killed, and are removed first.
    """
    _remove_remnants(path.parent)
    temporary, descriptor = _make(path, folder=folder)
    try:
        yield temporary
    except BaseException:
        remove(temporary)
        raise
    finally:
        if descriptor is not None:
            os.close(descriptor)


def _make(path: Path, *, folder: bool) -> tuple[Path, int | None]:
    """Make and lock a temporary file or folder; return it with its descriptor, if it has one."""
    names: dict[str, Any] = {"prefix": f".{path.name}.", "suffix": _ENDING, "dir": path.parent}
    while True:
        if folder:
            temporary = Path(tempfile.mkdtemp(**names))
        else:
            descriptor, name = tempfile.mkstemp(**names)
            os.close(descriptor)
            temporary = Path(name)
        if not HAS_LOCKS:
            return temporary, None
        with contextlib.suppress(FileNotFoundError):
            descriptor = os.open(temporary, os.O_RDONLY)
            if _lock(descriptor, wait=True) and _is_at(temporary, descriptor):
                return temporary, descriptor
            os.close(descriptor)
        # Another process took it for a remnant, before it was locked.


def replace_folder(new: Path, path: Path) -> None:
    """Rename the folder `new`, which is in the same folder as `path`, to `path`.

    An existing `path` is exchanged for it and then removed, so that there is a whole one at any
    moment; where the system cannot exchange, it is moved aside first. Several processes may do so
    at once: one of them is last.
    """
    for _ in range(_MOST_ATTEMPTS):
        try:
            if not os.path.lexists(path):
                new.rename(path)
            elif _exchange(new, path):
                remove(new)
            else:
                _move_aside(new, path)
            return
        except OSError as error:
            if error.errno not in _OVERTAKEN or not new.exists():
                raise
    raise OSError(errno.EBUSY, "other processes replace it all the time", str(path))


def remove(path: Path) -> None:
    """Remove a file, a link or a folder, if it is there."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def _exchange(new: Path, path: Path) -> bool:
    """Exchange two paths in one step; return whether the system can."""
    call = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None) if _is_linux() else None
    if call is None:
        return False
    if call(_AT_FDCWD, os.fsencode(new), _AT_FDCWD, os.fsencode(path), _EXCHANGE) == 0:
        return True
    number = ctypes.get_errno()
    if number in (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP):  # an old kernel or file system
        return False
    raise OSError(number, os.strerror(number), str(path))


def _is_linux() -> bool:
    return sys.platform == "linux"


def _move_aside(new: Path, path: Path) -> None:
    # It has another ending than unfinished files, because it may be the only copy after a kill.
    old = Path(tempfile.mkdtemp(prefix=f".{path.name}.old.", dir=path.parent))
    try:
        path.rename(old / path.name)
    except OSError:
        old.rmdir()
        raise
    try:
        new.rename(path)
    except OSError:
        try:
            (old / path.name).rename(path)
        except OSError as error:
            if error.errno not in _OVERTAKEN:  # another process has not put one there
                raise
        remove(old)
        raise
    remove(old)


def _remove_remnants(folder: Path) -> None:
    """Remove the files that killed processes have left in a folder."""
    if folder in _seen:
        return
    _seen.add(folder)
    places = folder.glob(f".*{_ENDING}") if HAS_LOCKS else ()
    for place in places:
        if not _REMNANT.fullmatch(place.name):
            continue
        with contextlib.suppress(OSError):  # it was renamed to its place meanwhile, or is not ours
            descriptor = os.open(place, _TO_LOCK)
            try:
                if _lock(descriptor, wait=False) and _is_at(place, descriptor):
                    remove(place)
            finally:
                os.close(descriptor)


def _lock(descriptor: int, *, wait: bool) -> bool:
    """Lock an open file or folder; return whether another process has not.

    Where a file system has no locks, all who wait go on, and none that does not wait.
    """
    try:
        return lock(descriptor, wait=wait)
    except OSError:
        return wait


def _is_at(path: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(path.lstat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False
