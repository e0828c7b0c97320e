"""What a caller of the scheduler asked for and waits for, and what is counted of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np

from mirror_rt.pipeline.options import EncodePlan
from mirror_rt.pipeline.pipeline import Encoded, Vectors
from mirror_rt.scheduling.waiting import WaitingText
from mirror_rt.tokens.chunking import TokenRows
from mirror_rt.vectors.normalization import normalize_rows

__all__ = ["BatchReport", "Request", "RequestTimes", "SchedulerStatistics", "make_request"]

Finish = Callable[[Vectors, TokenRows, EncodePlan], Encoded]


@dataclass(slots=True)
class RequestTimes:
    """When the texts of a call ran, for whoever gives it to the call; see `Scheduler.submit`.

    Attributes:
        began: of the first run, in seconds of `time.monotonic`; None until then.
        ended: of the last run so far.
        runs: how many there were.
        queue_seconds: from the call to the last of its runs.
        run_seconds: sum over its runs, which others' texts may have shared.
    """

    began: float | None = None
    ended: float | None = None
    runs: int = 0
    queue_seconds: float = 0.0
    run_seconds: float = 0.0

    def add(self, arrived: float, began: float, seconds: float) -> None:
        """Count a run, of texts that arrived and began to run at these times."""
        self.began = began if self.began is None else min(self.began, began)
        self.ended = max(self.ended or 0.0, began + seconds)
        self.runs += 1
        self.queue_seconds = max(self.queue_seconds, began - arrived)
        self.run_seconds += seconds


@dataclass(slots=True, eq=False)
class Request:
    """The texts of one call, as rows of tokens.

    Attributes:
        rows: what is to run.
        plan: what the caller asked for.
        timeout: seconds that the caller gave, None for no limit.
        of_tokens: whether the caller wants a vector for each token, and not one for each text.
        vectors: of the rows, unset in those that are not done: float32 [m, D], pooled, or m arrays
            float32 [tokens, H].
        times: where to note its runs; None where nobody asked.
        texts: the rows as they wait.
        left: how many of them are not done.
        over: whether it has its result or its error, or was cancelled.
        future: what the caller holds.
    """

    rows: TokenRows
    plan: EncodePlan
    timeout: float | None
    of_tokens: bool
    vectors: Vectors | list[Vectors]
    times: RequestTimes | None = None
    texts: list[WaitingText[Request]] = field(default_factory=list)
    left: int = 0
    over: bool = False
    future: Future[Any] = field(default_factory=Future)

    def succeed(self, finish: Finish) -> None:
        """Give the caller the vectors as asked for.

        The graph could normalise, too; done here, callers who want it and those who do not share
        a batch.
        """
        if not self.future.set_running_or_notify_cancel():
            return
        try:
            vectors = self.vectors
            if isinstance(vectors, list):
                self.future.set_result(vectors)
                return
            if self.plan.normalize:
                vectors = normalize_rows(vectors)
            kept = np.ascontiguousarray(vectors[:, : self.plan.dimension])
            self.future.set_result(finish(kept, self.rows, self.plan).describe())
        except Exception as error:  # noqa: BLE001 - the device's thread must go on
            self.future.set_exception(error)

    def fail(self, error: Exception) -> None:
        """Give the caller an error."""
        if self.future.set_running_or_notify_cancel():
            self.future.set_exception(error)


def make_request(
    rows: TokenRows,
    plan: EncodePlan,
    *,
    dimension: int,
    pad_to: int | None,
    arrived: float,
    timeout: float | None,
    times: RequestTimes | None = None,
    of_tokens: bool = False,
) -> Request:
    """Make a request; times are those of `time.monotonic`."""
    vectors: Vectors | list[Vectors] = np.empty((len(rows.tokens), dimension), np.float32)
    if of_tokens:
        vectors = [np.empty((0, 0), np.float32)] * len(rows.tokens)
    request = Request(rows, plan, timeout, of_tokens, vectors, times, left=len(rows.tokens))
    deadline = None if timeout is None else arrived + timeout
    spans = pairwise(rows.tokens.offsets.tolist())
    request.texts = [
        WaitingText(
            request, row, rows.tokens.ids[begin:end], pad_to or end - begin, arrived, deadline
        )
        for row, (begin, end) in enumerate(spans)
    ]
    return request


@dataclass(frozen=True, slots=True)
class BatchReport:
    """One run of the model.

    Attributes:
        tokens: of each text.
        padded_tokens: that were computed: texts times the longest.
        queue_seconds: that each text waited.
        run_seconds: that the run took.
        failed: whether it raised; its texts run again in halves, or fail where it was one text.
    """

    tokens: Sequence[int]
    padded_tokens: int
    queue_seconds: Sequence[float]
    run_seconds: float
    failed: bool


@dataclass(slots=True)
class SchedulerStatistics:
    """Counts since the start, and what waits now.

    Attributes:
        requests: calls accepted.
        refused: calls refused because too much waited.
        batches: runs, failed ones included.
        texts: texts that ran.
        failed: texts that failed alone.
        expired: texts whose deadline passed while they waited.
        cancelled: texts cancelled while they waited.
        tokens: real tokens of the texts that ran.
        padded_tokens: tokens computed for them.
        queue_seconds: sum over them of the time from the call to the run.
        longest_queue_seconds: the longest of these.
        run_seconds: sum over runs.
        waiting_texts: accepted, and not running yet.
        waiting_tokens: of those that are tokenised.
    """

    requests: int = 0
    refused: int = 0
    batches: int = 0
    texts: int = 0
    failed: int = 0
    expired: int = 0
    cancelled: int = 0
    tokens: int = 0
    padded_tokens: int = 0
    queue_seconds: float = 0.0
    longest_queue_seconds: float = 0.0
    run_seconds: float = 0.0
    waiting_texts: int = 0
    waiting_tokens: int = 0

    @property
    def padding(self) -> float:
        """Share of the computed tokens that was padding."""
        return 1 - self.tokens / self.padded_tokens if self.padded_tokens else 0.0

    @property
    def texts_per_batch(self) -> float:
        """Mean number of texts of a run."""
        return self.texts / self.batches if self.batches else 0.0

    @property
    def tokens_per_second(self) -> float:
        """Real tokens for each second that the model ran."""
        return self.tokens / self.run_seconds if self.run_seconds else 0.0

    def add(self, report: BatchReport) -> None:
        """Count a run."""
        self.batches += 1
        self.run_seconds += report.run_seconds
        if report.failed:
            self.failed += len(report.tokens) == 1
            return
        self.texts += len(report.tokens)
        self.tokens += sum(report.tokens)
        self.padded_tokens += report.padded_tokens
        self.queue_seconds += sum(report.queue_seconds)
        self.longest_queue_seconds = max(self.longest_queue_seconds, *report.queue_seconds)
