"""How fast a model works off what waits for it."""

from __future__ import annotations

import math

from mirror_rt.scheduling import BatchReport

__all__ = ["Pace"]

# What a run leaves of the weight of those before it: some ten count.
_DECAY = 0.9


class Pace:
    """Seconds for what is computed, by the clock on the wall: what lies between runs counts, too.

    On a busy machine that is a good part: vectors are given back, other processes have their turn.

    Args:
        run_cost: what a run costs besides its tokens, in tokens: by runs of one short text alone,
            a queue that fills its runs would seem to take much longer than it does.
    """

    def __init__(self, run_cost: int) -> None:
        self._run_cost = run_cost
        self._seconds = self._cost = 0.0
        self._ended = -math.inf

    def seconds(self, tokens: int) -> float:
        """How long so many tokens will take, by the runs so far; 0 before the first."""
        if not tokens or not self._cost:
            return 0.0
        return (tokens + self._run_cost) * self._seconds / self._cost

    def add(self, report: BatchReport, ended: float) -> None:
        """Count a run that ended at this time.

        It stands for the time since its first text came, or since the run before it.
        """
        came = ended - report.run_seconds - max(report.queue_seconds, default=0.0)
        seconds = ended - max(self._ended, came)
        self._ended = ended
        if not report.failed:
            self._seconds = _DECAY * self._seconds + seconds
            self._cost = _DECAY * self._cost + report.padded_tokens + self._run_cost
