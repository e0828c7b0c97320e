"""Let the models of a process take turns: a flood of requests for one of them starves no other."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

# Seconds. A model that had something to run within them is taken to have something again soon.
RECENT_SECONDS = 2.0


@dataclass(slots=True, eq=False)
class Share:
    """The turns of one model."""

    spent: float = 0.0  # seconds that its runs have taken, and those that it did not use
    running: int = 0  # runs in flight
    waiting: int = 0  # runs that wait for their turn
    ended: float = -math.inf  # when its last turn ended


class Turns:
    """The runs that the schedulers of a process may have in flight together.

    A run that ends makes room for the model that has the fewest runs in flight, and of several for
    the one whose runs have taken the least time so far (start-time fair queueing, Goyal et al.,
    1996). Time in which a model had nothing to run counts as if it had had its share. A model is
    told whether others want turns, so that it keeps its own short.

    Args:
        clock: gives the time in seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._changed = threading.Condition()
        self._most = 1  # runs in flight
        self._shares: list[Share] = []
        self._now = 0.0  # virtual time: seconds used by the last model when its turn began

    def join(self, runs: int) -> Share:
        """Let one more model take part, with the runs that it alone would have in flight."""
        with self._changed:
            self._most = max(self._most, runs)
            share = Share()
            self._shares.append(share)
            return share

    def leave(self, share: Share) -> None:
        """Let a model take part no more; a turn that it has goes on."""
        with self._changed:
            if share in self._shares:
                self._shares.remove(share)

    def is_alone(self, share: Share) -> bool:
        """Return whether no other model has something to run, or had a moment ago."""
        with self._changed:
            return not self._is_shared(share, self._clock())

    def take(self, share: Share, more: Callable[[], bool]) -> Iterator[bool]:
        """Yield at each turn of a model, as long as there is `more` to run after it.

        The value says whether other models want turns, or have wanted some a moment ago.
        """
        with self._changed:
            if not share.running and not share.waiting:  # it was idle, which saves up nothing
                share.spent = max(share.spent, self._now)
            share.waiting += 1
        again = True
        while again:
            with self._changed:
                while not self._is_next(share):
                    self._changed.wait()
                self._now = max(self._now, share.spent)
                share.waiting -= 1
                share.running += 1
                self._changed.notify_all()  # another model may be the next one now
                began, again = self._clock(), False
                shared = self._is_shared(share, began)
            try:
                yield shared
                again = more()
            finally:
                with self._changed:
                    share.running -= 1
                    share.ended = self._clock()
                    share.spent += share.ended - began
                    # It waits again before the others see that there is room.
                    share.waiting += again
                    self._changed.notify_all()

    def _is_next(self, share: Share) -> bool:
        if sum(one.running for one in self._shares) >= self._most:
            return False
        waiting = [one for one in self._shares if one.waiting]
        return min(waiting, key=lambda one: (one.running, one.spent)) is share

    def _is_shared(self, share: Share, now: float) -> bool:
        others = [one for one in self._shares if one is not share]
        return any(one.running or one.waiting or now - one.ended < RECENT_SECONDS for one in others)
