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

# The number in the header of an SQLite file that is ours ("mrtv"), and the version of its tables.
_OURS = (0x6D727476, 1)
_MAKE = (
    "CREATE TABLE vectors (key BLOB NOT NULL UNIQUE, used INTEGER NOT NULL, vector BLOB NOT NULL)",
    "CREATE INDEX by_use ON vectors (used)",
    f"PRAGMA application_id = {_OURS[0]}",
    f"PRAGMA user_version = {_OURS[1]}",
)
# By these a damaged file is known to be ours: the words or the number of its first page, or zeros.
_WORDS, _ZEROS, _HEAD = _MAKE[0][:60].encode(), bytes(512), 1 << 16
_MAGIC, _ID = b"SQLite format 3\0", _OURS[0].to_bytes(4, "big")
_FORGET = "DELETE FROM vectors WHERE rowid IN (SELECT rowid FROM vectors ORDER BY used LIMIT ?)"
_ROWS = 256  # of one question, and of one transaction
# Seconds to wait for another process that writes; and without writing, after that took longer.
_PATIENCE, _PAUSE = 0.5, 10.0
# Writing costs more than reading. So the use of a vector is recorded once a minute at most, in ms,
# with the next vectors that are stored; this number of uses is remembered until then.
_SAME_USE, _MOST_USES = 60_000, 1 << 16

Vector = npt.NDArray[np.float32]

logger = logging.getLogger("mirror_rt")


class VectorCache:
    """Vectors of token rows, by the SHA-256 of the model's identity and of the row.

    Each has a checksum, and SQLite's write-ahead log keeps transactions whole, so each vector is
    found bit for bit as it was stored, whenever a process was killed. No fault of the file fails a
    call: where it cannot be used (it is locked, or the disk is full), vectors are computed without
    it; a damaged vector is deleted, and a damaged file made anew. A warning says each once, with
    the path. A forked process goes without the cache of its parent, since SQLite's locks do not
    survive a fork.

    Args:
        path: the file, which is made if it is not there.
        most_bytes: bound of its size; the least recently used vectors leave.
        model: everything that determines a vector but its tokens.
        dimension: length D of the vectors.

    Raises:
        ConfigError: there can be no file at `path`, or the bound is too small.
        DataError: the file is one of something else, and is left alone.
    """

    def __init__(self, path: Path, *, most_bytes: int, model: str, dimension: int) -> None:
        if most_bytes < LEAST_BYTES:
            expected = f"at least {LEAST_BYTES}"
            raise ConfigError(field="cache_bytes", expected=expected, value=most_bytes)
        self.on_find: Callable[[int, int], object] | None = None  # gets the hits and the misses
        self._path, self._size = path, 4 * dimension
        self._model = hashlib.sha256(f"{model}\n".encode())
        self._most_bytes = most_bytes
        self._lock = threading.RLock()  # a signal handler may encode, too
        self._uses: set[int] = set()
        self._said, self._paused_until = set[str](), 0.0
        self._db: sqlite3.Connection | None = None
        self._closed, self._inode = False, 0
        if path.exists() and not path.is_file():  # a pipe would be waited for
            raise ConfigError(Setting("cache", str(path)), " cannot be used: it is no regular file")
        self._reopen(at_start=True)
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
            self._closed = True
            self._let_go()

    def forget(self) -> bool:
        """Leave the file to the parent process."""
        if self._db is not None:
            self._closer.detach()
            leak(self._db)
        self._db, self._closed, self._lock = None, True, threading.RLock()
        return False

    def _hashed(self, key: bytes) -> bytes:
        digest = self._model.copy()
        digest.update(key)
        return digest.digest()

    def _read(self, db: sqlite3.Connection, keys: list[bytes]) -> dict[bytes, Vector]:
        marks, found, before = ",".join("?" * len(keys)), {}, _now() - _SAME_USE
        asked = f"SELECT rowid, used, key, vector FROM vectors WHERE key IN ({marks})"
        damaged = []
        for number, used, key, blob in db.execute(asked, keys):
            if not (isinstance(key, bytes) and isinstance(blob, bytes) and isinstance(used, int)):
                raise sqlite3.DatabaseError("a row has values of other types")
            data = blob[: self._size]
            if blob[self._size :] != _checksum(key, data):
                damaged.append([number])
                continue
            found[key] = np.frombuffer(data, np.float32)
            if used < before and len(self._uses) < _MOST_USES:
                self._uses.add(number)
        if damaged:
            self._say("a vector that differs from its checksum was deleted")
            db.executemany("DELETE FROM vectors WHERE rowid = ?", damaged)
        return found

    def _write(self, rows: list[tuple[bytes, int, bytes]]) -> None:
        """Write vectors down, and which of the others were used."""
        with self._using() as db:
            if db is None or self._is_paused():
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
            if db.execute(_FORGET, [max(rows, n // 8)]).rowcount <= 0:
                raise sqlite3.DatabaseError("its rows cannot be deleted")

    @contextlib.contextmanager
    def _using(self) -> Iterator[sqlite3.Connection | None]:
        """Give the open file to a block, and go on if it cannot be used now."""
        with self._lock:
            if self._db is not None and self._inode != _inode(self._path):
                self._let_go()  # another process has made it anew
            if self._db is None and not self._closed and not self._is_paused():
                self._reopen()
            try:
                yield self._db
            except sqlite3.DatabaseError as error:
                # SQLITE_ERROR says that a table or a column is not there.
                passing = isinstance(error, sqlite3.OperationalError)
                if passing and error.sqlite_errorcode != sqlite3.SQLITE_ERROR:
                    self._pause(f"it cannot be used now ({error})")
                else:
                    self._renew(error)

    def _reopen(self, *, at_start: bool = False) -> None:
        """Open the file; at the start, refuse a place that cannot have one of ours."""
        try:
            self._take(_open(self._path))
        except sqlite3.OperationalError as error:
            if at_start and error.sqlite_errorcode & 0xFF == sqlite3.SQLITE_CANTOPEN:
                named = Setting("cache", str(self._path))
                raise ConfigError(named, f" cannot be used: {error}") from error
            self._pause(f"it cannot be used now ({error})")
        except sqlite3.DatabaseError as error:
            if at_start and not isinstance(error, _OtherVersionError) and not _is_ours(self._path):
                raise DataError(
                    f"{self._path} is no cache of vectors, or damaged ({error}): name another "
                    "file, or delete it"
                ) from error
            self._renew(error)

    def _is_paused(self) -> bool:
        return time.monotonic() < self._paused_until

    def _pause(self, why: str) -> None:
        self._paused_until = time.monotonic() + _PAUSE
        self._say(why)

    def _say(self, why: str) -> None:
        """Warn of a kind of fault once."""
        if (kind := why.partition("(")[0]) not in self._said:
            logger.warning("the cache of vectors %s: %s (said once)", self._path, why)
        self._said.add(kind)

    def _take(self, db: sqlite3.Connection) -> None:
        """Use an open file from now on."""
        self._db = db
        self._closer = weakref.finalize(self, db.close)
        self._inode = _inode(self._path)
        self._page = _number(db, "page_size")
        self._pages = self._most_bytes // self._page
        db.execute(f"PRAGMA max_page_count = {self._pages}")

    def _let_go(self) -> None:
        """Close the file."""
        if self._db is not None:
            self._db = None
            self._closer()

    def _renew(self, error: sqlite3.DatabaseError) -> None:
        """Make a damaged file anew, unless another process has done so, or it is not ours.

        The file stays open while it is compared and removed: until then no other one can get its
        inode.
        """
        if isinstance(error, _OtherVersionError):
            self._pause(f"it is of another version, and nothing is cached ({error})")
            return
        try:
            inode = self._inode if self._db is not None else _inode(self._path)
            if not _is_ours(self._path):
                self._pause(f"another file took its place ({error})")
            elif _inode(self._path) == inode:
                self._say(f"it is damaged, and made anew ({error})")
                for end in ("", "-wal", "-shm"):
                    self._path.with_name(self._path.name + end).unlink(missing_ok=True)
            self._uses.clear()
            self._let_go()
            if not self._is_paused():
                self._take(_open(self._path))
        except (OSError, sqlite3.Error) as again:  # computing without it never fails
            self._let_go()
            self._pause(f"it is damaged, and cannot be made anew ({again})")


class _OtherVersionError(sqlite3.DatabaseError):
    """The file is a cache of a later version."""


def _is_ours(path: Path) -> bool:
    """Tell whether a file that cannot be read as a cache was one, and no other program's."""
    if not path.exists():
        return True
    with path.open("rb") as file:
        head = file.read(_HEAD)
    if len(head) < len(_ZEROS):  # no SQLite file is as short
        return _MAGIC.startswith(head[: len(_MAGIC)])
    return _WORDS in head or head[68:72] == _ID or head[: len(_ZEROS)] == _ZEROS


def _inode(path: Path) -> int:
    """Return the inode of a file; 0 if there is none."""
    try:
        return path.stat().st_ino
    except OSError:
        return 0


def _open(path: Path) -> sqlite3.Connection:
    """Open a cache, and make it if it is not there."""
    db = sqlite3.connect(path, timeout=_PATIENCE, isolation_level=None, check_same_thread=False)
    try:
        if _identity(db) != _OURS:
            with db:
                db.execute("BEGIN IMMEDIATE")  # another process may make it at this moment
                found, made = _identity(db), _number(db, "schema_version")
                if found[0] == _OURS[0] and found != _OURS:
                    raise _OtherVersionError(f"its version is {found[1]}")
                if found != _OURS and (made or found != (0, 0)):
                    raise sqlite3.DatabaseError("it holds other tables")
                for statement in _MAKE if found != _OURS else ():
                    db.execute(statement)
        # While another process switches to the log, or reads, SQLite refuses to, without waiting.
        # A file that is not switched is safe, too, and the next process that opens it switches it.
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
