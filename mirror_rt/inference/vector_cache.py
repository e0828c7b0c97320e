"""Keep the vectors of token rows in an SQLite file, which threads and processes share."""

from __future__ import annotations

import contextlib
import hashlib
import logging
import sqlite3
import threading
import time
import weakref
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from mirror_rt.errors import ConfigError, DataError, Setting
from mirror_rt.inference.forks import forget_after_fork, leak

LEAST_BYTES = 16 << 20

# What SQLite writes into the header of a file that is ours ("mrtv"), and the version of its tables.
_OURS = (0x6D727476, 1)
_MAKE = (
    "CREATE TABLE vectors (key BLOB NOT NULL UNIQUE, used INTEGER NOT NULL, vector BLOB NOT NULL)",
    "CREATE INDEX by_use ON vectors (used)",
    f"PRAGMA application_id = {_OURS[0]}",
    f"PRAGMA user_version = {_OURS[1]}",
)
_FORGET = "DELETE FROM vectors WHERE rowid IN (SELECT rowid FROM vectors ORDER BY used LIMIT ?)"
_ROWS = 256  # of one question, and of one transaction
# Seconds to wait for another process that writes; and without writing, after that took longer.
_PATIENCE, _PAUSE = 0.5, 10.0
# Reading is cheaper than writing. So a use is written with the next vectors that are stored, if the
# last one is so many milliseconds ago; so many uses are remembered until then.
_SAME_USE, _MOST_USES = 60_000, 1 << 16

Vector = npt.NDArray[np.float32]

logger = logging.getLogger("mirror_rt")


class VectorCache:
    """Vectors of token rows, by the SHA-256 of what makes the vectors and of the row.

    Each has a checksum, and SQLite's write-ahead log keeps transactions whole, so what is found is
    bit for bit what was stored, whenever a process was killed. Where the file cannot be used (it is
    locked, or the disk is full), a warning says so once, and vectors are computed without it. A
    forked process goes without the cache of its parent, since SQLite's locks do not survive a fork.

    Args:
        path: the file, which is made if it is not there.
        most_bytes: bound of its size; the least recently used vectors leave.
        model: everything that determines a vector but its tokens.
        dimension: length D of the vectors.

    Raises:
        ConfigError: the file is not such a cache, cannot be opened, or the bound is too small.
        DataError: the file is damaged; `find` and `store` raise it, too.
    """

    def __init__(self, path: Path, *, most_bytes: int, model: str, dimension: int) -> None:
        if most_bytes < LEAST_BYTES:
            expected = f"at least {LEAST_BYTES}"
            raise ConfigError(field="cache_bytes", expected=expected, value=most_bytes)
        self.on_find: Callable[[int, int], object] | None = None  # gets the hits and the misses
        self._path, self._size = path, 4 * dimension
        self._model = hashlib.sha256(f"{model}\n".encode())
        self._lock = threading.RLock()  # a signal handler may encode, too
        self._uses: set[int] = set()
        self._said, self._paused_until = False, 0.0
        with _naming(path):
            self._db: sqlite3.Connection | None = _open(path)
            self._page = _number(self._db, "page_size")
            self._pages = most_bytes // self._page
            self._db.execute(f"PRAGMA max_page_count = {self._pages}")
        self._closer = weakref.finalize(self, self._db.close)
        forget_after_fork(self)

    def find(self, keys: Sequence[bytes]) -> dict[int, Vector]:
        """Return the vectors that are kept, float32 [D], by the indices of their rows' keys."""
        hashed, found = list(map(self._hashed, keys)), dict[bytes, Vector]()
        with self._using() as db:
            for start in range(0, len(hashed), _ROWS):
                if db is not None:
                    found |= self._read(db, hashed[start : start + _ROWS])
        vectors = {i: found[key] for i, key in enumerate(hashed) if key in found}
        if self.on_find is not None:
            self.on_find(len(vectors), len(keys) - len(vectors))
        return vectors

    def store(self, keys: Sequence[bytes], vectors: Vector) -> None:
        """Keep the finite ones of vectors, float32 [n, D], unless they are kept already."""
        now, rows = _now(), []
        for i in np.flatnonzero(np.isfinite(vectors).all(axis=1)).tolist():
            key, data = self._hashed(keys[i]), vectors[i].tobytes()
            rows.append((key, now, data + _checksum(key, data)))
        for start in range(0, len(rows), _ROWS):
            self._write(rows[start : start + _ROWS])

    def close(self) -> None:
        """Close the file; from then on nothing is found, and nothing stored."""
        if self._uses:
            self._write([])
        with self._lock:
            self._db = None
            self._closer()

    def forget(self) -> bool:
        """Leave the file to the parent process."""
        self._closer.detach()
        leak(self._db)
        self._db, self._lock = None, threading.RLock()
        return False

    def _hashed(self, key: bytes) -> bytes:
        digest = self._model.copy()
        digest.update(key)
        return digest.digest()

    def _read(self, db: sqlite3.Connection, keys: list[bytes]) -> dict[bytes, Vector]:
        marks, found, before = ",".join("?" * len(keys)), {}, _now() - _SAME_USE
        asked = f"SELECT rowid, used, key, vector FROM vectors WHERE key IN ({marks})"
        for number, used, key, blob in db.execute(asked, keys):
            data = blob[: self._size]
            if blob[self._size :] != _checksum(key, data):
                raise sqlite3.DatabaseError("a vector differs from its checksum")
            found[key] = np.frombuffer(data, np.float32)
            if used < before and len(self._uses) < _MOST_USES:
                self._uses.add(number)
        return found

    def _write(self, rows: list[tuple[bytes, int, bytes]]) -> None:
        """Write vectors down, and which of the others were used."""
        with self._using() as db:
            if db is None or time.monotonic() < self._paused_until:
                return
            uses, self._uses = [(_now(), number) for number in self._uses], set()
            with db:
                db.execute("BEGIN IMMEDIATE")
                db.executemany("UPDATE vectors SET used = ? WHERE rowid = ?", uses)
                self._make_room(db, len(rows))
                db.executemany("INSERT OR IGNORE INTO vectors VALUES (?, ?, ?)", rows)

    def _make_room(self, db: sqlite3.Connection, rows: int) -> None:
        """Delete the least recently used vectors, an eighth at a time, until rows fit in."""
        needed = rows * (2 + self._size // self._page) + 16
        while _number(db, "page_count") - _number(db, "freelist_count") + needed > self._pages:
            (n,) = db.execute("SELECT count(*) FROM vectors").fetchone()
            if not n:
                return
            db.execute(_FORGET, [max(rows, n // 8)])

    @contextlib.contextmanager
    def _using(self) -> Iterator[sqlite3.Connection | None]:
        """Give the open file to a block, and go on if it cannot be used now."""
        with self._lock:
            try:
                with _naming(self._path):
                    yield self._db
            except ConfigError as error:
                self._paused_until = time.monotonic() + _PAUSE
                if not self._said:
                    logger.warning("vectors are not cached: %s (said once)", error)
                self._said = True


@contextlib.contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Raise errors that name the file."""
    try:
        yield
    except sqlite3.OperationalError as error:
        raise ConfigError(Setting("cache", str(path)), f" cannot be used: {error}") from error
    except sqlite3.DatabaseError as error:
        raise DataError(
            f"{path} is no cache of vectors, or damaged ({error}): name another file, or delete it"
        ) from error


def _open(path: Path) -> sqlite3.Connection:
    """Open a cache, and make it if it is not there."""
    db = sqlite3.connect(path, timeout=_PATIENCE, isolation_level=None, check_same_thread=False)
    try:
        if _identity(db) != _OURS:
            with db:
                db.execute("BEGIN IMMEDIATE")  # another process may make it at this moment
                found, made = _identity(db), _number(db, "schema_version")
                if found != _OURS and (made or found != (0, 0)):
                    raise sqlite3.DatabaseError("it holds other tables")
                for statement in _MAKE if found != _OURS else ():
                    db.execute(statement)
        # While another process switches to the log, or reads, SQLite refuses to, without waiting.
        # What is not switched is safe, too, and the next process that opens it switches it.
        with contextlib.suppress(sqlite3.OperationalError):
            db.execute("PRAGMA journal_mode = WAL")
        db.execute("PRAGMA synchronous = NORMAL")
    except BaseException:
        db.close()
        raise
    return db


def _identity(db: sqlite3.Connection) -> tuple[int, int]:
    return _number(db, "application_id"), _number(db, "user_version")


def _number(db: sqlite3.Connection, pragma: str) -> int:
    return int(db.execute(f"PRAGMA {pragma}").fetchone()[0])


def _checksum(key: bytes, data: bytes) -> bytes:
    return zlib.crc32(data, zlib.crc32(key)).to_bytes(4, "little")


def _now() -> int:
    return time.time_ns() // 1_000_000
