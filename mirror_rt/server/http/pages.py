"""Show the state of the server: probes, metrics, the status page, and the page /docs."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import os
import re
import time
from pathlib import Path
from typing import Any

import orjson

from mirror_rt.server.exchange import HTML, Answer
from mirror_rt.server.http.answers import Values
from mirror_rt.server.http.call import Call
from mirror_rt.server.http.operations import MODEL_NAME, WATCH, always, constant, operation
from mirror_rt.server.models.registry import Registry
from mirror_rt.server.models.served_models import NamedEncoder
from mirror_rt.version import __version__

_FOLDER = Path(__file__).parent
_PIECE = 64 << 10
_NOSNIFF = (b"x-content-type-options", b"nosniff")


def _page(name: str, policy: str) -> Answer:
    """Return a page whose own scripts may run, and which may connect to this server alone.

    `policy` allows it more. The page is static: it gets its contents from other paths.
    """
    html = (_FOLDER / name).read_bytes()
    always = "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    allowed = policy.format(style=_hashes(html, "style"), script=_hashes(html, "script"))
    headers = [
        (b"content-security-policy", f"default-src 'none'; {allowed}; {always}".encode()),
        _NOSNIFF,
        (b"referrer-policy", b"no-referrer"),
        (b"cache-control", b"no-cache"),
    ]
    return Answer(html, content_type=HTML, headers=headers)


def _hashes(html: bytes, tag: str) -> str:
    """Return the hashes with which a content security policy allows the page's `tag` elements."""
    contents = re.findall(rf"<{tag}>(.*?)</{tag}>".encode(), html, re.DOTALL)
    digests = [base64.b64encode(hashlib.sha256(text).digest()).decode() for text in contents]
    return " ".join(f"'sha256-{digest}'" for digest in digests)


def _renderer() -> Answer:
    """Return the program that shows the OpenAPI document, compressed: browsers alone ask for it.

    It goes out in pieces, so that a client that does not read holds none of them but one.
    """
    packed = (_FOLDER / "scalar.js.gz").read_bytes()
    headers = [
        (b"content-encoding", b"gzip"),
        (b"content-length", str(len(packed)).encode()),
        _NOSNIFF,
        (b"cache-control", b"max-age=86400"),
    ]
    pieces = [packed[start : start + _PIECE] for start in range(0, len(packed), _PIECE)]
    return Answer(pieces, content_type=b"text/javascript", headers=headers)


STATUS_PAGE = _page("status.html", "style-src {style}; script-src {script}")
# The renderer writes its own styles, and pictures into them.
DOCS_PAGE = _page(
    "docs.html", "style-src 'unsafe-inline'; img-src data:; script-src 'self' {script}"
)
RENDERER = _renderer()


operation(
    WATCH, "/", "The status page", "Shows models, load and queue in a browser.", str,
    about="A page of HTML.", media="text/html", statuses=(),
)(always(STATUS_PAGE))  # fmt: skip


@operation(
    WATCH, "/status", "Models, load, queue and memory", "Returns the numbers of the status page.",
    Values, about="Models, load, queue and memory of the process that answered.",
    example={
        "version": "0.1.0", "process": 4711, "uptime_seconds": 10.7, "state": "ready",
        "ready": True, "refusing": None, "open_requests": 0, "resident_bytes": 263090176,
        "default": MODEL_NAME,
        "last_minute": {"requests_per_second": 0.47, "latency_seconds": {"p50": 0.021}},
        "models": [{"name": MODEL_NAME, "waiting_texts": 0, "texts": 7, "tokens": 44}],
    },
)  # fmt: skip
async def status(call: Call) -> Answer:
    registry = call.registry
    values = {
        "version": __version__,
        "process": os.getpid(),
        "uptime_seconds": time.monotonic() - registry.began,
        "state": registry.state,
        "ready": registry.state == "ready",
        "refusing": registry.refusing,
        "open_requests": registry.metrics.open_requests - 1,  # without this one
        "resident_bytes": await asyncio.to_thread(registry.metrics.resident_bytes),
        "default": registry.models.default.name,
        "last_minute": registry.recent.summary(),
        "models": [_of_model(registry, model) for model in registry.models.by_name.values()],
    }
    return Answer(orjson.dumps(values), headers=[(b"cache-control", b"no-store")])


def _of_model(registry: Registry, model: NamedEncoder) -> dict[str, Any]:
    facts, counts = registry.facts[model], registry.counts(model)
    return {
        "name": model.name,
        "language": model.language,
        "loaded": model.name in registry.services,
        "provider": facts.provider,
        "provider_reason": facts.provider_reason,
        "precision": facts.precision,
        "dimension": facts.dimension,
        "max_length": facts.max_length,
        "waiting_texts": counts.waiting_texts,
        "waiting_tokens": counts.waiting_tokens,
        "waiting_seconds": counts.waiting_seconds,
        "texts": counts.texts,
        "tokens": counts.tokens,
        "runs": counts.batches,
        "failed_texts": counts.failed,
        "padding": counts.padding,
        "run_seconds": counts.run_seconds,
    }


constant(
    WATCH, "/health", "Is the process alive?", "Answers as long as the process does.",
    {"status": "live"}, about="The process answers.", statuses=(),
)  # fmt: skip


@operation(
    WATCH, "/ready", "Is every model ready?", "Has just run every model.", Values,
    about="Every model has just run.", example={"status": "ready"}, statuses=(503,),
)  # fmt: skip
async def ready(call: Call) -> Answer:
    await call.registry.check_ready()
    return Answer(b'{"status":"ready"}')


@operation(
    WATCH, "/metrics", "Metrics for Prometheus", "Returns counters and histograms.", str,
    about="Prometheus' text format.", media="text/plain",
)  # fmt: skip
async def metrics(call: Call) -> Answer:
    found = call.registry.metrics
    text = await asyncio.to_thread(found.text)  # it reads the files of all workers
    return Answer(text, content_type=found.content_type.encode())
