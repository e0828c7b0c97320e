"""Check API keys in constant time, and read them again when their file changes."""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import logging
import os
import stat
from collections.abc import Iterable
from pathlib import Path

from mirror_rt.errors import ConfigError
from mirror_rt.io.limits import read_regular
from mirror_rt.server.watching import WatchedFiles

logger = logging.getLogger("mirror_rt.server")

_MOST_BYTES = 1 << 20  # of a file of keys


class ApiKeys(WatchedFiles):
    """Hold the keys that are accepted; with no key at all, everybody is let in.

    The file has one key per line; empty lines and lines that begin with `#` are skipped. It is read
    in a thread of its own. A ConfigError says that it is no regular file of at most 1 MiB, has no
    key, or that one of the keys is not printable ASCII.
    """

    def __init__(self, keys: Iterable[str] = (), file: Path | None = None) -> None:
        self._given = [_digest(key) for key in keys]
        super().__init__([] if file is None else [file])
        self._from_file = [] if file is None else _read(file)

    @property
    def required(self) -> bool:
        """Return whether a request needs a key."""
        return bool(self._given or self._files)

    def accepts(self, authorization: str | None) -> bool:
        """Return whether an `Authorization` header's value is `Bearer` and one of the keys.

        The time that this takes reveals nothing about a key: its digest is compared with all.
        """
        scheme, _, key = (authorization or "").partition(" ")
        digest = hashlib.sha256(key.strip().encode("utf-8", "surrogatepass")).digest()
        matches = [hmac.compare_digest(digest, known) for known in self._given + self._from_file]
        return any(matches) and scheme.lower() == "bearer"

    def read_again(self) -> None:
        """Read the file; where that fails, the keys stay."""
        try:
            self._from_file = _read(self._files[0])
        except ConfigError as error:
            logger.error("the API keys stay as they were: %s", error)
        else:
            logger.info("API keys read: %d", len(self._from_file))


def _read(file: Path) -> list[bytes]:
    try:
        lines = read_regular(file, _MOST_BYTES).decode().splitlines()
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
