"""The bounded queue between the callers of a scheduler and its devices; thread-safe."""

from __future__ import annotations

import contextlib
import dataclasses
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from mirror_rt.errors import ClosedError, DeadlineError, OverloadedError
from mirror_rt.pipeline.results import Vectors
from mirror_rt.scheduling.admission import Admission
from mirror_rt.scheduling.requests import (
    BatchReport,
    Limits,
    Request,
    SchedulerStatistics,
    WaitingText,
)
from mirror_rt.scheduling.waiting import RequestRows, WaitingTexts, still_wanted
from mirror_rt.tokens.chunking import TokenRows

_NONE_FOUND: Mapping[int, Vectors] = MappingProxyType({})


class RequestQueue:
    """The queue of requests: they pass `admit`, `put`, `take`, and then `fill` or `end`."""

    def __init__(self, limits: Limits) -> None:
        self._dimension, self._pad_to = limits.dimension, limits.pad_to
        # Reentrant, because cancelling a future under the lock calls `end` again.
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        waiting = WaitingTexts()
        self.admission = Admission(waiting, limits)
        self._rows = RequestRows(waiting, self.admission, limits)
        self._closed = False
        self._statistics = SchedulerStatistics()

    def admit(self, request: Request, tokens: int) -> None:
        """Take in a request by a forecast of its tokens, or refuse it."""
        with self._lock:
            if self._closed:
                raise ClosedError("this Scheduler is closed: make another")
            try:
                self.admission.admit(request, tokens)
            except OverloadedError:
                self._statistics.refused += 1
                raise
            self._statistics.requests += 1

    def runs_at_once(self, tokens: int) -> bool:
        """Return `Admission.runs_at_once`."""
        with self._lock:
            return self.admission.runs_at_once(tokens)

    def refusing(self, request: Request) -> tuple[float, str] | None:
        """Return `Admission.refusing`."""
        with self._lock:
            return self.admission.refusing(request)

    def put(
        self, request: Request, rows: TokenRows, found: Mapping[int, Vectors] = _NONE_FOUND,
        *, wake: bool = True,
    ) -> None:  # fmt: skip
        """Queue the rows of a request; one that is not admitted yet is admitted first.

        `found` has the pooled vectors of rows that need not run, float32 [D]. With `wake` false no
        device is told of the rows: the caller takes the next batch.
        """
        n, lengths, pad_to = len(rows.tokens), rows.tokens.lengths, self._pad_to
        left = [row for row in range(n) if row not in found]
        whole = len(rows.tokens.ids) if pad_to is None else n * pad_to
        tokens = whole - sum(pad_to or int(lengths[row]) for row in found)
        request.exempt |= not left
        with self._lock:
            if not request.admitted:
                self.admit(request, tokens)
            if request.over:
                return
            if not rows.invalid and not rows.truncated.any():
                self.admission.estimate.learn(request.texts, whole)
            request.accept(rows, self._dimension, found)
            self.admission.tokenized(request, tokens)
            self._rows.add(request, left)
            if wake:
                self._changed.notify()
            complete = request.left == 0 and self.end(request)
        if complete:  # it has no rows
            request.succeed()

    def give_back(self, request: Request, texts: int, tokens: int) -> None:
        """Give back a part of the room of a request whose texts are not queued by itself."""
        with self._lock:
            if not request.over:
                self.admission.set_waiting(request, request.waiting - texts)
                self.admission.set_unqueued(request, max(0, request.unqueued - tokens))

    def tokenized(self, request: Request, size: int, seconds: float) -> None:
        """Note the seconds that a tokenising thread took for a part of a request."""
        with self._lock:
            wanted, load = request.tokenizing, self.admission.tokenizing
            load.learn(wanted.work, size, seconds)
            if not request.over:
                load.count(wanted, max(0, wanted.size - size))

    @contextlib.contextmanager
    def uncounted(self, request: Request) -> Iterator[None]:
        """Count nothing of a request while it waits for its client, and for no device."""
        with self._lock:
            left = request.waiting, request.unqueued, request.tokenizing.size
            self.admission.count(request, 0, 0, 0)
        try:
            yield
        finally:
            with self._lock:
                if not request.over:
                    self.admission.count(request, *left)

    def has_rows(self) -> bool:
        """Return whether rows wait to be run."""
        return bool(self._rows)

    def wait(self) -> bool:
        """Wait for rows; return False when the queue is closed and nothing more comes."""
        with self._lock:
            while not self.has_rows():
                if self._ended():
                    return False
                self._changed.wait()
            return True

    def take(self, *, wait: bool = True, shared: bool = False) -> list[WaitingText] | None:
        """Wait for the next batch; return None when the queue is closed and nothing more comes.

        Without `wait`, return an empty list where none is there. The batch is brief if the device
        is `shared` with other models that have something to run, and if it is of large requests
        while small ones come.

        Texts whose deadline has passed are due before others. They are taken, too, and their
        requests fail in place of running.
        """
        with self._lock:
            while True:
                now = time.monotonic()
                batch = self._rows.take(now, shared=shared)
                texts = [one for text in batch for one in text.all]
                late = {t.request for t in texts if t.deadline is not None and t.deadline <= now}
                if late:
                    late = {request for request in late if self._end_late(request)}
                    batch = still_wanted(batch)
                if batch or late:
                    break
                if self._ended():
                    return None
                if not wait:
                    return []
                self._changed.wait()
            for text in [one for first in batch for one in first.all]:
                self.admission.set_waiting(text.request, text.request.waiting - 1)
            self.admission.run(batch)
            if self._rows:
                self._changed.notify()  # another device may be free
        for request in late:
            request.fail(DeadlineError(request.timeout))
        return batch

    def ran(self, batch: list[WaitingText]) -> None:
        """Note that a batch runs no longer, whatever became of it."""
        with self._lock:
            self.admission.run(batch, ended=True)
            for text in batch:  # which its request may hold for long
                text.others = {}

    def fill(self, batch: list[WaitingText], vectors: Sequence[Any]) -> list[Request]:
        """Store the vectors of a batch; return the requests that it completes."""
        with self._lock:
            done = []
            for first, vector in zip(batch, vectors, strict=True):
                for text in first.all:
                    request = text.request
                    # The vectors of tokens are given as they are, and a caller may write to them.
                    request.vectors[text.row] = vector if text is first else vector.copy()
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
            if request.stop is not None:
                request.stop.set()
            self.admission.forget(request)
            # Break the reference cycle, and free its texts: the tokenizer may be about to
            # work for the request.
            self._rows.remove(request)
            request.texts = []
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
            self._closed = True
            self._changed.notify_all()
            # All others run already.
            lost = [one for one in self.admission.open if one.waiting or one.rows is None]
            lost = [request for request in lost if self.end(request)]
        for request in lost:
            request.fail(ClosedError("the Scheduler was closed before this text ran"))

    def count(self, report: BatchReport, batch: list[WaitingText], began: float) -> None:
        """Add a run to the statistics, and to the times of the requests that record them."""
        with self._lock:
            self.learn(report, began + report.run_seconds)
            self._statistics.add(report)
            for request in {one.request for text in batch for one in text.all}:
                if request.times is not None:
                    request.times.add(request.arrived, began, report.run_seconds)

    def learn(
        self, report: BatchReport, ended: float, tokenized: tuple[int, float] | None = None
    ) -> None:
        """Judge the pace by a run that ended at this time.

        `tokenized` has the characters of its texts, and the seconds in which they were tokenised.
        """
        with self._lock:
            self.admission.pace.add(report, ended)
            if tokenized is not None:
                self.admission.tokenizing.learn("tokenize", *tokenized)

    def statistics(self) -> SchedulerStatistics:
        """Return a copy of the counts."""
        with self._lock:
            return dataclasses.replace(
                self._statistics,
                waiting_texts=self.admission.texts,
                waiting_tokens=self.admission.waiting_tokens,
                waiting_seconds=self.admission.seconds,
            )

    def _ended(self) -> bool:
        return self._closed and all(one.rows is not None for one in self.admission.open)

    def _end_late(self, request: Request) -> bool:
        with self._lock:
            waiting = min(request.n, request.waiting)
            ended = self.end(request)
            self._statistics.expired += waiting if ended else 0
            return ended
