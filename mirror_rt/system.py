"""What differs between operating systems: locks of files, mapped pages, signals, limits.

A type checker reads the half of its own platform alone. Windows has no locks here, so users
must avoid two processes at one output, and it renames no file that is open.
"""

from __future__ import annotations

import mmap
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

if sys.platform == "win32":
    HAS_LOCKS = False
    KILLED = None  # what a process that was killed returns: nothing of its own

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
