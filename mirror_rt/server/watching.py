"""Look in a thread, regularly and on request, whether something has changed."""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Sequence
from pathlib import Path

_LOOK_EVERY = 1.0  # seconds


class Watcher:
    """Calls `look` in a thread of its own every `interval` seconds, or on request alone (None).

    A disk that does not answer holds up that thread, and not the event loop.
    """

    def __init__(self, interval: float | None) -> None:
        self._interval = interval
        # Of all queues, only this one may be used by a signal handler.
        self._asked: queue.SimpleQueue[bool] = queue.SimpleQueue()
        name = f"mirror_rt-{type(self).__name__}"
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def watch(self) -> None:
        """Begin to look."""
        self._thread.start()

    def ask(self) -> None:
        """Look soon; signal handlers may call this."""
        self._asked.put(True)

    def close(self) -> None:
        """Stop looking."""
        self._asked.put(False)

    def look(self, *, asked: bool = False) -> None:
        """Act on changes, or on being `asked`; a subclass says how."""
        raise NotImplementedError

    def _run(self) -> None:
        while True:
            asked = False
            with contextlib.suppress(queue.Empty):
                asked = self._asked.get(timeout=self._interval)
                if not asked:
                    return
            self.look(asked=asked)


class WatchedFiles(Watcher):
    """Small files that are read again where one has changed, or on request."""

    def __init__(self, files: Sequence[Path]) -> None:
        super().__init__(_LOOK_EVERY if files else None)
        self._files = files
        self._stamps = [_stamp(file) for file in files]

    def look(self, *, asked: bool = False) -> None:
        """Read the files again if one has changed, or if `asked`."""
        stamps = [_stamp(file) for file in self._files]
        if self._files and (asked or stamps != self._stamps):
            self._stamps = stamps  # a broken file, too, is reported once
            self.read_again()

    def read_again(self) -> None:
        """Read the files; where that fails, log it and keep their earlier contents."""
        raise NotImplementedError


def _stamp(file: Path) -> tuple[int, int, int] | None:
    try:
        status = file.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino
