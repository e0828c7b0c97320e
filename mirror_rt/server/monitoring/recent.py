"""Record the last minute of traffic for the status page."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np

from mirror_rt.scheduling import BatchReport

_MINUTE = 60.0  # seconds
# Events that are kept of each kind; under high load they cover less than a minute.
_MOST = 8192
_PERCENTILES = {"p50": 50, "p90": 90, "p99": 99}

# The time of each event, and numbers that describe it.
Events = deque[tuple[float, tuple[float, ...]]]


class Recent:
    """Count requests and runs, and summarise them as rates and percentiles."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._began = clock()
        self._requests: Events = deque(maxlen=_MOST)
        self._runs: Events = deque(maxlen=_MOST)

    def add_request(self, status: int, seconds: float) -> None:
        """Count a request to a model, and how long its answer took."""
        self._requests.append((self._clock(), (status, seconds)))

    def add_run(self, report: BatchReport) -> None:
        """Count a run of a model."""
        if not report.failed:
            run = (len(report.tokens), sum(report.tokens), report.padded_tokens)
            self._runs.append((self._clock(), run))

    def summary(self) -> dict[str, Any]:
        """Return rates per second and latencies in seconds; None for an unknown value."""
        requests, of_requests = self._read(self._requests)
        runs, of_runs = self._read(self._runs)
        texts, tokens, padded = (sum(run[i] for run in runs) for i in range(3))
        statuses = [status for status, _ in requests]
        seconds = [taken for status, taken in requests if status == 200]
        values = np.percentile(seconds, list(_PERCENTILES.values())).tolist() if seconds else ()
        return {
            "requests_per_second": len(requests) / of_requests,
            "refused_per_second": statuses.count(429) / of_requests,
            "failed_per_second": sum(s == 424 or s >= 500 for s in statuses) / of_requests,
            "texts_per_second": texts / of_runs,
            "tokens_per_second": tokens / of_runs,
            "texts_per_run": texts / len(runs) if runs else None,
            "padding": 1 - tokens / padded if padded else None,
            "latency_seconds": dict.fromkeys(_PERCENTILES)
            | dict(zip(_PERCENTILES, values, strict=False)),
        }

    def _read(self, events: Events) -> tuple[list[tuple[float, ...]], float]:
        """Return the events of the last minute, and the number of seconds that they cover."""
        now, kept = self._clock(), events.copy()  # other threads add some meanwhile
        full = len(kept) == _MOST
        since = max(now - _MINUTE, kept[0][0] if full else self._began)
        return [event for at, event in kept if at >= since], max(now - since, 1e-3)
