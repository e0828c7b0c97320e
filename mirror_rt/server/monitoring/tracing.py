"""Trace requests with OpenTelemetry: a span each, with its time in the queue and in the model.

OpenTelemetry's standard variables configure it (OTEL_EXPORTER_OTLP_ENDPOINT, OTEL_SERVICE_NAME,
OTEL_TRACES_SAMPLER and so on); without an endpoint, nothing of OpenTelemetry is imported.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Mapping
from typing import Any

from mirror_rt.errors import ConfigError, MissingDependencyError, require
from mirror_rt.scheduling import RequestTimes
from mirror_rt.server.admission.problems import HUNG_UP
from mirror_rt.server.exchange import Exchange

logger = logging.getLogger("mirror_rt.server")

_EXPORTERS = {
    "http/protobuf": "opentelemetry.exporter.otlp.proto.http.trace_exporter",
    "grpc": "opentelemetry.exporter.otlp.proto.grpc.trace_exporter",
}


def tracing_from_environment(environment: Mapping[str, str] = os.environ) -> Tracing | None:
    """Return the tracing that the standard variables ask for; None if they name no endpoint.

    If OpenTelemetry is not installed, a warning is logged and requests are answered without traces:
    these variables are often set for a whole cluster.
    """

    def of_traces(name: str, default: str) -> str:
        specific = environment.get(f"OTEL_EXPORTER_OTLP_TRACES_{name}")
        return specific or environment.get(f"OTEL_EXPORTER_OTLP_{name}") or default

    disabled = environment.get("OTEL_SDK_DISABLED", "").lower() == "true"
    exporters = environment.get("OTEL_TRACES_EXPORTER", "otlp").split(",")
    if disabled or "otlp" not in exporters or not of_traces("ENDPOINT", ""):
        return None
    protocol = of_traces("PROTOCOL", "http/protobuf")
    if protocol not in _EXPORTERS:
        raise ConfigError(
            f"OTEL_EXPORTER_OTLP_PROTOCOL must be one of {', '.join(_EXPORTERS)}, got {protocol!r}"
        )
    try:
        return Tracing(_provider(_EXPORTERS[protocol], environment))
    except MissingDependencyError as error:
        logger.warning("no traces: %s", error)
        return None


def _provider(exporter: str, environment: Mapping[str, str]) -> Any:
    purpose = "sending traces"
    sdk = require("opentelemetry.sdk.trace", extra="otel", purpose=purpose)
    export = require("opentelemetry.sdk.trace.export", extra="otel", purpose=purpose)
    resources = require("opentelemetry.sdk.resources", extra="otel", purpose=purpose)
    otlp = require(exporter, extra="otel", purpose=f"{purpose} ({exporter})")
    named = "OTEL_SERVICE_NAME" in environment or "service.name=" in environment.get(
        "OTEL_RESOURCE_ATTRIBUTES", ""
    )
    resource = resources.Resource.create({} if named else {"service.name": "mirror-rt"})
    provider = sdk.TracerProvider(resource=resource)
    provider.add_span_processor(export.BatchSpanProcessor(otlp.OTLPSpanExporter()))
    return provider


class Tracing:
    """Make the spans of requests with an SDK's TracerProvider, which `close` shuts down."""

    def __init__(self, provider: Any) -> None:
        from opentelemetry import propagate, trace

        self._provider = provider
        self._propagate, self._trace = propagate, trace
        self._tracer = provider.get_tracer("mirror_rt.server")

    def begin(self, exchange: Exchange) -> Any | None:
        """Begin the span of a request, within the trace that its headers name.

        Returns None for requests that need no model: probes, metrics, pages.
        """
        if exchange.scope["method"] != "POST":
            return None
        headers = {k.decode("latin-1"): v.decode("latin-1") for k, v in exchange.headers.items()}
        exchange.times = RequestTimes()
        return self._tracer.start_span(
            "POST", context=self._propagate.extract(headers), kind=self._trace.SpanKind.SERVER
        )

    def end(self, span: Any, exchange: Exchange) -> None:
        """End a request's span with the outcome: counts and times, but no text."""
        status, times = exchange.status or HUNG_UP, exchange.times
        span.update_name(f"POST {exchange.route}")
        values = {
            "http.request.method": "POST",
            "http.route": exchange.route,
            "http.response.status_code": status,
            "mirror_rt.request_id": exchange.request_id,
            "mirror_rt.model": exchange.model,
            "mirror_rt.texts": exchange.texts,
            "mirror_rt.tokens": exchange.tokens,
        }
        if times is not None and times.began is not None and times.ended is not None:
            values |= {
                "mirror_rt.queue_seconds": times.queue_seconds,
                "mirror_rt.execution_seconds": times.run_seconds,
                "mirror_rt.runs": times.runs,
            }
            self._parts(span, queue=(exchange.began, times.began),
                        execution=(times.began, times.ended))  # fmt: skip
        if status >= HUNG_UP or status == 424:
            values["error.type"] = str(status)
            span.set_status(self._trace.Status(self._trace.StatusCode.ERROR))
        span.set_attributes({name: value for name, value in values.items() if value is not None})
        span.end()

    def close(self) -> None:
        """Send the remaining spans."""
        self._provider.shutdown()

    def _parts(self, span: Any, **spans: tuple[float, float]) -> None:
        """Make spans within a request's span, from times of `time.monotonic`."""
        zero = time.time_ns() - time.monotonic_ns()
        context = self._trace.set_span_in_context(span)
        for name, (began, ended) in spans.items():
            part = self._tracer.start_span(
                name, context=context, start_time=zero + int(began * 1e9)
            )
            part.end(end_time=zero + int(ended * 1e9))
