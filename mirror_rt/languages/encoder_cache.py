"""Encoders that are loaded when needed, within a limit of memory, least recently used first out."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass

from mirror_rt.encoding.encoder import Encoder
from mirror_rt.errors import ClosedError
from mirror_rt.languages.freed_memory import give_back_memory

__all__ = ["CacheStatistics", "EncoderCache"]


@dataclass(frozen=True, slots=True)
class CacheStatistics:
    """What a cache holds, and what it has done.

    Attributes:
        loaded: names of the encoders in memory, the least recently used first.
        bytes: that they count for, those that are still being closed included.
        limit: of these bytes; None for none.
        hits: uses of an encoder that was loaded already.
        loads: encoders loaded, again or for the first time.
        evictions: encoders closed to make room.
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
    """Encoders by name, safe under threads.

    An encoder that is in use is never closed. One that is evicted meanwhile takes no new uses, and
    is closed by the last that ends; until then its memory counts, and whoever needs the room
    waits. A thread that holds an encoder itself does not wait, which could be for itself: it
    loads beyond the limit, and the next release brings the memory back under it.

    Args:
        load: makes an encoder; called without locks, for one name at a time.
        sizes: bytes that an encoder counts for, by name.
        limit: of the bytes of all; None for none. At least what any one needs beside the pinned.
        pinned: names that are never evicted.
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
        self._entries: dict[str, _Entry] = {}  # by time of the last use
        self._used = 0  # bytes, those of evicted encoders in use included
        self._leaving = 0  # bytes of these
        self._idle: list[_Entry] = []  # evicted and out of use: to be closed
        self._hits = self._loads = self._evictions = 0
        self._closed = False
        self._changed = threading.Condition()
        self._held = threading.local()

    @contextlib.contextmanager
    def lease(self, name: str) -> Iterator[Encoder]:
        """Give the encoder, loaded, which is not closed before the block ends.

        Raises:
            ClosedError: after `close`.
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
        """What is loaded now, and the counts so far."""
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
        """Close all encoders, each once no use of it is left; a later use is a ClosedError."""
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
        """The entry, in use: with its encoder, or without one and for the caller to load."""
        while True:
            if self._closed:
                raise ClosedError("this LanguagePack is closed: load it again")
            entry, size = self._entries.get(name), self._sizes[name]
            if entry is None:
                self._evict_for(size)
                if self._idle:
                    self._free_idle()
                    continue  # others may have been here meanwhile
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
        """Evict, the oldest first, until `size` bytes will be free, or nothing is left to evict."""
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
            self._evict_for(0)  # only a thread that could not wait has gone beyond the limit
            self._free_idle()
            self._changed.notify_all()

    def _free_idle(self) -> None:
        """Close what is evicted and not in use; the lock is held, but let go of meanwhile."""
        while self._idle:
            entry = self._idle.pop()
            self._changed.release()
            try:
                if entry.encoder is not None:
                    entry.encoder.close()
                entry.encoder = None
                give_back_memory()  # of a tokenizer glibc would keep all
            finally:
                self._changed.acquire()
                self._used -= entry.size
                self._leaving -= entry.size
                self._changed.notify_all()
