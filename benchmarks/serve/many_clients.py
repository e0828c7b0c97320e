"""Send requests by many connections, check every answer, and ask again as a good client does."""

from __future__ import annotations

import http.client
import queue
import threading
import time
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import Any

from serve.mixed_requests import MixedRequests, Request
from serve.ratios import Load

PATIENCE = 30.0  # seconds until a request without an answer is lost
_ASK_AGAIN = {429, 502, 503, 504}
_CONNECTIONS = 48


@dataclass
class Observed:
    """Observations of the clients of one run; `latencies` are by path and minute, in seconds."""

    seconds: float = 0.0
    latencies: dict[tuple[str, int], list[float]] = field(default_factory=lambda: defaultdict(list))
    asked_again: Counter[str] = field(default_factory=Counter)
    lost: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)

    @property
    def rate(self) -> float:
        return sum(map(len, self.latencies.values())) / self.seconds

    def figures(self) -> dict[str, Any]:
        by_path, by_minute = defaultdict(list), defaultdict(list)
        for (path, minute), seconds in self.latencies.items():
            by_path[path] += seconds
            by_minute[minute] += seconds
        return {
            "requests": sum(map(len, by_path.values())),
            "asked_again": sum(self.asked_again.values()),
            "asked_again_why": dict(self.asked_again),
            "lost": self.lost,
            "wrong": self.wrong,
            "by_path": {path: _row(by_path[path]) for path in sorted(by_path)},
            "by_minute": [_row(by_minute[minute]) for minute in sorted(by_minute)],
        }


def _row(seconds: list[float]) -> dict[str, float]:
    load = Load(seconds)
    return {"requests": len(seconds), "p50_ms": round(load.percentile(50), 2),
            "p99_ms": round(load.percentile(99), 2)}  # fmt: skip


class Clients:
    """Connections that are kept alive, a thread each.

    Attributes:
        key: the API key that the next requests carry.
    """

    def __init__(self, port: int, key: str, requests: MixedRequests) -> None:
        self.key = key
        self._port, self._requests = port, requests
        self._lock = threading.Lock()

    def run(self, rate: float | None, seconds: float) -> Observed:
        """Send requests at a rate, regardless of answers; with None, as fast as they come back."""
        found, due = Observed(), queue.SimpleQueue[float | None]()
        began = time.monotonic()
        threads = [threading.Thread(target=self._send, args=(found, due, began))
                   for _ in range(_CONNECTIONS)]  # fmt: skip
        for thread in threads:
            thread.start()
        sent = 0
        while (now := time.monotonic()) < began + seconds:
            if rate is None:
                while due.qsize() < 4:
                    due.put(time.monotonic())
            else:
                while began + sent / rate <= now:
                    due.put(began + sent / rate)
                    sent += 1
            time.sleep(0.002)
        for _ in threads:
            due.put(None)
        for thread in threads:
            thread.join()
        found.seconds = time.monotonic() - began
        return found

    def _send(self, found: Observed, due: queue.SimpleQueue[float | None], began: float) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=PATIENCE)
        while (at := due.get()) is not None:
            with self._lock:
                request = self._requests.draw()
            content = self._ask(connection, request, at, found)
            if content is None:
                found.lost.append(request.path)
                continue
            found.latencies[_named(request.path), int((at - began) / 60)].append(
                time.monotonic() - at
            )
            try:
                request.check(content)
            except Exception as error:  # noqa: BLE001 - part of the report
                found.wrong.append(f"{request.path}: {error!r}"[:300])
        connection.close()

    def _ask(
        self, connection: http.client.HTTPConnection, request: Request, at: float, found: Observed
    ) -> bytes | None:
        wait = 0.05
        while time.monotonic() < at + PATIENCE:
            headers = {"Authorization": f"Bearer {self.key}"}
            method = "GET" if request.body is None else "POST"
            try:
                connection.request(method, request.path, request.body, headers)
                answer = connection.getresponse()
                content = answer.read()
            except (OSError, http.client.HTTPException) as error:
                connection.close()
                why = type(error).__name__
            else:
                if answer.status == 200:
                    return content
                why = str(answer.status)
                if answer.status not in _ASK_AGAIN:
                    found.wrong.append(f"{request.path}: {why} {content[:200]!r}")
                    return None
            with self._lock:
                found.asked_again[why] += 1
            time.sleep(wait)
            wait = min(2 * wait, 1.0)
        return None


def _named(path: str) -> str:
    return "/v2/models/NAME/infer" if path.startswith("/v2/") else path
