"""See whether files are still the same ones: to load all in one state, and to hash each once."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

from mirror_rt.errors import BundleError
from mirror_rt.io.atomic import sha256

T = TypeVar("T")

# Device, inode, size, and times of the last change of the content and of the inode, in ns. The last
# of these can be set by nobody.
FileState = tuple[int, int, int, int, int]

# Nanoseconds. A file that changed less than this before it was hashed may change without another
# time: the clocks of file systems tick up to every two seconds (FAT).
_TICK = 2_000_000_000
_MOST_HASHES = 4096
_MOST_LINKS = 64  # on the way to a folder
# More than one after another hits only where a folder is exchanged all the time.
_MOST_ATTEMPTS = 32

logger = logging.getLogger("mirror_rt")

_hashes: dict[FileState, str] = {}
_lock = threading.Lock()


def file_state(path: Path) -> FileState | None:
    """Return the state of a file or folder, behind links; None if there is none."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


def load_unchanged(
    folder: Path, load: Callable[[], T], discard: Callable[[T], object] = lambda _: None
) -> T:
    """Load from a folder, anew if it, a file in it or a link to it changed meanwhile.

    Files are hashed and opened by their paths, by several libraries. That all of them saw the same
    files is known from the states before and after. `discard` frees a result that is not used.
    BundleError says that the folder changed again and again.
    """
    for _ in range(_MOST_ATTEMPTS):
        before = _folder_states(folder)
        try:
            made = load()
        except Exception:
            if before == _folder_states(folder):
                raise
        else:
            if before == _folder_states(folder):
                return made
            discard(made)
        logger.info("%s was changed or replaced while it was loaded: loading it again", folder)
    raise BundleError(
        f"{folder} was changed or replaced {_MOST_ATTEMPTS} times while it was loaded: load it "
        "when nothing writes to it"
    )


def _folder_states(folder: Path) -> Mapping[tuple[Path, bool], FileState | None]:
    """Return the states of a folder, of all visible files and folders in it, and of links to it.

    Equal ones, before and after a block, say that nothing else had the place of the folder or of a
    file meanwhile: a rename changes the states of the moved file and of its folder.
    """
    found: dict[tuple[Path, bool], FileState | None] = {}
    found |= {(path, True): state for path, state in _links(folder).items()}
    found[folder, False] = file_state(folder)
    for place, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".")]
        for name in (*folders, *names):
            if not name.startswith("."):
                path = Path(place, name)
                found[path, False] = file_state(path)
    return found


def _links(path: Path) -> dict[Path, FileState]:
    """Return the states of the links that lead to a path."""
    found: dict[Path, FileState] = {}
    todo = [path.absolute()]
    while todo and len(found) < _MOST_LINKS:
        one = todo.pop()
        for part in (one, *one.parents):
            if part not in found and part.is_symlink():
                link = part.lstat()
                found[part] = (link.st_dev, link.st_ino, link.st_size, link.st_mtime_ns,
                               link.st_ctime_ns)  # fmt: skip
                todo.append(part.parent / part.readlink())
    return found


def content_sha256(path: Path) -> str:
    """Return the SHA-256 of a file, which this process reads once as long as it does not change."""
    before = file_state(path)
    with _lock:
        known = None if before is None else _hashes.get(before)
    if known is not None:
        return known
    now, found = time.time_ns(), sha256(path)
    if before is not None and before == file_state(path) and max(before[3:]) < now - _TICK:
        with _lock:
            while len(_hashes) >= _MOST_HASHES:
                del _hashes[next(iter(_hashes))]
            _hashes[before] = found
    return found
