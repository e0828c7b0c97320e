"""A cache of encoders, loaded on demand; the least recently used are closed to save memory."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass

from mirror_rt.encoding.encoder import Encoder
from mirror_rt.errors import ClosedError
from mirror_rt.languages.freed_memory import give_back_memory


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
    users: int = 0
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
        self._used = 0  # bytes of all encoders, including evicted ones that are not closed yet
        self._leaving = 0  # bytes of the evicted ones alone
        self._idle: list[_Entry] = []  # evicted, not in use any more, to be closed
        self._hits = self._loads = self._evictions = 0
        self._closed = False
        self._changed = threading.Condition()
        self._held = threading.local()

    @contextlib.contextmanager
    def lease(self, name: str) -> Iterator[Encoder]:
        """Give the loaded encoder to the block; it is not closed before the block ends.

        Raises:
            ClosedError: the cache is closed.
        """
        entry = self._acquire(name)
        self._held.count = getattr(self._held, "count", 0) + 1
        try:
            assert entry.encoder is not None
            yield entry.encoder
        finally:
            self._held.count -= 1
            self._release(entry)

    def statistics(self) -> CacheStatistics:
        """Return which encoders are loaded now, and the counts so far."""
        with self._changed:
            return CacheStatistics(
                tuple(name for name, entry in self._entries.items() if entry.encoder is not None),
                self._used,
                self._limit,
                self._hits,
                self._loads,
                self._evictions,
            )

    def close(self) -> None:
        """Close every encoder once it is not in use; every later use raises ClosedError."""
        with self._changed:
            self._closed = True
            for name in list(self._entries):
                self._evict(name)
            self._free_idle()
            self._changed.notify_all()

    def _acquire(self, name: str) -> _Entry:
        with self._changed:
            entry = self._loaded_or_reserved(name)
            if entry.encoder is not None:
                return entry
        try:
            encoder = self._load(name)
        except BaseException:
            with self._changed:
                self._entries.pop(name, None)
                self._used -= entry.size
                if entry.evicted:
                    self._leaving -= entry.size
                self._changed.notify_all()
            raise
        with self._changed:
            entry.encoder = encoder
            self._loads += 1
            self._changed.notify_all()
        return entry

    def _loaded_or_reserved(self, name: str) -> _Entry:
        """Return an entry, marked as in use; if it has no encoder, the caller must load it."""
        while True:
            if self._closed:
                raise ClosedError("this LanguagePack is closed: load it again")
            entry, size = self._entries.get(name), self._sizes[name]
            if entry is None:
                self._evict_for(size)
                if self._idle:
                    self._free_idle()
                    continue  # the lock was released, so other threads may have changed the cache
                if self._may_take(size):
                    entry = self._entries[name] = _Entry(size, users=1)
                    self._used += size
                    return entry
            elif entry.encoder is not None:
                self._entries[name] = self._entries.pop(name)
                entry.users += 1
                self._hits += 1
                return entry
            self._changed.wait()

    def _may_take(self, size: int) -> bool:
        holds_one = getattr(self._held, "count", 0) > 0
        return self._limit is None or self._used + size <= self._limit or holds_one

    def _evict_for(self, size: int) -> None:
        """Evict the least recently used until `size` bytes will be free, as far as possible."""
        if self._limit is None:
            return
        for name, entry in list(self._entries.items()):
            if self._used - self._leaving + size <= self._limit:
                return
            if name not in self._pinned and entry.encoder is not None:
                self._evictions += 1
                self._evict(name)

    def _evict(self, name: str) -> None:
        entry = self._entries.pop(name)
        entry.evicted = True
        self._leaving += entry.size
        if not entry.users:
            self._idle.append(entry)

    def _release(self, entry: _Entry) -> None:
        with self._changed:
            entry.users -= 1
            if entry.evicted and not entry.users:
                self._idle.append(entry)
            self._evict_for(0)  # a thread that could not wait may have gone beyond the limit
            self._free_idle()
            self._changed.notify_all()

    def _free_idle(self) -> None:
        """Close evicted encoders that are not in use; the lock is released while they close."""
        while self._idle:
            entry = self._idle.pop()
            self._changed.release()
            try:
                if entry.encoder is not None:
                    entry.encoder.close()
                entry.encoder = None
                give_back_memory()  # otherwise glibc would keep all the memory of a tokenizer
            finally:
                self._changed.acquire()
                self._used -= entry.size
                self._leaving -= entry.size
                self._changed.notify_all()
