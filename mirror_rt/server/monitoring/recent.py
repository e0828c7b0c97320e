"""Record the last minute of traffic for the status page."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

import numpy as np

from mirror_rt.scheduling import BatchReport

_WINDOW = 60.0  # seconds
# Events that are kept of each kind; under high load the window is therefore shorter.
_MOST = 8192
_PERCENTILES = {"p50": 50, "p90": 90, "p99": 99}
EventT = TypeVar("EventT")


class _Window(Generic[EventT]):
    """Events of the last minute, and the number of seconds that they cover. Not thread-safe."""

    def __init__(self, began: float) -> None:
        self._began = began
        self._events: deque[tuple[float, EventT]] = deque(maxlen=_MOST)

    def add(self, now: float, event: EventT) -> None:
        self._events.append((now, event))

    def read(self, now: float) -> tuple[list[EventT], float]:
        while self._events and self._events[0][0] < now - _WINDOW:
            self._events.popleft()
        full = len(self._events) == _MOST
        since = self._events[0][0] if full else max(self._began, now - _WINDOW)
        return [event for _, event in self._events], max(now - since, 1e-3)


class Recent:
    """Count requests and runs, and summarise them as rates and percentiles."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._requests: _Window[tuple[int, float]] = _Window(clock())
        self._runs: _Window[tuple[int, int, int]] = _Window(clock())

    def add_request(self, status: int, seconds: float) -> None:
        """Count a request to a model, and how long its answer took."""
        with self._lock:
            self._requests.add(self._clock(), (status, seconds))

    def add_run(self, report: BatchReport) -> None:
        """Count a run of a model."""
        if not report.failed:
            run = (len(report.tokens), sum(report.tokens), report.padded_tokens)
            with self._lock:
                self._runs.add(self._clock(), run)

    def summary(self) -> dict[str, Any]:
        """Return rates per second and latencies in seconds; None for an unknown value."""
        with self._lock:
            now = self._clock()
            requests, of_requests = self._requests.read(now)
            runs, of_runs = self._runs.read(now)
        texts, tokens, padded = (sum(column) for column in zip(*runs, strict=True)) if runs else (
            0, 0, 0)  # fmt: skip
        statuses = [status for status, _ in requests]
        return {
            "requests_per_second": len(requests) / of_requests,
            "refused_per_second": statuses.count(429) / of_requests,
            "failed_per_second": sum(s == 424 or s >= 500 for s in statuses) / of_requests,
            "texts_per_second": texts / of_runs,
            "tokens_per_second": tokens / of_runs,
            "texts_per_run": texts / len(runs) if runs else None,
            "padding": 1 - tokens / padded if padded else None,
            "latency_seconds": _latencies([s for status, s in requests if status == 200]),
        }


def _latencies(seconds: Sequence[float]) -> dict[str, float | None]:
    if not seconds:
        return dict.fromkeys(_PERCENTILES)
    values = np.percentile(seconds, list(_PERCENTILES.values()))
    return dict(zip(_PERCENTILES, values.tolist(), strict=True))
