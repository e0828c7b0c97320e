"""Forecast how long a model needs for the texts that wait for it."""

from __future__ import annotations

import math

from mirror_rt.scheduling import BatchReport

# Each run multiplies the weight of the runs before it by this: about ten of them count.
_DECAY = 0.9


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
