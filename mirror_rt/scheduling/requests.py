"""What a caller of the scheduler asked for and waits for, and what is counted of it."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from mirror_rt.encoding import Vectors
from mirror_rt.errors import ConfigError
from mirror_rt.scheduling.waiting import WaitingText
from mirror_rt.tokens import RaggedTokens

__all__ = ["BatchReport", "Options", "Request", "SchedulerStatistics", "make_request"]


@dataclass(frozen=True, slots=True)
class Options:
    """What a caller asks for; `Scheduler.submit` documents it."""

    timeout: float | None = None
    normalize_embeddings: bool = True
    truncate_dim: int | None = None
    errors: Literal["raise", "nan"] = "raise"
    arrived: float = field(default_factory=time.monotonic)

    def check(self, dimension: int) -> None:
        """Raise ConfigError for a value out of range."""
        if self.timeout is not None and not 0 < self.timeout < math.inf:
            raise ConfigError(f"timeout must be above 0 seconds, or None, got {self.timeout}")
        if self.truncate_dim is not None and not 1 <= self.truncate_dim <= dimension:
            raise ConfigError(f"truncate_dim must be in 1 .. {dimension}, got {self.truncate_dim}")
        if self.errors not in ("raise", "nan"):
            raise ConfigError(f"errors must be 'raise' or 'nan', got {self.errors!r}")


@dataclass(slots=True, eq=False)
class Request:
    """The texts of one call.

    Attributes:
        vectors: float32 [n, D], pooled; NaN in the rows that are not done.
        single: whether the call was for one string: its result is [D], not [1, D].
        options: what the caller asked for.
        texts: those that are to run.
        left: how many of them are not done.
        over: whether it has its result or its error, or was cancelled.
        future: what the caller holds.
    """

    vectors: Vectors
    single: bool
    options: Options
    texts: list[WaitingText[Request]] = field(default_factory=list)
    left: int = 0
    over: bool = False
    future: Future[Vectors] = field(default_factory=Future)

    def succeed(self) -> None:
        """Give the caller the vectors as asked for."""
        vectors = self.vectors[:, : self.options.truncate_dim]
        if self.options.normalize_embeddings:
            vectors = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
        if self.future.set_running_or_notify_cancel():
            self.future.set_result(vectors[0] if self.single else np.ascontiguousarray(vectors))

    def fail(self, error: Exception) -> None:
        """Give the caller an error."""
        if self.future.set_running_or_notify_cancel():
            self.future.set_exception(error)


def make_request(
    tokens: RaggedTokens, options: Options, *, dimension: int, pad_to: int | None, single: bool
) -> Request:
    """Make the request of n tokenised texts; those without tokens are done already, as NaN."""
    request = Request(np.full((len(tokens), dimension), np.nan, np.float32), single, options)
    deadline = None if options.timeout is None else options.arrived + options.timeout
    request.texts = [
        WaitingText(
            request,
            row,
            tokens.ids[tokens.offsets[row] : tokens.offsets[row + 1]],
            pad_to or int(tokens.lengths[row]),
            options.arrived,
            deadline,
        )
        for row in np.flatnonzero(tokens.lengths).tolist()
    ]
    request.left = len(request.texts)
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
