"""The requests of the scheduler's callers, and the statistics of their runs."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from mirror_rt.pipeline.options import EncodePlan
from mirror_rt.pipeline.pipeline import EncodedTexts, Vectors
from mirror_rt.tokens.chunking import TokenRows

# The kinds of work: texts are tokenised, cut to some of their tokens before, or shown in their
# tokens; token ids are checked, or joined to texts.
Work = Literal["tokenize", "shorten", "show", "check", "join"]
Finish = Callable[[Vectors, TokenRows, EncodePlan], EncodedTexts]

# A text without a deadline, or with a later one, is due this many seconds after it came: more
# urgent texts may overtake it until then, and no text starves.
_PATIENCE = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The most that a queue takes and that a run has, and the costs of runs."""

    max_texts: int  # that may wait; those of large requests shut out no small one
    max_tokens: int  # that may wait
    max_wait: float | None  # seconds that the work before a request may take; None for any time
    # Tokens of a row. As many may always wait, or one slow run could make the queue refuse all.
    max_length: int
    token_budget: int  # padded tokens of a batch of more than one text
    run_cost: int  # fixed cost of a run, expressed in tokens
    dimension: int  # length D of the vectors
    pad_to: int | None  # tokens that each row costs; None where it costs as many as it has


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


@dataclass(slots=True)
class Tokenizing:
    """The work of a request that a tokenising thread has not done yet; at first there is none."""

    work: Work = "tokenize"  # its kind
    size: int = 0  # their characters or token ids that are not done
    long: bool = False  # whether it takes several steps, and so the thread for such work
    microseconds: int = 0  # forecast of the time that they take


@dataclass(slots=True, eq=False)
class Request:
    """A call, from the check of its arguments to its result."""

    # The input, texts or lists of token ids; dropped once they are tokenised, or the request
    # is over.
    texts: list[Any]
    plan: EncodePlan  # checked options
    finish: Finish  # makes the result of the vectors of the rows
    timeout: float | None = None  # seconds that the caller allowed; None for any time
    times: RequestTimes | None = None  # where to record when its rows ran
    of_tokens: bool = False  # whether the result is a vector for each token
    runs: bool = True  # whether its texts run in the model, and are not only tokenised
    # Changes some of its texts before they are tokenised.
    prepare: Callable[[list[Any]], list[Any]] | None = None
    tokenizing: Tokenizing = field(default_factory=Tokenizing)  # its work for a tokenising thread
    exempt: bool = False  # whether the queue takes it however much waits
    admitted: bool = False  # whether the queue has taken it
    # Time of the call, in seconds of `time.monotonic`.
    arrived: float = field(default_factory=lambda: time.monotonic())  # a test may set the clock
    large: bool = False  # whether its rows wait for their turn behind those of other large requests
    unqueued: int = 0  # tokens that it will queue, as far as they are known
    waiting: int = 0  # number of texts, and once they are tokenised of rows, that do not run yet
    rows: TokenRows | None = None  # m rows of tokens; None until the texts are tokenised
    # Row numbers that are not queued yet, the next one last.
    order: list[int] = field(default_factory=list)
    queued: list[WaitingText] = field(default_factory=list)  # rows in the queue
    # Vectors of the rows, unset for rows that are not done: float32 [m, D], pooled, or m arrays
    # float32 [tokens, H].
    vectors: Vectors | list[Vectors] = field(default_factory=list)
    left: int = 0  # number of rows that are not done
    over: bool = False  # whether it has a result or an error, or was cancelled
    stop: threading.Event | None = None  # set when it is over, for a tokenizer that works in steps
    future: Future[Any] = field(default_factory=Future)  # the future that the caller holds
    n: int = field(init=False)

    def __post_init__(self) -> None:
        self.n = len(self.texts)
        self.waiting = self.n if self.runs else 0

    @property
    def deadline(self) -> float | None:
        """The time after which its vectors are of no use; None for no deadline."""
        return None if self.timeout is None else self.arrived + self.timeout

    @property
    def time_left(self) -> float | None:
        """The seconds until the deadline, at least a moment; None for no deadline."""
        return None if self.deadline is None else max(self.deadline - time.monotonic(), 1e-3)

    def accept(self, rows: TokenRows, dimension: int, found: Mapping[int, Vectors]) -> None:
        """Take the rows that the texts were tokenised to, and the vectors of some."""
        n = len(rows.tokens)
        self.texts, self.rows, self.left = [], rows, n - len(found)
        if self.of_tokens:
            self.vectors = [np.empty((0, 0), np.float32)] * n
        else:
            self.vectors = np.empty((n, dimension), np.float32)
        for row, vector in found.items():
            self.vectors[row] = vector

    def succeed(self) -> None:
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
            assert self.rows is not None
            self.future.set_result(self.finish(vectors, self.rows, self.plan))
        except Exception as error:  # noqa: BLE001 - the device's thread must go on
            self.future.set_exception(error)

    def fail(self, error: BaseException) -> None:
        """Give the caller an error, if it has no result yet."""
        if not self.future.done() and self.future.set_running_or_notify_cancel():
            self.future.set_exception(error)


@dataclass(slots=True, eq=False)
class WaitingText:
    """One text of a request.

    Texts of equal tokens wait as one: the first of them has the others, and costs for all.
    """

    request: Request  # the request that it belongs to
    row: int  # its row in that request
    ids: npt.NDArray[np.int32]  # int32 [tokens], its token ids
    length: int  # tokens that it costs in a batch of its own, padding included
    arrived: float  # time since when it may run, in seconds of `time.monotonic`
    deadline: float | None = None  # time after which its vector is of no use; None for no deadline
    large: bool = False  # whether it is of a large request
    # Equal for texts that one row of a run is enough for.
    key: Hashable = field(default_factory=object)
    number: int = field(default=-1, init=False)
    waits: bool = field(default=False, init=False)
    # The texts that wait with it, by number.
    others: dict[int, WaitingText] = field(default_factory=dict, init=False)

    @property
    def all(self) -> list[WaitingText]:
        """The text, and those that wait with it."""
        return [self, *self.others.values()]

    @property
    def due(self) -> float:
        """The time by which it ought to run."""
        latest = self.arrived + _PATIENCE
        return latest if self.deadline is None else min(self.deadline, latest)


@dataclass(frozen=True, slots=True)
class BatchReport:
    """A report of one run of the model.

    Attributes:
        tokens: number of tokens of each text that ran; of equal texts that waited together one did.
        padded_tokens: tokens that were computed: the number of texts times the longest of them.
        queue_seconds: time that each text waited, equal ones included.
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
        texts: texts that ran; of equal texts that waited together one did.
        failed: texts that failed alone.
        expired: texts whose deadline passed while they waited.
        cancelled: texts cancelled while they waited.
        tokens: real tokens of the texts that ran.
        padded_tokens: tokens computed for these texts, padding included.
        queue_seconds: sum over all texts of the time from the call to the run.
        longest_queue_seconds: longest time from a call to a run.
        run_seconds: total time of the runs.
        waiting_texts: texts that were accepted and do not run yet.
        waiting_tokens: tokens of the waiting texts, estimated for those that are not tokenised.
        waiting_seconds: forecast of the time that they and the current runs take; 0 if unknown.
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
    waiting_seconds: float = 0.0

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
