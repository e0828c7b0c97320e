"""Hold the differences between operating systems: names, locks, signals, limits, processors.

A type checker reads the half of its own platform alone. Windows has no locks here, so users
must avoid two processes at one output, and it renames no file that is open.
"""

from __future__ import annotations

import mmap
import os
import re
import sys
import tempfile
import unicodedata
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

# Bytes of a name on every system, less the additions for a temporary file beside it.
_LONGEST = 255 - len("." + ".old." + 8 * "x")
# Names of devices, with every suffix; characters and ends that Windows takes for something else.
_NOT_ON_WINDOWS = re.compile(
    r"(con|prn|aux|nul|com\d|lpt\d)\s*(\..*)?|.*([<>:\"|?*\\\0-\x1f].*|[. ])", re.I | re.S
)


def name_trouble(name: str, *, windows: bool = sys.platform == "win32") -> str | None:
    """Say why no file or folder can be written with a name; None if one can."""
    if windows and _NOT_ON_WINDOWS.fullmatch(name):
        return f"{name!r} cannot be the name of a file on Windows"
    length = len(name.encode("utf-8", "surrogateescape"))
    if length > _LONGEST:
        return (
            f"the name {name[:40]!r}... has {length} bytes, and at most {_LONGEST} can be written"
        )
    return None


def names_trouble(names: Iterable[str], folder: Path) -> str | None:
    """Say why a folder cannot take files of all these names, paths with slashes; None if it can.

    Where the case of letters does not count, as is usual on macOS and Windows, `A.csv` is `a.csv`.
    """
    seen: dict[str, str] = {}
    for name in names:
        if trouble := next(filter(None, map(name_trouble, name.split("/"))), None):
            return trouble
        other = seen.setdefault(unicodedata.normalize("NFC", name).casefold(), name)
        if other != name and ignores_case(folder):
            return f"{other!r} and {name!r} are the same file where {folder} is"
    return None


def ignores_case(folder: Path) -> bool:
    """Tell whether names that differ by the case of letters alone are one file in a folder."""
    here = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.is_dir())
    with tempfile.NamedTemporaryFile(prefix=".CASE-", dir=here) as file:
        return os.path.lexists(here / Path(file.name).name.swapcase())


def processors() -> int:
    """Return how many processors threads may use: on Apple's, the fast ones alone.

    Work is shared in equal parts, so that each would wait for those of the slow ones.
    """
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    if sys.platform == "darwin":
        import ctypes

        fast, size = ctypes.c_int(0), ctypes.c_size_t(ctypes.sizeof(ctypes.c_int))
        ask, name = ctypes.CDLL(None).sysctlbyname, b"hw.perflevel0.physicalcpu"
        if ask(name, ctypes.byref(fast), ctypes.byref(size), None, 0) == 0:  # not of Intel's
            return fast.value
    return os.cpu_count() or 1


if sys.platform == "win32":
    HAS_LOCKS = False
    KILLED = None  # the return code of a killed process: there is none of its own

    def lock(descriptor: int, *, wait: bool = False) -> bool:
        """Do nothing."""
        return True

    def release_pages(maps: Iterable[mmap.mmap]) -> None:
        """Do nothing."""

    @contextmanager
    def interrupts_held() -> Iterator[None]:
        """Do nothing: signals cannot be blocked."""
        yield

    def open_files_limit() -> int:
        """Return how many files a process may open."""
        return sys.maxsize

    def peak_memory() -> int | None:
        """Return None: it is not known."""
        return None

else:
    import fcntl
    import resource
    import signal

    HAS_LOCKS = True
    KILLED = -signal.SIGKILL

    def lock(descriptor: int, *, wait: bool = False) -> bool:
        """Lock an open file or folder until it is closed; return False if another process has.

        Raises:
            OSError: the file system has no locks.
        """
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            return False
        return True

    def release_pages(maps: Iterable[mmap.mmap]) -> None:
        """Tell the system that the pages of files that were read are not needed soon."""
        for mapped in maps:
            mapped.madvise(mmap.MADV_DONTNEED)

    @contextmanager
    def interrupts_held() -> Iterator[None]:
        """Block Ctrl-C while processes start: it would end them before they can ignore it."""
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            yield
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def open_files_limit() -> int:
        """Return how many files a process may open."""
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        return sys.maxsize if limit == resource.RLIM_INFINITY else limit

    def peak_memory() -> int | None:
        """Return the most physical memory that this process has used, in bytes."""
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 2**10
