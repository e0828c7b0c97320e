"""Show the progress of long work: a bar on a terminal, elsewhere a line every ten seconds."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path

SECONDS_BETWEEN_LINES = 10.0
_SECONDS_ON_A_TERMINAL = 0.2
_LEAST_TOTAL = 10  # units of a work whose end is estimated

logger = logging.getLogger("mirror_rt")


@contextlib.contextmanager
def repeatedly(function: Callable[[], object], seconds: float) -> Iterator[None]:
    """Call a function again after these seconds, in a thread, until the block ends."""
    over = threading.Event()

    def repeat() -> None:
        while not over.wait(seconds):
            function()

    thread = threading.Thread(target=repeat, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


class ProgressBar:
    """Counts, and shows nothing; the methods are those of a tqdm bar that are used here.

    Attributes:
        n: number of units that are done.
    """

    def __init__(self, done: int) -> None:
        self.n = done
        self.said = ""

    def update(self, n: int) -> None:
        """Count `n` more units."""
        self.n += n

    def set_postfix_str(self, s: str, refresh: bool = True) -> None:
        """Show the current step behind the bar."""
        self.said = s

    def close(self) -> None:
        """End the bar, and leave it on the screen."""


class _Lines(ProgressBar):
    """Writes to standard error how far the work is, from a thread, so that no step is silent."""

    def __init__(self, total: int | None, unit: str, desc: str, done: int) -> None:
        super().__init__(done)
        self._total, self._unit, self._desc, self._first = total, unit, desc, done
        self._began = self._changed = time.monotonic()
        self._shown, self._unchanged = (done, ""), 0
        self._writing = contextlib.ExitStack()
        self._writing.enter_context(repeatedly(self._write, SECONDS_BETWEEN_LINES))

    def update(self, n: int) -> None:
        super().update(n)
        self._changed = time.monotonic()

    def close(self) -> None:
        self._writing.close()

    def _write(self) -> None:
        # A step that lasts is told of again after 1, 2, 4, 8 ... times ten seconds.
        shown = self.n, self.said
        self._unchanged = self._unchanged + 1 if shown == self._shown else 0
        self._shown = shown
        if self._unchanged & (self._unchanged - 1):
            return
        sys.stderr.write(self._line() + "\n")
        sys.stderr.flush()

    def _line(self) -> str:
        seconds, fresh = time.monotonic() - self._began, self.n - self._first
        parts = [f"{self._desc}: {self.n:,} {self._unit}s", f"{describe_seconds(seconds)} so far"]
        if self._total:
            parts[0] = (
                f"{self._desc}: {self.n:,} of {self._total:,} {self._unit}s "
                f"({self.n / self._total:.0%})"
            )
            # Few steps are too unequal to tell from some of them how long the others take.
            if fresh > 0 and self.n < self._total and self._total >= _LEAST_TOTAL:
                took = self._changed - self._began
                left = (self._total - self.n) * took / fresh - (seconds - took)
                parts.append(f"about {describe_seconds(max(left, 1))} left")
        return ", ".join([*parts, *filter(None, [self.said])])


def describe_seconds(seconds: float) -> str:
    """Describe a duration: in seconds below 100, in minutes above."""
    return f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.0f} min"


def shows_progress(show: bool | None) -> bool:
    """Return whether a bar is shown; None if the logger `mirror_rt` is at level INFO."""
    return logger.isEnabledFor(logging.INFO) if show is None else show


def progress_bar(
    total: int | None,
    show: bool | None,
    *,
    unit: str = "text",
    desc: str = "encode",
    initial: int = 0,
) -> ProgressBar:
    """Return a bar of `total` units (None if unknown), `initial` of which are done.

    `show` is that of `shows_progress`. Close the bar: where standard error is no terminal (or a
    notebook), or tqdm is not installed, a thread writes its lines until then.
    """
    if not shows_progress(show):
        return ProgressBar(initial)
    if (sys.stderr.isatty() or "ipykernel" in sys.modules) and find_spec("tqdm") is not None:
        from tqdm import tqdm

        bar: ProgressBar = tqdm(total=total, unit=unit, desc=desc, initial=initial)
        return bar
    return _Lines(total, unit, desc, initial)


@contextlib.contextmanager
def transfer_progress(doing: str, folder: Path | None = None) -> Iterator[None]:
    """Show on standard error that a transfer goes on, until the block ends.

    A terminal has one line that changes and then disappears; elsewhere a line comes every ten
    seconds. It has the bytes that have come into `folder` since the start, if one is given.
    """
    terminal = sys.stderr.isatty()
    began, before = time.monotonic(), _size(folder)

    def show() -> None:
        parts = [describe_seconds(time.monotonic() - began)]
        if folder is not None:
            parts.insert(0, f"{(_size(folder) - before) / 1e6:.0f} MB")
        line = f"{doing}: {', '.join(parts)} so far"
        sys.stderr.write(f"\r{line}" if terminal else f"{line}\n")
        sys.stderr.flush()

    try:
        with repeatedly(show, _SECONDS_ON_A_TERMINAL if terminal else SECONDS_BETWEEN_LINES):
            yield
    finally:
        if terminal:
            sys.stderr.write("\r\033[K")  # the line has done its work
            sys.stderr.flush()


def _size(folder: Path | None) -> int:
    """Return the bytes of the files in a folder that somebody is writing."""
    total = 0
    for place, _, names in os.walk(folder) if folder is not None else ():
        for name in names:
            with contextlib.suppress(OSError):  # it has been moved or removed since
                total += Path(place, name).lstat().st_size
    return total
