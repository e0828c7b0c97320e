"""A cache of encoders, loaded on demand; the least recently used are closed to save memory."""

from __future__ import annotations

import contextlib
import ctypes
import sys
import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass

from mirror_rt.encoding.encoder import Encoder
from mirror_rt.errors import ClosedError


@dataclass(frozen=True, slots=True)
class CacheStatistics:
    """The content of a cache, and its counts of hits, loads and evictions.

    Attributes:
        loaded: names of the encoders in memory, the least recently used first.
        bytes: total size of the encoders, including those that are still being closed.
        limit: limit of these bytes; None for no limit.
        hits: number of uses of an encoder that was loaded already.
        loads: number of times that an encoder was loaded.
        evictions: number of times that an encoder was closed to make room.
    """

    loaded: tuple[str, ...]
    bytes: int
    limit: int | None
    hits: int
    loads: int
    evictions: int


@dataclass(slots=True)
class _Entry:
    size: int
    encoder: Encoder | None = None  # None while it is loaded
    users: int = 1
    evicted: bool = False


class EncoderCache:
    """A thread-safe cache of encoders by name.

    An encoder is never closed while it is in use. If it is evicted during a use, it accepts no new
    uses and is closed when the last one ends; until then its memory counts, and threads that need
    the room wait. A thread that itself uses an encoder does not wait, because it might wait for
    itself: it loads beyond the limit, and the next release brings the memory below the limit again.

    Args:
        load: loads an encoder by name; called without locks, but once at a time for one name.
        sizes: name -> bytes that the encoder counts for.
        limit: limit of the bytes of all encoders; None for no limit. It must be enough for any
            encoder beside the pinned ones.
        pinned: names of encoders that are never evicted.
    """

    def __init__(
        self,
        load: Callable[[str], Encoder],
        sizes: Mapping[str, int],
        *,
        limit: int | None,
        pinned: Collection[str] = (),
    ) -> None:
        self._load = load
        self._sizes = sizes
        self._limit = limit
        self._pinned = frozenset(pinned)
        self._entries: dict[str, _Entry] = {}  # in the order of their last use
        self._bytes = 0  # of all encoders, including evicted ones that are not closed yet
        self._hits = self._loads = self._evictions = 0
        self._closed = False
        self._changed = threading.Condition()
        self._held = threading.local()

    @contextlib.contextmanager
    def lease(self, name: str) -> Iterator[Encoder]:
        """Give the loaded encoder to the block; it is not closed before the block ends.

        ClosedError says that the cache is closed.
        """
        entry = self._acquire(name)
        self._held.count = getattr(self._held, "count", 0) + 1
        try:
            assert entry.encoder is not None
            yield entry.encoder
        finally:
            self._held.count -= 1
            with self._changed:
                entry.users -= 1
                self._close_unused(entry)
                self._evict_for(0)  # a thread that could not wait may have gone beyond the limit
                self._changed.notify_all()

    def statistics(self) -> CacheStatistics:
        """Return which encoders are loaded now, and the counts so far."""
        with self._changed:
            loaded = tuple(name for name, entry in self._entries.items() if entry.encoder)
            counts = (self._hits, self._loads, self._evictions)
            return CacheStatistics(loaded, self._bytes, self._limit, *counts)

    def close(self) -> None:
        """Close every encoder once it is not in use; every later use raises ClosedError."""
        with self._changed:
            self._closed = True
            for name in list(self._entries):
                self._evict(name)
            self._changed.notify_all()

    def _acquire(self, name: str) -> _Entry:
        """Return an entry that counts this use; load its encoder if nobody else does."""
        with self._changed:
            # A thread waits while another one loads the encoder, or while there is no room. All
            # that it saw before may have changed meanwhile, so each time it looks at everything.
            while True:
                if self._closed:
                    raise ClosedError("this LanguagePack is closed: load it again")
                entry = self._entries.get(name)
                if entry is None and self._has_room(self._sizes[name]):
                    entry = self._entries[name] = _Entry(self._sizes[name])
                    self._bytes += entry.size
                    break
                if entry is not None and entry.encoder is not None:
                    self._entries[name] = self._entries.pop(name)
                    entry.users += 1
                    self._hits += 1
                    return entry
                self._changed.wait()
        try:
            encoder = self._load(name)
        except BaseException:
            with self._changed:
                self._entries.pop(name, None)
                self._bytes -= entry.size
                self._changed.notify_all()
            raise
        with self._changed:
            entry.encoder = encoder
            self._loads += 1
            self._changed.notify_all()
        return entry

    def _has_room(self, size: int) -> bool:
        """Make room for `size` bytes as far as possible; return whether they may be taken."""
        self._evict_for(size)
        holds_one = getattr(self._held, "count", 0) > 0
        return self._limit is None or self._bytes + size <= self._limit or holds_one

    def _evict_for(self, size: int) -> None:
        """Evict the least recently used until `size` bytes will be free, as far as possible."""
        if self._limit is None:
            return
        for name, entry in list(self._entries.items()):
            # What was evicted in use frees its memory later, so that no others need to go for it.
            if sum(other.size for other in self._entries.values()) + size <= self._limit:
                return
            if name not in self._pinned and entry.encoder is not None:
                self._evictions += 1
                self._evict(name)

    def _evict(self, name: str) -> None:
        entry = self._entries.pop(name)
        entry.evicted = True
        self._close_unused(entry)

    def _close_unused(self, entry: _Entry) -> None:
        """Close an evicted encoder that is not in use any more."""
        if not entry.evicted or entry.users:
            return
        self._bytes -= entry.size
        encoder, entry.encoder = entry.encoder, None
        if encoder is not None:
            encoder.close()
        del encoder
        give_back_memory()


def give_back_memory() -> None:
    """Return free memory to the system; otherwise glibc would keep all that of a tokenizer."""
    if sys.platform == "linux":
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # musl has none
        if trim is not None:
            trim(0)
