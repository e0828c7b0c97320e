"""The rows that requests have to run, and the turns of large requests."""

from __future__ import annotations

import math
import time
from collections import deque

from mirror_rt.scheduling.admission import Admission, Limits
from mirror_rt.scheduling.requests import Request, WaitingText
from mirror_rt.scheduling.turns import RECENT_SECONDS
from mirror_rt.scheduling.waiting import WaitingTexts


class RequestRows:
    """The rows of tokenised requests. Not thread-safe: the queue holds its lock.

    The rows of small requests may run at once. Large requests take turns: the one that came first
    is finished first, and a small request waits for a share of the first one alone.
    """

    def __init__(self, waiting: WaitingTexts, admission: Admission, limits: Limits) -> None:
        self._waiting, self._admission, self._limits = waiting, admission, limits
        self._turns: deque[Request] = deque()  # large requests with rows that do not wait yet
        self._small_came = -math.inf  # the last small request

    def __bool__(self) -> bool:
        return bool(self._waiting or self._turns)

    def add(self, request: Request, left: list[int]) -> None:
        """Add the rows of a request that are left to run."""
        assert request.rows is not None
        if request.large:
            # Rows of similar length follow each other, so that those that run together need
            # little padding.
            lengths = request.rows.tokens.lengths.tolist()
            request.order = sorted(left, key=lengths.__getitem__)[::-1]
            self._turns.append(request)
            return
        request.order = left[::-1]
        self._queue_rows(request, math.inf)
        if not request.exempt:
            self._small_came = time.monotonic()

    def remove(self, request: Request) -> None:
        """Remove the rows of a request that is over."""
        for text in request.queued:
            self._waiting.remove(text)
        request.queued, request.order = [], []
        if request in self._turns:
            self._turns.remove(request)

    def take(self, now: float, *, shared: bool) -> list[WaitingText]:
        """Take out the next batch, which is brief if the device is shared with other models.

        One of large requests is brief while small ones come, too.
        """
        budget = self._limits.token_budget
        most = int(min(budget, self._admission.brief_tokens))
        brief_of_large = shared or now - self._small_came < RECENT_SECONDS
        self._give_turns(most if brief_of_large else math.inf)
        return self._waiting.take(
            token_budget=most if shared else budget,
            large_budget=most if brief_of_large else budget,
            run_cost=self._limits.run_cost,
        )

    def _give_turns(self, most: float) -> None:
        """Queue rows of the large request whose turn it is, at most `most` tokens."""
        while self._turns and (room := self._admission.room_for_large(most)) > 0:
            request = self._turns[0]
            self._queue_rows(request, room)
            if not request.order:
                self._turns.popleft()

    def _queue_rows(self, request: Request, tokens: float) -> None:
        """Queue the next rows of a request, until they have that number of tokens."""
        assert request.rows is not None
        ids, offsets = request.rows.tokens.ids, request.rows.tokens.offsets
        now, deadline = time.monotonic(), request.deadline
        queued = 0
        while request.order and queued < tokens:
            row = request.order.pop()
            begin, end = int(offsets[row]), int(offsets[row + 1])
            length = self._limits.pad_to or end - begin
            key = request.rows.tokens.key(row), request.of_tokens  # two outputs of the graph
            text = WaitingText(
                request, row, ids[begin:end], length, now, deadline, request.large, key
            )
            request.queued.append(text)
            self._waiting.add(text)
            queued += length
        self._admission.set_unqueued(request, request.unqueued - queued)
