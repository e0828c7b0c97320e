"""Forecast what admitted work will cost: tokens of texts, and seconds of tokens."""

from __future__ import annotations

import math
from typing import Any

from mirror_rt.scheduling.requests import BatchReport, Request

# Each run, and each request, multiplies the weight of those before it by this: about ten count.
_DECAY = 0.9
# Tokens of a text before any was seen: English has one for every 4 or 5 characters, many other
# languages have more.
_TOKENS_PER_CHARACTER, _CHARACTERS = 0.3, 1000.0
_SPECIAL = 2  # tokens that most models put around a text


class TokenEstimate:
    """Estimate the tokens of texts before they are tokenised, judging by those that were."""

    def __init__(self, max_length: int) -> None:
        self._max_length = max_length
        self._characters = _CHARACTERS
        self._tokens = _TOKENS_PER_CHARACTER * _CHARACTERS

    def tokens(self, request: Request) -> int:
        """Return about how many tokens the texts of a request have; those of ids are counted."""
        most = math.inf if request.plan.on_too_long == "chunk" else self._max_length
        rate, known = self._tokens / self._characters, [t for t in request.texts if _sized(t)]
        if known and isinstance(known[0], list):
            return sum(map(len, known))
        return int(sum(min(most, _SPECIAL + rate * len(text)) for text in known))

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
        """Return how long so many tokens will take, judging by past runs; 0 before the first."""
        if not tokens or not self._cost:
            return 0.0
        return (tokens + self._run_cost) * self._seconds / self._cost

    def tokens(self, seconds: float) -> float:
        """Return how many tokens run within so many seconds; infinity before the first run."""
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


def _sized(text: Any) -> bool:
    return isinstance(text, str | list)
