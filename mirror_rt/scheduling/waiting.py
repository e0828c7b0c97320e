"""The rows that wait for a device, the choice of those that run next, and turns of requests."""

from __future__ import annotations

import heapq
import math
import time
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Hashable, Sequence

import numpy as np
import numpy.typing as npt

from mirror_rt.scheduling.admission import Admission
from mirror_rt.scheduling.requests import Limits, Request, WaitingText
from mirror_rt.scheduling.turns import RECENT_SECONDS

# A batch is chosen among at least 64 texts, and among enough of them that their tokens cost 8 times
# as much as starting a run. Choosing among all texts of a long queue would save a little padding,
# but run texts far out of their order.
_CANDIDATES, _RUNS_OF_COST = 64, 8


class WaitingTexts:
    """Texts, ordered by length and by due time. Not thread-safe: the queue holds its lock."""

    def __init__(self) -> None:
        self.tokens = self.large_tokens = 0
        self._numbers = self._waiting = 0
        self._first: dict[Hashable, WaitingText] = {}
        self._by_length: list[tuple[int, int, WaitingText]] = []
        # Those of small and of large requests. Texts that no longer wait stay in these heaps until
        # they come to the top.
        self._by_due: dict[bool, list[tuple[float, int, WaitingText]]] = {False: [], True: []}
        self._large_ran = False  # whether the last batch was of large requests

    def __len__(self) -> int:
        return len(self._by_length)

    def add(self, text: WaitingText) -> None:
        """Add a text."""
        text.number = self._numbers = self._numbers + 1
        text.waits = True
        self._waiting += 1
        heapq.heappush(self._by_due[text.large], (text.due, text.number, text))
        if (first := self._first.get(text.key)) is None:
            self._put(text)
        else:
            first.others[text.number] = text
        self._compact()

    def remove(self, text: WaitingText) -> None:
        """Take out a text, if it still waits; one that waits with it takes its place."""
        if not text.waits:
            return
        if (first := self._first[text.key]) is not text:
            del first.others[text.number]
            text.waits = False
            self._waiting -= 1
            return
        others, text.others = text.others, {}
        at = bisect_left(self._by_length, (text.length, text.number))
        self._forget(at, at + 1)
        if others:
            following = others.pop(next(iter(others)))
            following.others = others
            self._put(following)

    def take(
        self, *, token_budget: int, run_cost: int, large_budget: int | None = None
    ) -> list[WaitingText]:
        """Take out the next batch: the text that is due first, and others that run well with it.

        After a batch of large requests comes one of small ones, if they wait, and no batch is of
        both: a small request would wait for the others in its run. The others are chosen
        among the texts that are due first, some dozens of them on a CPU. A choice among all waiting
        texts would need less padding, but in a long queue texts of a common length would overtake
        the others forever. The budgets are the most padded tokens of a batch of several texts, of
        large requests `large_budget`; `run_cost` tokens are added for each run. The texts are
        returned the shortest first, with the others of each; none if none waits.
        """
        if (first := self._first_due()) is None:
            return []
        self._large_ran = first.large
        if len(self) == 1:
            return self.take_all()
        if first.large and large_budget is not None:
            token_budget = large_budget
        at = bisect_left(self._by_length, (first.length, first.number))
        reach = max(1, token_budget // max(1, first.length))
        low, high = max(0, at - reach + 1), min(len(self), at + reach)
        rows = self._due_first(low, high, at, _RUNS_OF_COST * run_cost)
        lengths = np.array([self._by_length[row][0] for row in rows], dtype=np.int64)
        start, stop = best_window(
            lengths, bisect_left(rows, at), token_budget=token_budget, run_cost=run_cost
        )
        return self._forget_rows(rows[start:stop])

    def _first_due(self) -> WaitingText | None:
        """Return the text that runs in any case; None if no text waits."""
        for heap in self._by_due.values():
            while heap and not heap[0][2].waits:
                heapq.heappop(heap)
        small, large = self._by_due.values()
        tops = small[:1] if self._large_ran and small else small[:1] + large[:1]
        return self._first[min(tops)[2].key] if tops else None

    def _due_first(self, low: int, high: int, first: int, tokens: int) -> list[int]:
        """Return the rows in `low` .. `high`, ascending, that may run with the row `first`.

        They are of small requests, or of large ones, as that is. Those that are due first come:
        at least `_CANDIDATES` texts and `tokens` tokens, or of all that there are.
        """
        waiting = [entry[2] for entry in self._by_length[low:high]]
        large = waiting[first - low].large
        rows = [low + i for i, text in enumerate(waiting) if text.large == large]
        if len(rows) <= _CANDIDATES:
            return rows

        def place(row: int) -> tuple[bool, float, int]:
            text = waiting[row - low]  # one that waits with `first` may be due before it
            return row != first, text.due, text.number

        by_due, n = sorted(rows, key=place), _CANDIDATES
        found = sum(self._by_length[row][0] for row in by_due[:n])
        while found < tokens and n < len(by_due):
            found += self._by_length[by_due[n]][0]
            n += 1
        return sorted(by_due[:n])

    def take_all(self) -> list[WaitingText]:
        """Take out everything."""
        return self._forget(0, len(self))

    def _forget_rows(self, rows: Sequence[int]) -> list[WaitingText]:
        texts = [self._forget(row, row + 1)[0] for row in reversed(rows)]
        return texts[::-1]

    def _put(self, text: WaitingText) -> None:
        """Let a text wait that is the first of its key."""
        self._first[text.key] = text
        self._count(text, text.length)
        insort(self._by_length, (text.length, text.number, text))

    def _forget(self, start: int, stop: int) -> list[WaitingText]:
        texts = [entry[2] for entry in self._by_length[start:stop]]
        del self._by_length[start:stop]
        for text in texts:
            del self._first[text.key]
            self._count(text, -text.length)
            for one in text.all:
                one.waits = False
            self._waiting -= len(text.others) + 1
        return texts

    def _count(self, text: WaitingText, tokens: int) -> None:
        self.tokens += tokens
        self.large_tokens += tokens if text.large else 0

    def _compact(self) -> None:
        """Remove texts that no longer wait from the heap, before they are most of it."""
        if sum(map(len, self._by_due.values())) > 2 * self._waiting + 64:
            for large, heap in self._by_due.items():
                self._by_due[large] = [entry for entry in heap if entry[2].waits]
                heapq.heapify(self._by_due[large])


def best_window(
    lengths: npt.NDArray[np.int64], first: int, *, token_budget: int, run_cost: int
) -> tuple[int, int]:
    """Find the neighbours by length that run best together with a given text.

    Of all windows that contain the text and fit the budget, this is the one with the most real
    tokens per computed token, `run_cost` included, since that gives the highest throughput. So
    short texts fill the budget together, while a much longer text runs alone instead of padding
    all of them. `lengths` is int64 [n], ascending, each at least 1; `first` is the index of the
    text. The start and the stop of the window are returned.
    """
    total = np.concatenate([[0], np.cumsum(lengths)])
    stops = np.arange(first + 1, len(lengths) + 1)
    longest = lengths[stops - 1]
    lowest = np.maximum(stops - np.maximum(token_budget // longest, 1), 0)
    stops, longest, lowest = (array[lowest <= first] for array in (stops, longest, lowest))

    def padded(starts: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        return (stops - starts) * longest + run_cost

    # To the left, texts get shorter. Adding one more pays as long as its share of real tokens is
    # above that of the window. If one text does not pay, no shorter one does, so a bisection finds
    # the best start for each stop.
    low, high = lowest, np.full_like(lowest, first)
    while (low < high).any():
        middle = (low + high) // 2  # does adding this text improve the window from middle + 1?
        real = total[stops] - total[middle + 1]
        gains = lengths[middle] * padded(middle + 1) > real * longest
        low, high = (
            np.where(gains, low, np.minimum(middle + 1, high)),
            np.where(gains, middle, high),
        )
    best = int(np.argmax((total[stops] - total[high]) / padded(high)))
    return int(high[best]), int(stops[best])


def still_wanted(batch: Sequence[WaitingText]) -> list[WaitingText]:
    """Leave out the texts whose requests are over; one that waited with it takes the place."""
    kept = []
    for text in batch:
        if wanted := [one for one in text.all if not one.request.over]:
            first, *others = wanted
            first.others = {one.number: one for one in others}
            kept.append(first)
    return kept


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
