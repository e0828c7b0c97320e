"""Log every request and its outcome, as text or JSON lines; never log a text or a key."""

from __future__ import annotations

import atexit
import logging
import os
import sys
import traceback
from datetime import UTC, datetime

import orjson

_NAMES = {"DEBUG": "debug", "INFO": "info", "WARNING": "warning"}


class JsonFormatter(logging.Formatter):
    """Format a record as one line of JSON, with the fields of `extra={"fields": {...}}`."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the record as JSON."""
        values = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": _NAMES.get(record.levelname, "error"),
            "logger": record.name,
            "message": record.getMessage(),
        } | getattr(record, "fields", {})
        if record.exc_info and record.exc_info[1] is not None:
            values["exception"] = where(record.exc_info[1])
        return orjson.dumps(values, default=str).decode()


class _TextFormatter(logging.Formatter):
    """Format a record with its fields as one line for people."""

    def format(self, record: logging.LogRecord) -> str:
        fields = " ".join(f"{k}={v}" for k, v in getattr(record, "fields", {}).items())
        line = f"{self.formatTime(record)} {record.levelname} {record.getMessage()} {fields}"
        if record.exc_info and record.exc_info[1] is not None:
            line += f" {where(record.exc_info[1])}"
        return line.rstrip()


def where(error: BaseException) -> str:
    """Return an error's type and traceback, but not its message, which may contain a text."""
    frames = traceback.extract_tb(error.__traceback__)
    places = " < ".join(f"{frame.name}:{frame.lineno}" for frame in reversed(frames))
    return f"{type(error).__name__} at {places}"


def configure_logging(*, level: str, as_json: bool) -> None:
    """Send all logs to standard error; if that cannot be written (a full disk), go on."""
    logging.raiseExceptions = False
    # The logs show none of this, and looking it up would cost time at every request.
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
    logging.logAsyncioTasks = False  # type: ignore[attr-defined]  # since Python 3.12
    logging._srcfile = None  # as logging's documentation advises
    atexit.register(_drop_unwritten)
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if as_json else _TextFormatter())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    for name in ("uvicorn.error", "asyncio"):  # their messages of lower levels are of no use
        logging.getLogger(name).setLevel(logging.WARNING)


def _drop_unwritten() -> None:
    """Keep output that a full disk left unwritten from making Python exit with status 120."""
    try:
        sys.stderr.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())
