"""Headers of traces that say anything: the request is answered, and the span is one of ours."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asgi_calls import Call, run
from mirror_rt import Encoder
from mirror_rt.server import Models, NamedEncoder, ServerConfig, create_app

NAMES = ("traceparent", "tracestate", "baggage")
TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
VALUES = st.one_of(
    st.text(st.characters(max_codepoint=255), max_size=200),
    st.sampled_from([TRACE, TRACE.upper(), TRACE[:-1], f"ff{TRACE[2:]}", f"{TRACE}-more",
                     "00-" + "0" * 32 + "-" + "0" * 16 + "-01", "a=" + "b" * 8000,
                     ",".join(f"k{i}=v" for i in range(500)), "%ff%fe=%00", "=,=;,;"]),
)  # fmt: skip
HEADERS = st.lists(st.tuples(st.sampled_from(NAMES), VALUES), max_size=6)


@pytest.fixture(scope="module")
def traced(bundle):
    """An application whose spans are kept."""
    sdk = pytest.importorskip("opentelemetry.sdk.trace", reason="needs the extra otel")
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    from mirror_rt.server.monitoring.tracing import Tracing

    spans, provider = InMemorySpanExporter(), sdk.TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(spans))
    with Encoder.load(bundle, threads=1) as encoder:
        models = Models([NamedEncoder("tiny", encoder, None, 0)], "tiny")
        app = create_app(models, ServerConfig())
        app.state.registry.wait_until_warm()
        app.state.registry.tracing = Tracing(provider)
        yield app, spans
        app.state.registry.close()


@given(HEADERS)
def test_any_headers(traced, headers):
    app, spans = traced
    spans.clear()

    async def main():
        call = LatinCall(app, "/embed", {"inputs": "secret"}, headers=headers)
        assert (await call.answer())[0] == 200

    run(main())
    roots = [span for span in spans.get_finished_spans() if span.name == "POST /embed"]
    assert len(roots) == 1
    for span in spans.get_finished_spans():
        assert "secret" not in span.to_json()


class LatinCall(Call):
    """A request whose headers have any bytes, as uvicorn gives them to an application."""

    def __init__(self, app, path, body, *, headers):
        async def with_headers(scope, receive, send):
            scope["headers"] = [(n.encode(), v.encode("latin-1")) for n, v in headers]
            await app(scope, receive, send)

        super().__init__(with_headers, path, body)
