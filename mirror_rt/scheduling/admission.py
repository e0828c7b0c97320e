"""Decide who is let in: count all that is admitted, and forecast how long it takes."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Sequence
from typing import Any, Protocol

from mirror_rt.errors import ConfigError, OverloadedError
from mirror_rt.scheduling.requests import (
    BatchReport,
    Limits,
    Request,
    Tokenizing,
    WaitingText,
    Work,
)
from mirror_rt.tokens.windows import size_of

# Each run, request or step of tokenising multiplies the weight of those before it by this, so that
# about ten count.
_DECAY = 0.9
# Tokens of a text before any was seen: English has one for every 4 or 5 characters, many other
# languages have more.
_TOKENS_PER_CHARACTER, _CHARACTERS = 0.3, 1000.0
_SPECIAL = 2  # tokens that most models put around a text
# A request of more tokens than two runs have is large. The queue takes rows of large ones with
# as many tokens, but no more than run within this part of `max_wait`: enough to keep the devices
# busy, while a small request waits behind no more of them.
_RUNS_OF_LARGE, _PART_OF_WAIT = 2, 0.25
# Seconds of a run for which others wait, if it had the devices alone: beside a second one it takes
# twice as long. Its tokens are at least this multiple of the fixed cost of a run.
_BRIEF_SECONDS, _BRIEF_COSTS = 0.015, 10
# Seconds of a run in its caller's own thread, the event loop's; and requests after which nobody is
# taken to come besides. While such a run lasts, nobody else is heard, so one of as many is left to
# the device: who comes meanwhile shall share its runs.
_MOMENT, _CALM = 0.004, 32


class Queued(Protocol):
    """The rows in the queue, as far as admission counts them."""

    tokens: int
    large_tokens: int


class Admission:
    """Counts work that is admitted and not done, and refuses more than fits.

    Work is the load of the tokenising threads and the devices; an answer that is being sent is
    none. The queue, whose rows are `queued`, holds its lock.
    """

    def __init__(self, queued: Queued, limits: Limits) -> None:
        self._queued, self._limits = queued, limits
        self._most_of_small = _RUNS_OF_LARGE * limits.token_budget
        self.open: set[Request] = set()  # admitted and not over
        self._alone = 0  # requests in succession that came while none was open
        self._refusing_since: float | None = None  # the first refusal since one was admitted
        # Texts of small and large open requests, as far as they do not run yet.
        self._texts = {False: 0, True: 0}
        self.tokenizing = TokenizerLoad()
        self._unqueued = {False: 0, True: 0}  # tokens of small and large requests
        self._running = {False: 0, True: 0}
        self.pace = Pace(limits.run_cost)
        self._least_brief = _BRIEF_COSTS * limits.run_cost
        self.estimate = TokenEstimate(limits.max_length)

    def admit(self, request: Request, tokens: int) -> None:
        """Count a request by a forecast of its tokens, or refuse it: this is the only check."""
        request.large = tokens > self._most_of_small
        if not request.exempt:
            self._check(request, tokens)
            self._refusing_since = None
        request.admitted = True
        self._alone = 0 if self.open else self._alone + 1
        self.open.add(request)
        self._texts[request.large] += request.waiting
        self.set_unqueued(request, tokens)
        if size := request.tokenizing.size:
            self.tokenizing.count(request.tokenizing, size)

    def refusing(self, request: Request) -> tuple[float, str] | None:
        """Return for how many seconds all were refused, and why this request of a token would be.

        None if somebody was let in after the first refusal, or if this request would be.
        """
        if (since := self._refusing_since) is None:
            return None
        try:
            self._check(request, 1)
        except OverloadedError as error:
            return time.monotonic() - since, str(error)
        return None

    def _check(self, request: Request, tokens: int) -> None:
        """Refuse a request of about `tokens` tokens if too much is before it."""
        texts = self.texts if request.large else self._texts[False]  # small ones overtake
        limits = self._limits
        try:
            self._check_limit(request.waiting, "texts", texts, limits.max_texts)
            self._check_limit(tokens, "tokens", self.waiting_tokens, limits.max_tokens)
            self._check_time(request, tokens)
        except OverloadedError:
            self._refusing_since = self._refusing_since or time.monotonic()
            raise

    def forget(self, request: Request) -> None:
        """Count nothing of a request any more."""
        self.open.discard(request)
        self.count(request, 0, 0, 0)

    def count(self, request: Request, rows: int, tokens: int, size: int) -> None:
        """Note the rest of a request: rows, tokens, and the size of its texts to tokenise."""
        self.set_waiting(request, rows)
        self.set_unqueued(request, tokens)
        if request.tokenizing.size != size:
            self.tokenizing.count(request.tokenizing, size)

    def tokenized(self, request: Request, tokens: int) -> None:
        """Replace the estimate of a request's tokens by their number."""
        self.set_unqueued(request, 0)
        self.set_waiting(request, 0)
        request.large = tokens > self._most_of_small
        self.set_unqueued(request, tokens)
        self.set_waiting(request, request.left)

    def set_waiting(self, request: Request, rows: int) -> None:
        """Note how many rows of a request wait; a text counts once, however many it has."""
        self._texts[request.large] += min(request.n, rows) - min(request.n, request.waiting)
        request.waiting = rows

    def set_unqueued(self, request: Request, tokens: int) -> None:
        """Note how many tokens of a request are still to be queued."""
        self._unqueued[request.large] += tokens - request.unqueued
        request.unqueued = tokens

    def run(self, batch: Sequence[WaitingText], *, ended: bool = False) -> None:
        """Note that a batch runs, or that it has ended."""
        tokens = sum([text.length for text in batch])
        large = sum([text.length for text in batch if text.large])
        sign = -1 if ended else 1
        self._running[False] += sign * (tokens - large)
        self._running[True] += sign * large

    @property
    def texts(self) -> int:
        """The number of texts that are admitted and do not run yet."""
        return sum(self._texts.values())

    @property
    def waiting_tokens(self) -> int:
        """The number of tokens that are admitted and do not run yet."""
        return self._queued.tokens + sum(self._unqueued.values())

    @property
    def seconds(self) -> float:
        """The time that all that is admitted will take; 0 before the first run."""
        return self.pace.seconds(self.waiting_tokens + sum(self._running.values()))

    @property
    def brief_tokens(self) -> float:
        """The tokens of a run for which others wait; infinity before the first run."""
        return max(self._least_brief, self.pace.tokens(_BRIEF_SECONDS))

    def runs_at_once(self, tokens: int) -> bool:
        """Return whether a request would run for a moment, alone as those before it did."""
        calm = self._alone >= _CALM and self._alone % _CALM != 0
        return calm and not self.open and 0 < self.pace.seconds(tokens) <= _MOMENT

    def room_for_large(self, most: float) -> float:
        """Return the tokens of large requests that may be queued now: at most `most`."""
        share = min(most, self._most_of_small)
        if (wait := self._limits.max_wait) is not None:
            share = min(share, self.pace.tokens(_PART_OF_WAIT * wait))
        return max(1, share) - self._queued.large_tokens

    def _check_limit(self, more: int, things: str, waiting: int, most: int) -> None:
        if more > most:
            raise ConfigError(
                f"{more} {things} in one call, and at most {most} may wait: send fewer at a time, "
                f"raise max_waiting_{things}, or use Encoder.encode"
            )
        if waiting + more > most:
            why = f"{waiting} {things} wait, of at most {most}"
            raise OverloadedError(why, retry_after=self.seconds or None)

    def _check_time(self, request: Request, tokens: int) -> None:
        """Refuse a request if the work before it takes too long, or leaves it no time."""
        before, running = self.waiting_tokens, sum(self._running.values())
        if not request.large:  # it overtakes all but a small share of large ones
            before -= self._unqueued[True] + self._queued.large_tokens
            running = self._running[False]
        wait = self.pace.seconds(before + running) if before and tokens else 0.0
        tokenizer = self.tokenizing.before(request.tokenizing)
        most = self._limits.max_wait
        if most is None or not (wait or tokenizer):
            return
        # A device runs other texts while those of the request are tokenised.
        whole = max(wait, tokenizer + self.tokenizing.seconds(request.tokenizing))
        # Vectors of tokens may be streamed: the first part comes before the last run.
        if not request.of_tokens:
            whole += self.pace.seconds(tokens)
        hurried = request.timeout is not None and whole > request.timeout
        slow = wait > most and before > self._limits.max_length
        if hurried or slow or tokenizer > most:
            if request.large:  # the others end at their deadlines, if not before
                wait = min(wait, max(1.0, _latest(self.open) - time.monotonic()))
            wait = max(wait, tokenizer)
            raise OverloadedError(f"the waiting work takes {wait:.2g} s", retry_after=wait)


class TokenizerLoad:
    """Forecasts the time of the work admitted to each thread. The queue holds its lock."""

    def __init__(self) -> None:
        self._waiting = {False: 0, True: 0}  # microseconds, by thread
        # Seconds and characters of the last steps, by the kind of work.
        self._seen: dict[Work, tuple[float, float]] = {}

    def before(self, wanted: Tokenizing) -> float:
        """Return the seconds that all work before this takes in its thread."""
        return self._waiting[wanted.long] / 1e6 if wanted.size else 0.0

    def seconds(self, wanted: Tokenizing) -> float:
        """Return how long some work takes, judging by the last steps; 0 before the first one.

        Work of a kind that was not seen yet is taken to be as slow as the slowest one.
        """
        rates = {kind: seconds / size for kind, (seconds, size) in self._seen.items()}
        return wanted.size * rates.get(wanted.work, max(rates.values(), default=0.0))

    def count(self, wanted: Tokenizing, size: int) -> None:
        """Note how much of a request is still to be done, 0 once nothing is."""
        wanted.size = size
        microseconds = int(1e6 * self.seconds(wanted)) if size else 0
        self._waiting[wanted.long] += microseconds - wanted.microseconds
        wanted.microseconds = microseconds

    def learn(self, work: Work, size: int, seconds: float) -> None:
        """Judge the pace by a step that has ended."""
        if size:
            before = self._seen.get(work, (0.0, 0.0))
            self._seen[work] = _DECAY * before[0] + seconds, _DECAY * before[1] + size


class TokenEstimate:
    """Estimate the tokens of texts before they are tokenised, judging by those that were."""

    def __init__(self, max_length: int) -> None:
        self._max_length = max_length
        self._characters = _CHARACTERS
        self._tokens = _TOKENS_PER_CHARACTER * _CHARACTERS

    def tokens(self, request: Request) -> int:
        """Return about how many tokens the texts of a request have; those of ids are counted."""
        most = math.inf if request.plan.on_too_long == "chunk" else self._max_length
        rate, known = self._tokens / self._characters, list(filter(size_of, request.texts))
        if known and isinstance(known[0], list):
            return sum(map(len, known))
        return int(sum(min(most, _SPECIAL + rate * size_of(text)) for text in known))

    def learn(self, texts: list[Any], tokens: int) -> None:
        """Remember the number of tokens that texts have, none of which was cut."""
        if texts and isinstance(texts[0], str):
            own = max(0, tokens - _SPECIAL * len(texts))
            self._characters = _DECAY * self._characters + sum(map(len, texts))
            self._tokens = _DECAY * self._tokens + own


class Pace:
    """Estimate the seconds that tokens take, by wall-clock time, which includes gaps between runs.

    On a busy machine the gaps matter: vectors are returned, and other processes have their turn.
    Without `run_cost`, the fixed cost of a run in tokens, runs of one short text would make a queue
    that fills its runs seem to take much longer than it does.
    """

    def __init__(self, run_cost: int) -> None:
        self._run_cost = run_cost
        self._seconds = self._cost = 0.0
        self._ended = -math.inf

    def seconds(self, tokens: int) -> float:
        """Forecast the seconds of a number of tokens by past runs; 0 before the first."""
        if not tokens or not self._cost:
            return 0.0
        return (tokens + self._run_cost) * self._seconds / self._cost

    def tokens(self, seconds: float) -> float:
        """Return how many tokens run within some seconds; infinity before the first run."""
        return seconds * self._cost / self._seconds if self._seconds else math.inf

    def add(self, report: BatchReport, ended: float) -> None:
        """Count a run that ended at this time.

        It accounts for the time since its first text came or since the previous run, if that ended
        later.
        """
        came = ended - report.run_seconds - max(report.queue_seconds, default=0.0)
        seconds = ended - max(self._ended, came)
        self._ended = ended
        if not report.failed:
            self._seconds = _DECAY * self._seconds + seconds
            self._cost = _DECAY * self._cost + report.padded_tokens + self._run_cost


def _latest(requests: Iterable[Request]) -> float:
    """Return the last deadline of large requests; infinity if one has none."""
    deadlines = [one.deadline or math.inf for one in requests if one.large]
    return max(deadlines, default=math.inf)
