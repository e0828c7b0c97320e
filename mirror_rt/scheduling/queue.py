"""The bounded queue between the callers of a scheduler and its devices; thread-safe."""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

from mirror_rt.errors import ClosedError, ConfigError, OverloadedError
from mirror_rt.scheduling.requests import BatchReport, Request, SchedulerStatistics
from mirror_rt.scheduling.waiting import WaitingText, WaitingTexts


class Work(NamedTuple):
    """The next work of a device: a batch to run, and requests whose deadline has passed."""

    batch: list[WaitingText]
    expired: list[Request]


class RequestQueue:
    """The queue of requests: they pass `admit`, `put`, `take`, and then `fill` or `end`.

    Args:
        max_texts: most texts that may wait.
        max_tokens: most tokens that may wait.
        token_budget: most padded tokens of a batch of more than one text.
        run_cost: fixed cost of a run, expressed in tokens.
    """

    def __init__(
        self, *, max_texts: int, max_tokens: int, token_budget: int, run_cost: int
    ) -> None:
        self._max_texts, self._max_tokens = max_texts, max_tokens
        self._token_budget, self._run_cost = token_budget, run_cost
        # Reentrant, because cancelling a future under the lock calls `end` again.
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._waiting = WaitingTexts()
        self._admitted = 0  # texts that are being tokenised
        self._closed = self._cleared = False
        self._statistics = SchedulerStatistics()

    def admit(self, texts: int) -> None:
        """Reserve room for a number of texts, before they are tokenised.

        Raises:
            ConfigError: they are more than may ever wait.
            OverloadedError: there is no room for them now.
            ClosedError: the queue is closed.
        """
        with self._lock:
            if self._closed:
                raise _closed()
            if texts > self._max_texts:
                raise ConfigError(
                    f"{texts} texts in one call, and at most {self._max_texts} may wait: send "
                    "fewer at a time, raise max_waiting_texts, or use Encoder.encode"
                )
            waiting = len(self._waiting) + self._admitted
            if waiting + texts > self._max_texts:
                raise self._overloaded(f"{waiting} texts wait, of at most {self._max_texts}")
            self._admitted += texts

    def release(self, texts: int) -> None:
        """Give back the reserved room of texts that will not be put."""
        with self._lock:
            self._admitted -= texts
            if self._closed:
                self._changed.notify_all()  # devices wait for these last texts

    def put(self, request: Request, *, admitted: int) -> None:
        """Queue the texts of a request, in the room reserved for `admitted` texts.

        Raises:
            ConfigError, OverloadedError: as `admit`, for the limit of tokens.
            ClosedError: the queue was cleared meanwhile.
        """
        tokens = sum(text.length for text in request.texts)
        with self._lock:
            self.release(admitted)
            if self._cleared:
                raise _closed()
            if tokens > self._max_tokens:
                raise ConfigError(
                    f"{tokens} tokens in one call, and at most {self._max_tokens} may wait: send "
                    "fewer texts at a time, raise max_waiting_tokens, or use Encoder.encode"
                )
            waiting = self._waiting.tokens
            if waiting + tokens > self._max_tokens:
                raise self._overloaded(f"{waiting} tokens wait, of at most {self._max_tokens}")
            self._statistics.requests += 1
            for text in request.texts:
                self._waiting.add(text)
            self._changed.notify()

    def take(self) -> Work | None:
        """Wait for the next batch; return None when the queue is closed and nothing more comes."""
        with self._lock:
            while not self._waiting:
                if self._closed and (self._cleared or not self._admitted):
                    return None
                self._changed.wait()
            late = self._waiting.expire(time.monotonic())
            self._statistics.expired += len(late)
            expired = [request for text in late if self.end(request := text.request)]
            batch = self._waiting.take(token_budget=self._token_budget, run_cost=self._run_cost)
            if self._waiting:
                self._changed.notify()  # another device may be free
            return Work(batch, expired)

    def fill(self, batch: list[WaitingText], vectors: Sequence[Any]) -> list[Request]:
        """Store the vectors of a batch; return the requests that it completes."""
        with self._lock:
            done = []
            for text, vector in zip(batch, vectors, strict=True):
                request = text.request
                request.vectors[text.row] = vector
                request.left -= 1
                if request.left == 0 and self.end(request):
                    done.append(request)
            return done

    def end(self, request: Request) -> bool:
        """End a request and remove its waiting texts; return False if it was over before."""
        with self._lock:
            if request.over:
                return False
            request.over = True
            for text in request.texts:
                self._waiting.remove(text)
            request.texts.clear()  # breaks the reference cycle, so that both are freed
            return True

    def cancel(self, request: Request) -> None:
        """Remove the waiting texts of a request that its caller has cancelled."""
        with self._lock:
            self._statistics.cancelled += sum(text.waits for text in request.texts)
            self.end(request)

    def close(self) -> None:
        """Admit no more texts; devices go on until all admitted texts have run."""
        with self._lock:
            self._closed = True
            self._changed.notify_all()

    def clear(self) -> None:
        """Admit no more texts, and let the waiting ones fail with ClosedError."""
        with self._lock:
            self._closed = self._cleared = True
            self._changed.notify_all()
            lost = [text.request for text in self._waiting.take_all() if self.end(text.request)]
        for request in lost:
            request.fail(ClosedError("the Scheduler was closed before this text ran"))

    def count(self, report: BatchReport, batch: list[WaitingText], began: float) -> None:
        """Add a run to the statistics, and to the times of the requests that record them."""
        with self._lock:
            self._statistics.add(report)
            arrived = {text.request: text.arrived for text in batch}
            for request, at in arrived.items():
                if request.call.times is not None:
                    request.call.times.add(at, began, report.run_seconds)

    @property
    def waiting_tokens(self) -> int:
        """The number of tokens that wait now."""
        return self._waiting.tokens

    def statistics(self) -> SchedulerStatistics:
        """Return a copy of the counts."""
        with self._lock:
            return dataclasses.replace(
                self._statistics,
                waiting_texts=len(self._waiting) + self._admitted,
                waiting_tokens=self._waiting.tokens,
            )

    def _overloaded(self, what: str) -> OverloadedError:
        self._statistics.refused += 1
        rate = self._statistics.tokens_per_second
        return OverloadedError(what, retry_after=self._waiting.tokens / rate if rate else None)


def _closed() -> ClosedError:
    return ClosedError("this Scheduler is closed: make another")
