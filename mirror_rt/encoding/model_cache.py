"""A cache of models, loaded on demand; the least recently used are closed to save memory."""

from __future__ import annotations

import contextlib
import ctypes
import math
import sys
import threading
import time
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

from mirror_rt.bundle.manifest import Layout, Manifest
from mirror_rt.errors import ClosedError, ConfigError, OverloadedError, Setting

# The memory that a tokenizer takes, as a multiple of its tokenizer.json: XLM-R's takes 286 MB for
# 16.8 MB, BERT's 6 MB for 0.7 MB (tokenizers 0.23.3, glibc).
_TOKENIZER_GROWTH = 17
_LOOK_EVERY = 0.05  # seconds between two looks at a time limit


class Closable(Protocol):
    """A model of a cache."""

    def close(self) -> None:
        """Free its memory."""


Key = TypeVar("Key", bound=Hashable)
Model = TypeVar("Model", bound=Closable)


@dataclass(frozen=True, slots=True)
class CacheStatistics:
    """The content of a cache, and its counts of hits, loads and evictions.

    Attributes:
        loaded: names of the models in memory, the least recently used first.
        bytes: total size of the models, including those that are still being closed.
        limit: limit of these bytes; None for no limit.
        hits: number of uses of a model that was loaded already.
        loads: number of times that a model was loaded.
        evictions: number of times that a model was closed to make room.
    """

    loaded: tuple[str, ...]
    bytes: int
    limit: int | None
    hits: int
    loads: int
    evictions: int


@dataclass(slots=True, eq=False)
class Entry(Generic[Model]):
    """A model in the cache: None while it is loaded, and once it is closed.

    Attributes:
        size: bytes that it counts for.
        users: number of uses that have not ended.
        leaves_by: time by which it is closed whoever uses it; None if it is not evicted.
    """

    size: int
    model: Model | None = None
    users: int = 1
    leaves_by: float | None = None


class ModelCache(Generic[Key, Model]):
    """A thread-safe cache of models by key.

    Models that nobody uses make room first. One that is evicted during a use accepts no new uses
    and is closed when the last one ends, or after `patience` seconds; until then its memory counts,
    and threads that need the room wait. A thread that itself leases a model does not wait, because
    it might wait for itself: it loads beyond the limit, and the next release brings the memory
    below the limit again.

    Args:
        load: loads a model by its key; called without locks, but once at a time for one key.
        sizes: key -> bytes that the model counts for.
        limit: limit of the bytes of all models; None for no limit. It must be enough for any model
            beside the pinned ones (see `checked_limit`).
        pinned: keys of models that are never evicted.
        patience: seconds that the users of an evicted model have to end.
        owner: the name in errors of the object that was closed.
    """

    def __init__(
        self,
        load: Callable[[Key], Model],
        sizes: Mapping[Key, int],
        *,
        limit: int | None,
        pinned: Collection[Key] = (),
        patience: float = math.inf,
        owner: str = "LanguagePack",
    ) -> None:
        self._load = load
        self._sizes = dict(sizes)
        self._limit, self._patience, self._owner = limit, patience, owner
        self._pinned = set(pinned)
        self._entries: dict[Key, Entry[Model]] = {}  # in the order of their last use
        self._leaving: list[Entry[Model]] = []  # evicted, and not closed yet
        self._bytes = 0  # of all models, including evicted ones that are not closed yet
        self._hits = self._loads = self._evictions = 0
        self._closed = False
        self._changed = threading.Condition()
        self._held = threading.local()

    @contextlib.contextmanager
    def lease(self, key: Key, timeout: float = math.inf) -> Iterator[Model]:
        """Give the loaded model to the block; it is not closed before the block ends.

        ClosedError says that the cache is closed or has no such model, OverloadedError that there
        was no room within `timeout` seconds.
        """
        entry = self.acquire(key, timeout)
        try:
            with self.beyond_limit():
                assert entry.model is not None
                yield entry.model
        finally:
            self.release(entry)
            self.close_leaving()

    @contextlib.contextmanager
    def beyond_limit(self) -> Iterator[None]:
        """Let this thread load models in a block without waiting for room."""
        self._held.count = getattr(self._held, "count", 0) + 1
        try:
            yield
        finally:
            self._held.count -= 1

    def acquire(self, key: Key, timeout: float = math.inf) -> Entry[Model]:
        """Begin a use of a model, which is loaded if nobody else does it; errors as in `lease`."""
        until = time.monotonic() + timeout
        # A thread waits while another one loads the model, or while there is no room. All that it
        # saw before may have changed meanwhile, so each time it looks at everything.
        while True:
            with self._changed:
                if self._closed or key not in self._sizes:
                    raise ClosedError(f"this {self._owner} is closed: load it again")
                if (entry := self.use(key)) is not None:
                    return entry
                if key not in self._entries and self._has_room(self._sizes[key]):
                    entry = self._entries[key] = Entry(self._sizes[key])
                    self._bytes += entry.size
                    break
                if time.monotonic() > until:
                    raise OverloadedError("other models take the memory", retry_after=1.0)
                if self._next_leaving() is None:
                    endless = until == self._patience == math.inf
                    self._changed.wait(None if endless else _LOOK_EVERY)
            self.close_leaving()
        return self._fill(key, entry)

    def use(self, key: Key) -> Entry[Model] | None:
        """Begin a use of a model, without waiting; return None if it is not loaded.

        `release` ends the use, and does not wait either.
        """
        with self._changed:
            entry = self._entries.get(key)
            if entry is None or entry.model is None:
                return None
            self._entries[key] = self._entries.pop(key)
            entry.users += 1
            self._hits += 1
            return entry

    def use_again(self, entry: Entry[Model]) -> Entry[Model]:
        """Begin another use of a model that a use keeps, even of one that was evicted since."""
        with self._changed:
            entry.users += 1
            return entry

    def release(self, entry: Entry[Model]) -> bool:
        """End a use; return whether a model is to be closed, by `close_leaving`."""
        with self._changed:
            entry.users -= 1
            self._evict_for(0)  # a thread that could not wait may have gone beyond the limit
            self._changed.notify_all()
            return self._next_leaving() is not None

    def close_leaving(self) -> None:
        """Close the evicted models that are not in use any more, without holding the lock."""
        while True:
            with self._changed:
                entry = self._next_leaving()
                if entry is None:
                    return
                self._leaving.remove(entry)
            model, entry.model = entry.model, None
            try:
                if model is not None:
                    model.close()
            finally:
                del model
                give_back_memory()
                with self._changed:
                    self._bytes -= entry.size
                    self._changed.notify_all()

    def statistics(self) -> CacheStatistics:
        """Return which models are loaded now, and the counts so far."""
        with self._changed:
            counts = (self._hits, self._loads, self._evictions)
            loaded = tuple(
                str(key) for key, entry in self._entries.items() if entry.model is not None
            )
            return CacheStatistics(loaded, self._bytes, self._limit, *counts)

    def loaded(self) -> dict[Key, Model]:
        """Return the models in memory, the least recently used first."""
        with self._changed:
            return {
                key: entry.model for key, entry in self._entries.items() if entry.model is not None
            }

    def add(self, sizes: Mapping[Key, int]) -> None:
        """Have more models; raise ConfigError if the limit is too low for one of them."""
        with self._changed:
            if self._limit is not None:
                checked_limit(self._limit, self._sizes | dict(sizes), self._pinned)
            self._sizes |= sizes

    def pin(self, keys: Iterable[Key]) -> None:
        """Keep models that are loaded, unless the limit would then be too low for another one."""
        with self._changed, contextlib.suppress(ConfigError):
            pinned = self._pinned | {key for key in keys if key in self._entries}
            if self._limit is not None:
                checked_limit(self._limit, self._sizes, pinned)
            self._pinned = pinned

    def drop(self, keys: Iterable[Key], patience: float | None = None) -> None:
        """Have these models no more; return when they are closed, within `patience` seconds."""
        with self._changed:
            gone = []
            for key in keys:
                self._sizes.pop(key, None)
                self._pinned.discard(key)
                if key in self._entries:
                    gone.append(self._evict(key, patience))
        while True:
            self.close_leaving()
            with self._changed:
                if not any(entry in self._leaving for entry in gone):
                    return
                self._changed.wait(_LOOK_EVERY)

    def close(self) -> None:
        """Close every model once it is not in use; every later use raises ClosedError."""
        with self._changed:
            self._closed = True
            for key in list(self._entries):
                self._evict(key)
            self._changed.notify_all()
        self.close_leaving()

    def _fill(self, key: Key, entry: Entry[Model]) -> Entry[Model]:
        self.close_leaving()
        try:
            model = self._load(key)
        except BaseException:
            with self._changed:
                if entry.leaves_by is None:
                    del self._entries[key]
                else:
                    self._leaving.remove(entry)
                self._bytes -= entry.size
                self._changed.notify_all()
            raise
        with self._changed:
            entry.model = model
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
        for used in (False, True):
            for key, entry in list(self._entries.items()):
                # A model that was evicted in use frees its memory later: no others go for it.
                if sum(other.size for other in self._entries.values()) + size <= self._limit:
                    return
                if key in self._pinned or entry.model is None or used != (entry.users > 0):
                    continue
                self._evictions += 1
                self._evict(key)

    def _evict(self, key: Key, patience: float | None = None) -> Entry[Model]:
        entry = self._entries.pop(key)
        seconds = self._patience if patience is None else patience
        entry.leaves_by = time.monotonic() + seconds
        self._leaving.append(entry)
        return entry

    def _next_leaving(self) -> Entry[Model] | None:
        """Return an evicted model that can be closed: nobody uses it, or its time is over."""
        for entry in self._leaving:
            late = entry.leaves_by is not None and entry.leaves_by < time.monotonic()
            if not entry.users or (late and entry.model is not None):
                return entry
        return None


def memory_of(folder: Path, manifest: Manifest, variant: str | None) -> int:
    """Return about how many bytes a bundle takes: its graph's files and its loaded tokenizer."""
    graph, files = manifest.variant(variant).file, manifest.files_of([variant])
    sizes = {name: record.bytes for name, record in files.items()}
    beside = [path.name for path in folder.glob("*.safetensors")] if manifest.is_checkpoint else []
    # Of files without a manifest, the weights may be in others that the graph names.
    for name in [] if files else {graph, f"{graph}_data", Layout.tokenizer, *beside}:
        with contextlib.suppress(OSError):
            sizes[name] = (folder / name).stat().st_size
    return sum(sizes.values()) + (_TOKENIZER_GROWTH - 1) * sizes.get(Layout.tokenizer, 0)


def checked_limit(limit: float, sizes: Mapping[Any, int], pinned: Collection[Any] = ()) -> int:
    """Return a limit in bytes; raise ConfigError if it is too low for a model beside the pinned."""
    if isinstance(limit, bool) or not isinstance(limit, int | float) or not limit > 0:
        raise ConfigError(field="memory_limit", expected="a number of bytes above 0", value=limit)
    base = sum(sizes[key] for key in set(pinned))
    for key, size in sizes.items():
        needed = base + (0 if key in pinned else size)
        if needed > limit:
            beside = f" beside the pinned {', '.join(map(str, pinned))}" if pinned else ""
            raise ConfigError(
                Setting("memory_limit"),
                f" of {limit / 1e6:.1f} MB is too low: {key}{beside} needs {needed / 1e6:.1f} MB",
            )
    return int(min(limit, 2**63 - 1))


def give_back_memory() -> None:
    """Return free memory to the system; otherwise glibc would keep all that of a tokenizer."""
    if sys.platform == "linux":
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # musl has none
        if trim is not None:
            trim(0)
