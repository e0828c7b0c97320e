"""Count and show the progress of a bulk job: texts and time left, tokens/s and padding."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

from mirror_rt.errors import InvalidTextError, ProcessGroupError
from mirror_rt.io.atomic import os_reason
from mirror_rt.pipeline.results import RowCounts
from mirror_rt.progress import progress_bar, repeatedly
from mirror_rt.tokens.padding import PaddedBatch

_SECONDS_BETWEEN = 0.5


class RunCounter:
    """Count texts that are done and tokens that ran, for a bar that moves while a window runs.

    Of equal texts one runs, and all are done then.

    `shared` are three integers to which other processes add as well; None for one process.
    """

    def __init__(self, shared: Any = None) -> None:
        self._values = [0, 0, 0] if shared is None else shared
        self._lock = threading.Lock() if shared is None else shared.get_lock()

    def add(self, texts: int, tokens: int, padded: int) -> None:
        """Count texts that are done, tokens that ran, and tokens including padding."""
        with self._lock:
            for i, n in enumerate((texts, tokens, padded)):
                self._values[i] += n

    def add_texts(self, texts: int) -> None:
        """Count texts that are done."""
        self.add(texts, 0, 0)

    def add_batch(self, batch: PaddedBatch) -> None:
        """Count the tokens of a batch that ran."""
        self.add(0, int(batch.attention_mask.sum()), batch.attention_mask.size)

    def read(self) -> tuple[int, int, int]:
        """Return the numbers of texts, of tokens, and of tokens including padding."""
        with self._lock:
            texts, tokens, padded = self._values
        return texts, tokens, padded


@dataclass(frozen=True, slots=True, kw_only=True)
class JobReport:
    """Report the outcome of a job."""

    counts: RowCounts  # the rows of the output, and which of them have no vector of a whole text
    resumed: int  # number of rows that an earlier, interrupted run had finished
    seconds: float  # time spent on encoding, without loading
    tokens: int  # number of tokens that were run, including special tokens
    padding: float  # share of padding among the tokens that were run

    @property
    def rows(self) -> int:
        """Number of rows of the output."""
        return self.counts.rows

    @property
    def invalid(self) -> int:
        """Number of rows without a vector."""
        return self.counts.invalid


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
        self._moving = ExitStack()

    def use(self, counter: RunCounter) -> None:
        """Show this counter, and start measuring time."""
        self.counter = counter
        self._began = time.perf_counter()

    def spent(self) -> dict[str, Any]:
        """Return the seconds, tokens and padding of a `JobReport`."""
        _, tokens, padded = self.counter.read()
        return {"seconds": self.seconds, "tokens": tokens, "padding": _padding(tokens, padded)}

    def __enter__(self) -> Progress:
        if self._show:
            self._moving.callback(self._move)  # once more at the end
            self._moving.enter_context(repeatedly(self._move, _SECONDS_BETWEEN))
        return self

    def __exit__(self, *_: object) -> None:
        self.seconds = time.perf_counter() - self._began
        self._moving.close()
        self._bar.close()

    def _move(self) -> None:
        texts, tokens, padded = self.counter.read()
        seconds = max(1e-9, time.perf_counter() - self._began)
        waste = f"{tokens / seconds:,.0f} tokens/s, padding {_padding(tokens, padded):.1%}"
        self._bar.set_postfix_str(waste, refresh=False)
        self._bar.update(self._first + texts - self._bar.n)


def _padding(tokens: int, padded: int) -> float:
    return 1 - tokens / padded if padded else 0.0


@contextmanager
def told_how_to_resume(saved: Callable[[], str]) -> Iterator[None]:
    """Add to an error how to go on with the finished work that `saved` names, if any."""
    try:
        yield
    except (KeyboardInterrupt, OSError, ProcessGroupError, InvalidTextError) as error:
        if not (said := saved()):
            raise
        said = f"{said}: go on with --resume"
        if isinstance(error, OSError):
            raise OSError(f"{os_reason(error)}; {said}") from error
        if isinstance(error, KeyboardInterrupt):
            raise KeyboardInterrupt(f"interrupted; {said}") from error
        error.args = (f"{error}; {said}",)
        raise
