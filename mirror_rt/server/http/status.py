"""Serve at /status the numbers that the page at `/` shows."""

from __future__ import annotations

import os
import time
from typing import Any

import orjson

from mirror_rt import __version__
from mirror_rt.server.http.exchange import Answer, Exchange
from mirror_rt.server.models.registry import Registry
from mirror_rt.server.models.service import ModelService


async def status(registry: Registry, _: Exchange, __: bytes) -> Answer:
    """Answer GET /status: models, load, queue and memory of this process."""
    values = {
        "version": __version__,
        "process": os.getpid(),
        "uptime_seconds": time.monotonic() - registry.began,
        "state": registry.state,
        "ready": registry.state == "ready",
        "open_requests": registry.metrics.open_requests - 1,  # without this one
        "resident_bytes": registry.metrics.resident_bytes(),
        "default": registry.models.default.name,
        "last_minute": registry.recent.summary(),
        "models": [_of_model(service) for service in registry.services.values()],
    }
    return Answer(orjson.dumps(values), headers=[(b"cache-control", b"no-store")])


def _of_model(service: ModelService) -> dict[str, Any]:
    encoder, counts = service.encoder, service.scheduler.statistics()
    return {
        "name": service.model.name,
        "language": service.model.language,
        "provider": encoder.providers[0].removesuffix("ExecutionProvider"),
        "precision": encoder.variant.precision,
        "dimension": encoder.dimension,
        "max_length": encoder.max_length,
        "waiting_texts": counts.waiting_texts,
        "waiting_tokens": counts.waiting_tokens,
        "waiting_seconds": service.waiting_seconds,
        "texts": counts.texts,
        "tokens": counts.tokens,
        "runs": counts.batches,
        "failed_texts": counts.failed,
        "padding": counts.padding,
        "run_seconds": counts.run_seconds,
    }
