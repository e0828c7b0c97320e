"""The bounded queue between the callers of a scheduler and its devices; thread-safe."""

from __future__ import annotations

import dataclasses
import math
import threading
import time
from collections import deque
from collections.abc import Sequence
from typing import Any

import numpy as np

from mirror_rt.errors import ClosedError, ConfigError, DeadlineError, OverloadedError
from mirror_rt.scheduling.forecast import Pace, TokenEstimate
from mirror_rt.scheduling.requests import BatchReport, Request, SchedulerStatistics
from mirror_rt.scheduling.waiting import WaitingText, WaitingTexts
from mirror_rt.tokens.chunking import TokenRows

# A request of more tokens than so many runs have is large. The queue takes rows of large ones with
# as many tokens, but no more than run within this part of `max_wait`: enough to keep the devices
# busy, while a small request waits behind no more of them.
_RUNS_OF_LARGE, _PART_OF_WAIT = 2, 0.25


class RequestQueue:
    """The queue of requests: they pass `admit`, `put`, `take`, and then `fill` or `end`.

    A request is small or large. The rows of small ones may run at once. Large ones take turns: what
    came first is finished first, and a small request waits for a share of the first one alone.

    Args:
        max_texts: most texts that may wait.
        max_tokens: most tokens that may wait.
        max_wait: most seconds that what is before a request may take; None for any time.
        max_length: most tokens of a row. So many may always wait, or one slow run could make
            the queue refuse everybody.
        token_budget: most padded tokens of a batch of more than one text.
        run_cost: fixed cost of a run, expressed in tokens.
        dimension: length D of the vectors.
        pad_to: tokens that every row costs; None where it costs as many as it has.
    """

    def __init__(
        self, *, max_texts: int, max_tokens: int, max_wait: float | None, max_length: int,
        token_budget: int, run_cost: int, dimension: int, pad_to: int | None,
    ) -> None:  # fmt: skip
        self._max_texts, self._max_tokens, self._max_wait = max_texts, max_tokens, max_wait
        self._dimension, self._pad_to, self._max_length = dimension, pad_to, max_length
        self._token_budget, self._run_cost = token_budget, run_cost
        self._large = _RUNS_OF_LARGE * token_budget
        # Reentrant, because cancelling a future under the lock calls `end` again.
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._open: set[Request] = set()  # admitted and not over
        self._turns: deque[Request] = deque()  # large requests with rows that are not queued
        self._waiting = WaitingTexts()
        self._texts = 0  # of open requests, as far as they do not run yet
        self._unqueued = {False: 0, True: 0}  # tokens of small and large requests
        self._running = {False: 0, True: 0}  # tokens of small and large requests
        self._closed = self._cleared = False
        self._statistics = SchedulerStatistics()
        self._pace = Pace(run_cost)
        self.estimate = TokenEstimate(max_length)

    def admit(self, request: Request, tokens: int) -> None:
        """Take in a request of about so many tokens, or refuse it: this is the only check."""
        with self._lock:
            if self._closed:
                raise _closed()
            request.large = tokens > self._large
            if not request.exempt:
                self._check_limit(request.n, "texts", self._texts, self._max_texts)
                self._check_limit(tokens, "tokens", self.waiting_tokens, self._max_tokens)
                self._check_time(request, tokens)
            self._statistics.requests += 1
            request.admitted = True
            self._texts += request.waiting
            self._set_unqueued(request, tokens)
            self._open.add(request)

    def put(self, request: Request, rows: TokenRows) -> None:
        """Queue the rows of a request; one that is not admitted yet is admitted first."""
        lengths = rows.tokens.lengths if self._pad_to is None else [self._pad_to] * len(rows.tokens)
        tokens = int(sum(lengths))
        with self._lock:
            if not request.admitted:
                self.admit(request, tokens)
            if request.over:
                return
            if not rows.invalid and not rows.truncated.any():
                self.estimate.learn(request.texts, tokens)
            request.accept(rows, self._dimension)
            self._set_unqueued(request, 0)
            request.large = tokens > self._large
            self._set_unqueued(request, tokens)
            self._set_waiting(request, request.left)
            # Rows of similar length follow each other, so that those that run together need little
            # padding.
            request.order = np.argsort(lengths, kind="stable")[::-1].tolist()
            if request.large:
                self._turns.append(request)
            else:
                self._queue_rows(request, math.inf)
            self._changed.notify()
            complete = request.left == 0 and self.end(request)
        if complete:  # it has no rows
            request.succeed()

    def give_back(self, request: Request, texts: int, tokens: int) -> None:
        """Give back a part of the room of a request whose texts are not queued by itself."""
        with self._lock:
            if not request.over:
                self._set_waiting(request, request.waiting - texts)
                self._set_unqueued(request, max(0, request.unqueued - tokens))

    def take(self) -> list[WaitingText] | None:
        """Wait for the next batch; return None when the queue is closed and nothing more comes.

        Texts whose deadline has passed are due before others. They are taken, too, and their
        requests fail in place of running.
        """
        with self._lock:
            while True:
                self._give_turns()
                batch = self._waiting.take(token_budget=self._token_budget, run_cost=self._run_cost)
                now = time.monotonic()
                late = {t.request for t in batch if t.deadline is not None and t.deadline <= now}
                late = {request for request in late if self._end_late(request)}
                batch = [text for text in batch if not text.request.over]
                if batch or late:
                    break
                if self._closed and all(request.rows is not None for request in self._open):
                    return None
                self._changed.wait()
            for text in batch:
                self._set_waiting(text.request, text.request.waiting - 1)
                self._running[text.large] += text.length
            if self._waiting or self._turns:
                self._changed.notify()  # another device may be free
        for request in late:
            request.fail(DeadlineError(request.timeout))
        return batch

    def ran(self, batch: list[WaitingText]) -> None:
        """Note that a batch runs no longer, whatever became of it."""
        with self._lock:
            for text in batch:
                self._running[text.large] -= text.length

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
            request.ended.set()
            self._open.discard(request)
            self._set_waiting(request, 0)
            self._set_unqueued(request, 0)
            for text in request.queued:
                self._waiting.remove(text)
            # Break the reference cycle, and free what nobody needs: the tokenizer may be about to
            # work for the request.
            request.queued, request.order, request.texts = [], [], []
            if request in self._turns:
                self._turns.remove(request)
            if self._closed:
                self._changed.notify_all()  # devices wait for the last requests
            return True

    def expire(self, request: Request) -> None:
        """Let a request fail whose time is over, unless it has a result."""
        if self._end_late(request):
            request.fail(DeadlineError(request.timeout))

    def cancel(self, request: Request) -> None:
        """Remove the waiting texts of a request that its caller has cancelled."""
        with self._lock:
            waiting = min(request.n, request.waiting)
            if self.end(request):
                self._statistics.cancelled += waiting

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
            lost = [request for request in list(self._open) if request.waiting]
            lost = [request for request in lost if self.end(request)]
        for request in lost:
            request.fail(ClosedError("the Scheduler was closed before this text ran"))

    def count(self, report: BatchReport, batch: list[WaitingText], began: float) -> None:
        """Add a run to the statistics, and to the times of the requests that record them."""
        with self._lock:
            self.learn(report, began + report.run_seconds)
            self._statistics.add(report)
            for request in {text.request for text in batch}:
                if request.times is not None:
                    request.times.add(request.arrived, began, report.run_seconds)

    def learn(self, report: BatchReport, ended: float) -> None:
        """Judge the pace by a run that ended at this time."""
        with self._lock:
            self._pace.add(report, ended)

    @property
    def waiting_tokens(self) -> int:
        """The number of tokens that are admitted and do not run yet."""
        return self._waiting.tokens + sum(self._unqueued.values())

    @property
    def _seconds(self) -> float:
        """The time that all that is admitted will take."""
        return self._pace.seconds(self.waiting_tokens + sum(self._running.values()))

    def statistics(self) -> SchedulerStatistics:
        """Return a copy of the counts."""
        with self._lock:
            return dataclasses.replace(
                self._statistics,
                waiting_texts=self._texts,
                waiting_tokens=self.waiting_tokens,
                waiting_seconds=self._seconds,
            )

    def _check_limit(self, more: int, things: str, waiting: int, most: int) -> None:
        if more > most:
            raise ConfigError(
                f"{more} {things} in one call, and at most {most} may wait: send fewer at a time, "
                f"raise max_waiting_{things}, or use Encoder.encode"
            )
        if waiting + more > most:
            raise self._overloaded(
                f"{waiting} {things} wait, of at most {most}",
                self._seconds or None,
            )

    def _check_time(self, request: Request, tokens: int) -> None:
        """Refuse a request for which what is before it takes too long, or leaves it no time."""
        before, running = self.waiting_tokens, sum(self._running.values())
        if not request.large:  # it overtakes all but a small share of large ones
            before -= self._unqueued[True] + self._waiting.large_tokens
            running = self._running[False]
        if self._max_wait is None or not before or not tokens:
            return
        wait = self._pace.seconds(before + running)
        # A vector for each token may be streamed, so that the first ones come before the last run.
        own = 0.0 if request.of_tokens else self._pace.seconds(tokens)
        hurried = request.timeout is not None and wait + own > request.timeout
        if hurried or (wait > self._max_wait and before > self._max_length):
            if request.large:  # what is before it ends at its deadline, if not by itself
                latest = max(
                    (one.deadline or math.inf for one in self._open if one.large), default=math.inf
                )
                wait = min(wait, max(1.0, latest - time.monotonic()))
            raise self._overloaded(f"what waits takes {wait:.2g} s", wait)

    def _overloaded(self, what: str, seconds: float | None) -> OverloadedError:
        self._statistics.refused += 1
        return OverloadedError(what, retry_after=seconds)

    def _set_waiting(self, request: Request, rows: int) -> None:
        """Note that so many rows of a request wait; a text counts once, however many it has."""
        self._texts += min(request.n, rows) - min(request.n, request.waiting)
        request.waiting = rows

    def _set_unqueued(self, request: Request, tokens: int) -> None:
        self._unqueued[request.large] += tokens - request.unqueued
        request.unqueued = tokens

    def _end_late(self, request: Request) -> bool:
        with self._lock:
            waiting = min(request.n, request.waiting)
            ended = self.end(request)
            self._statistics.expired += waiting if ended else 0
            return ended

    def _give_turns(self) -> None:
        """Queue rows of the large request whose turn it is."""
        share: float = self._large
        if self._max_wait is not None:
            share = min(share, self._pace.tokens(_PART_OF_WAIT * self._max_wait))
        while self._turns and self._waiting.large_tokens < max(1, share):
            request = self._turns[0]
            self._queue_rows(request, share - self._waiting.large_tokens)
            if not request.order:
                self._turns.popleft()

    def _queue_rows(self, request: Request, tokens: float) -> None:
        """Queue the next rows of a request, until they have so many tokens."""
        assert request.rows is not None
        ids, offsets = request.rows.tokens.ids, request.rows.tokens.offsets
        now, deadline = time.monotonic(), request.deadline
        while request.order and tokens > 0:
            row = request.order.pop()
            begin, end = int(offsets[row]), int(offsets[row + 1])
            length = self._pad_to or end - begin
            text = WaitingText(request, row, ids[begin:end], length, now, deadline, request.large)
            request.queued.append(text)
            self._waiting.add(text)
            self._set_unqueued(request, request.unqueued - length)
            tokens -= length


def _closed() -> ClosedError:
    return ClosedError("this Scheduler is closed: make another")
