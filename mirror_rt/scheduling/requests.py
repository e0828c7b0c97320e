"""The requests of the scheduler's callers, and the statistics of their runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from mirror_rt.pipeline.options import EncodePlan
from mirror_rt.pipeline.pipeline import EncodedTexts, Vectors
from mirror_rt.scheduling.waiting import WaitingText
from mirror_rt.tokens.chunking import TokenRows

Finish = Callable[[Vectors, TokenRows, EncodePlan], EncodedTexts]


@dataclass(slots=True)
class RequestTimes:
    """The times at which the texts of a call ran, filled in for the caller of `Scheduler.submit`.

    Attributes:
        began: beginning of the first run, in seconds of `time.monotonic`; None until then.
        ended: end of the last run so far; None until then.
        runs: number of runs.
        queue_seconds: time from the call to the beginning of its last run.
        run_seconds: total time of its runs, which may have held texts of other calls, too.
    """

    began: float | None = None
    ended: float | None = None
    runs: int = 0
    queue_seconds: float = 0.0
    run_seconds: float = 0.0

    def add(self, arrived: float, began: float, seconds: float) -> None:
        """Count a run of texts that arrived and began to run at the given times."""
        self.began = began if self.began is None else min(self.began, began)
        self.ended = max(self.ended or 0.0, began + seconds)
        self.runs += 1
        self.queue_seconds = max(self.queue_seconds, began - arrived)
        self.run_seconds += seconds


class Call(NamedTuple):
    """A call that the queue has reserved room for; the arguments are those of `submit`.

    It arrived at a time of `time.monotonic`, and its texts may be lists of token ids.
    """

    texts: list[Any]
    plan: EncodePlan
    arrived: float
    timeout: float | None = None
    times: RequestTimes | None = None
    of_tokens: bool = False


@dataclass(slots=True, eq=False)
class Request:
    """The texts of one call, as rows of tokens.

    Attributes:
        call: the call.
        rows: the m rows of tokens to run.
        vectors: vectors of the rows, unset for rows that are not done: float32 [m, D], pooled, or
            m arrays float32 [tokens, H].
        texts: the rows, as entries of the queue.
        left: number of rows that are not done.
        over: whether it has a result or an error, or was cancelled.
        future: the future that the caller holds.
    """

    call: Call
    rows: TokenRows
    vectors: Vectors | list[Vectors]
    texts: list[WaitingText] = field(default_factory=list)
    left: int = 0
    over: bool = False
    future: Future[Any] = field(default_factory=Future)

    def succeed(self, finish: Finish) -> None:
        """Give the caller the vectors, finished as its options say.

        They come as pooled, so that callers who want unit vectors and callers who do not can share
        a batch.
        """
        if not self.future.set_running_or_notify_cancel():
            return
        try:
            vectors = self.vectors
            if isinstance(vectors, list):
                self.future.set_result(vectors)
                return
            self.future.set_result(finish(vectors, self.rows, self.call.plan))
        except Exception as error:  # noqa: BLE001 - the device's thread must go on
            self.future.set_exception(error)

    def fail(self, error: Exception) -> None:
        """Give the caller an error."""
        if self.future.set_running_or_notify_cancel():
            self.future.set_exception(error)


def make_request(call: Call, rows: TokenRows, *, dimension: int, pad_to: int | None) -> Request:
    """Make a request of a call whose texts have been tokenised to rows."""
    vectors: Vectors | list[Vectors] = np.empty((len(rows.tokens), dimension), np.float32)
    if call.of_tokens:
        vectors = [np.empty((0, 0), np.float32)] * len(rows.tokens)
    request = Request(call, rows, vectors, left=len(rows.tokens))
    arrived, deadline = call.arrived, None if call.timeout is None else call.arrived + call.timeout
    request.texts = [
        WaitingText(
            request, row, rows.tokens.ids[begin:end], pad_to or end - begin, arrived, deadline
        )
        for row, (begin, end) in enumerate(rows.tokens.spans())
    ]
    return request


@dataclass(frozen=True, slots=True)
class BatchReport:
    """A report of one run of the model.

    Attributes:
        tokens: number of tokens of each text.
        padded_tokens: tokens that were computed: the number of texts times the longest of them.
        queue_seconds: time that each text waited.
        run_seconds: time that the run took.
        failed: whether it raised an error; a single text then fails, several run again in halves.
    """

    tokens: Sequence[int]
    padded_tokens: int
    queue_seconds: Sequence[float]
    run_seconds: float
    failed: bool


@dataclass(slots=True)
class SchedulerStatistics:
    """Counts since the scheduler started, and how much waits now.

    Attributes:
        requests: calls accepted.
        refused: calls refused because too much waited.
        batches: runs, failed ones included.
        texts: texts that ran.
        failed: texts that failed alone.
        expired: texts whose deadline passed while they waited.
        cancelled: texts cancelled while they waited.
        tokens: real tokens of the texts that ran.
        padded_tokens: tokens computed for these texts, padding included.
        queue_seconds: sum over these texts of the time from the call to the run.
        longest_queue_seconds: longest time from a call to a run.
        run_seconds: total time of the runs.
        waiting_texts: texts that were accepted and do not run yet.
        waiting_tokens: tokens of the waiting texts, as far as they are tokenised.
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
        """The share of padding among the computed tokens."""
        return 1 - self.tokens / self.padded_tokens if self.padded_tokens else 0.0

    @property
    def texts_per_batch(self) -> float:
        """The mean number of texts of a run."""
        return self.texts / self.batches if self.batches else 0.0

    @property
    def tokens_per_second(self) -> float:
        """The number of real tokens per second of running the model."""
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
