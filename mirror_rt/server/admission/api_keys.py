"""API keys: several, compared in constant time, read again when their file changes."""

from __future__ import annotations

import hashlib
import hmac
import logging
import time
from collections.abc import Iterable
from pathlib import Path

from mirror_rt.errors import ConfigError

__all__ = ["ApiKeys"]

logger = logging.getLogger("mirror_rt.server")

_LOOK_EVERY = 1.0  # seconds


class ApiKeys:
    """The keys that are accepted; none at all lets everybody in.

    Args:
        keys: given directly.
        file: with a key a line; empty lines and those that begin with `#` count for nothing.

    Raises:
        ConfigError: the file cannot be read or has no key, or a key is not plain ASCII.
    """

    def __init__(self, keys: Iterable[str] = (), file: Path | None = None) -> None:
        self._given = [_digest(key) for key in keys]
        self._file = file
        self._looked = time.monotonic()
        self._stamp = _stamp(file)
        self._from_file = [] if file is None else _read(file)

    @property
    def required(self) -> bool:
        """Whether a request needs a key."""
        return bool(self._given or self._file is not None)

    def accepts(self, authorization: str | None) -> bool:
        """Whether the value of an `Authorization` header is `Bearer` and one of the keys.

        The time it takes tells nothing of a key: digests are compared, each with all.
        """
        self._look()
        scheme, _, key = (authorization or "").partition(" ")
        digest = hashlib.sha256(key.strip().encode("utf-8", "surrogatepass")).digest()
        matches = [hmac.compare_digest(digest, known) for known in self._given + self._from_file]
        return any(matches) and scheme.lower() == "bearer"

    def reload(self) -> None:
        """Read the file again; where that fails, the keys stay as they are."""
        if self._file is None:
            return
        try:
            self._stamp, self._from_file = _stamp(self._file), _read(self._file)
        except ConfigError as error:
            logger.error("the API keys stay as they were: %s", error)
        else:
            logger.info("%d API keys read", len(self._from_file))

    def _look(self) -> None:
        if self._file is None or time.monotonic() - self._looked < _LOOK_EVERY:
            return
        self._looked = time.monotonic()
        stamp = _stamp(self._file)
        if stamp != self._stamp:
            self._stamp = stamp  # said once
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
    keys = [key for line in lines if (key := line.strip()) and not key.startswith("#")]
    if not keys:
        raise ConfigError(f"{file} has no API key: expected one a line")
    return [_digest(key) for key in keys]


def _digest(key: str) -> bytes:
    if not key or not key.isascii() or not key.isprintable() or " " in key:
        raise ConfigError("an API key must be printable ASCII without spaces")
    return hashlib.sha256(key.encode()).digest()
