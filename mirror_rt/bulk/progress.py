"""Show the progress of a bulk job: texts and time left, tokens/s and padding."""

from __future__ import annotations

import threading
import time
from typing import TypedDict

from mirror_rt.bulk.workers import RunCounter
from mirror_rt.progress import progress_bar

_SECONDS_BETWEEN = 0.5


class Spent(TypedDict):
    """What a job has taken: see the reports, which have fields of these names."""

    seconds: float
    tokens: int
    padding: float


class Progress:
    """A progress bar on standard error, which a thread updates while a window is still running.

    `done` of `total` texts (None if unknown) are finished already.
    """

    def __init__(self, show: bool, total: int | None, done: int) -> None:
        self.counter = RunCounter()
        self.seconds = 0.0
        self._began = time.perf_counter()
        self._bar = progress_bar(total, show, initial=done)
        self._show, self._first = show, done
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._move_until_over, daemon=True)

    def use(self, counter: RunCounter) -> None:
        """Show this counter, and start measuring time."""
        self.counter = counter
        self._began = time.perf_counter()

    def spent(self) -> Spent:
        """Return the seconds of encoding, the tokens that ran, and the share of padding in them."""
        _, tokens, padded = self.counter.read()
        return {"seconds": self.seconds, "tokens": tokens, "padding": _padding(tokens, padded)}

    def __enter__(self) -> Progress:
        if self._show:
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.seconds = time.perf_counter() - self._began
        if self._show:
            self._over.set()
            self._thread.join()
            self._move()
        self._bar.close()

    def _move_until_over(self) -> None:
        while not self._over.wait(_SECONDS_BETWEEN):
            self._move()

    def _move(self) -> None:
        texts, tokens, padded = self.counter.read()
        seconds = max(1e-9, time.perf_counter() - self._began)
        waste = f"{tokens / seconds:,.0f} tokens/s, padding {_padding(tokens, padded):.1%}"
        self._bar.set_postfix_str(waste, refresh=False)
        self._bar.update(self._first + texts - self._bar.n)


def _padding(tokens: int, padded: int) -> float:
    return 1 - tokens / padded if padded else 0.0
