"""Log and count the end of every request, also of those that could not be read."""

from __future__ import annotations

import logging

from mirror_rt.server.monitoring.metrics import Metrics
from mirror_rt.server.monitoring.recent import Recent

access = logging.getLogger("mirror_rt.server.access")

UNREAD = "unread"  # the route of requests that could not be read
# Asked every few seconds by machines; logged where they fail, and with --log-level debug.
_PROBES = frozenset({"/health", "/ready", "/metrics", "/v2/health/live", "/v2/health/ready"})


class RequestLog:
    """Count the requests of an application, and log each in a line."""

    def __init__(self, metrics: Metrics, recent: Recent) -> None:
        self._metrics, self._recent = metrics, recent

    def note(
        self, request_id: str, route: str, status: int, seconds: float, *,
        peer: tuple[str, int] | None, reason: str | None, model: str | None = None,
        texts: int | None = None, tokens: int | None = None,
    ) -> None:  # fmt: skip
        """Record a request that has ended; of one that failed, why, and who had sent it."""
        self._metrics.requests.labels(route, model or "", str(status)).observe(seconds)
        if model is not None:
            self._recent.add_request(status, seconds)
        failed = status >= 400
        level = logging.DEBUG if route in _PROBES and not failed else logging.INFO
        if access.isEnabledFor(level):
            fields = {
                "request_id": request_id, "route": route, "status": status,
                "milliseconds": round(seconds * 1000, 2), "model": model,
                "texts": texts, "tokens": tokens, "reason": reason if failed else None,
                "peer": peer[0] if failed and peer else None,
            }  # fmt: skip
            kept = {name: value for name, value in fields.items() if value is not None}
            access.log(level, "request", extra={"fields": kept})
