"""Serve the status page at `/`, and the numbers that it shows at /status."""

from __future__ import annotations

import base64
import hashlib
import os
import re
import time
from pathlib import Path
from typing import Any

import orjson

from mirror_rt import __version__
from mirror_rt.server.http.exchange import HTML, Answer, Exchange
from mirror_rt.server.models.registry import Registry
from mirror_rt.server.models.service import ModelService

__all__ = ["PAGE", "status"]

_HTML = Path(__file__).with_name("status.html").read_bytes()


def _hashes(tag: str) -> str:
    """Return the hashes with which a content security policy allows the page's `tag` elements."""
    contents = re.findall(rf"<{tag}>(.*?)</{tag}>".encode(), _HTML, re.DOTALL)
    digests = [base64.b64encode(hashlib.sha256(text).digest()).decode() for text in contents]
    return " ".join(f"'sha256-{digest}'" for digest in digests)


# Only the page's own style and script may run, and they may connect to this server alone.
_POLICY = (
    f"default-src 'none'; style-src {_hashes('style')}; script-src {_hashes('script')}; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_HEADERS = [
    (b"content-security-policy", _POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cache-control", b"no-cache"),
]
# The page is static: it gets all its numbers from /status.
PAGE = Answer(_HTML, content_type=HTML, headers=_HEADERS)


async def status(registry: Registry, _: Exchange, __: bytes) -> Answer:
    """Answer GET /status: models, load, queue and memory of this process."""
    values = {
        "version": __version__,
        "process": os.getpid(),
        "uptime_seconds": time.monotonic() - registry.began,
        "ready": registry.is_ready,
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
