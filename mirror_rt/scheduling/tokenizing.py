"""The work that is admitted to the tokenising threads, and a forecast of its time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

_DECAY = 0.9  # each step multiplies the weight of those before it by this: about ten count

# The kinds of work: texts are tokenised, cut to some of their tokens before, or shown in their
# tokens; token ids are checked, or joined to texts.
Work = Literal["tokenize", "shorten", "show", "check", "join"]


@dataclass(slots=True)
class Tokenizing:
    """The work of a request that a tokenising thread has not done yet; at first there is none."""

    work: Work = "tokenize"  # its kind
    size: int = 0  # their characters or token ids that are not done
    long: bool = False  # whether it takes several steps, and so the thread for such work
    microseconds: int = 0  # forecast of the time that they take


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
