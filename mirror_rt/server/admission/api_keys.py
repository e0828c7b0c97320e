"""Check API keys in constant time, and read them again when their file changes."""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import logging
import os
import stat
import time
from collections.abc import Iterable
from pathlib import Path

from mirror_rt.errors import ConfigError

logger = logging.getLogger("mirror_rt.server")

_LOOK_EVERY = 1.0  # seconds


class ApiKeys:
    """Hold the keys that are accepted; with no key at all, everybody is let in.

    Args:
        keys: keys that are given directly.
        file: file with one key per line; empty lines and lines that begin with `#` are skipped.
    """

    def __init__(self, keys: Iterable[str] = (), file: Path | None = None) -> None:
        self._given = [_digest(key) for key in keys]
        self._file = file
        self._looked = time.monotonic()
        self._stamp = _stamp(file)
        self._from_file = [] if file is None else _read(file)

    @property
    def required(self) -> bool:
        """Return whether a request needs a key."""
        return bool(self._given or self._file is not None)

    def accepts(self, authorization: str | None) -> bool:
        """Return whether an `Authorization` header's value is `Bearer` and one of the keys.

        The time that this takes reveals nothing about a key: its digest is compared with all.
        """
        self._look()
        scheme, _, key = (authorization or "").partition(" ")
        digest = hashlib.sha256(key.strip().encode("utf-8", "surrogatepass")).digest()
        matches = [hmac.compare_digest(digest, known) for known in self._given + self._from_file]
        return any(matches) and scheme.lower() == "bearer"

    def reload(self) -> None:
        """Read the file again; if that fails, the keys stay as they are."""
        if self._file is None:
            return
        try:
            self._stamp, self._from_file = _stamp(self._file), _read(self._file)
        except ConfigError as error:
            logger.error("the API keys stay as they were: %s", error)
        else:
            logger.info("API keys read: %d", len(self._from_file))

    def _look(self) -> None:
        if self._file is None or time.monotonic() - self._looked < _LOOK_EVERY:
            return
        self._looked = time.monotonic()
        stamp = _stamp(self._file)
        if stamp != self._stamp:
            self._stamp = stamp  # so that a broken file is reported once
            self.reload()


def _stamp(file: Path | None) -> tuple[int, int, int] | None:
    try:
        status = file.stat() if file is not None else None
    except OSError:
        return None
    return None if status is None else (status.st_mtime_ns, status.st_size, status.st_ino)


def _read(file: Path) -> list[bytes]:
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        raise ConfigError(f"the API keys of {file} cannot be read: {reason}") from error
    _warn_if_open(file)
    keys = [key for line in lines if (key := line.strip()) and not key.startswith("#")]
    if not keys:
        raise ConfigError(f"{file} has no API key: expected one a line")
    return [_digest(key) for key in keys]


def _warn_if_open(file: Path) -> None:
    """Warn if everybody can read the keys, or if others than the owner can add one."""
    with contextlib.suppress(OSError):  # the file has gone, and its keys stay as they are
        mode = stat.S_IMODE(file.stat().st_mode)
        if os.name == "posix" and mode & (stat.S_IRWXO | stat.S_IWGRP) & ~stat.S_IXOTH:
            logger.warning(
                "the API keys of %s can be read or written by others (mode %o): run chmod 600 %s",
                file, mode, file,
            )  # fmt: skip


def _digest(key: str) -> bytes:
    if not key or not key.isascii() or not key.isprintable() or " " in key:
        raise ConfigError("an API key must be printable ASCII without spaces")
    return hashlib.sha256(key.encode()).digest()
