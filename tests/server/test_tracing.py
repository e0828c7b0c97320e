"""OpenTelemetry: what a collector gets of a request, and that nothing is loaded without one."""

import http.server
import subprocess
import sys
import threading

import pytest

from mirror_rt import ConfigError
from mirror_rt.server.monitoring.tracing import Tracing, tracing_from_environment
from server_process import running

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def needs_opentelemetry():
    pytest.importorskip("opentelemetry.exporter.otlp.proto.http.trace_exporter",
                        reason="needs the extra otel")  # fmt: skip


@pytest.fixture
def collector():
    """An OTLP collector: what is posted to it."""
    posted = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self):
            body = self.rfile.read(int(self.headers["content-length"]))
            posted.append((self.path, body))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}", posted
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.full
def test_a_collector_gets_spans(bundle, collector):
    """From the server's process, by the standard variables, all sent before it ends."""
    needs_opentelemetry()
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

    url, posted = collector
    with running(bundle, "--model-name", "tiny", OTEL_EXPORTER_OTLP_ENDPOINT=url,
                 OTEL_EXPORTER_OTLP_COMPRESSION="none") as server:  # fmt: skip
        headers = {"traceparent": PARENT, "X-Request-Id": "id-1"}
        assert server.post("/embed", {"inputs": ["secret", "a b"]}, headers)[0] == 200
        assert server.post("/embed_all", {"inputs": "secret"})[0] == 200
        assert server.post("/v1/embeddings", {"input": "secret", "model": "no"})[0] == 404
    assert {path for path, _ in posted} == {"/v1/traces"}
    spans = {}
    for _, body in posted:
        assert b"secret" not in body
        for group in ExportTraceServiceRequest.FromString(body).resource_spans:
            of = {a.key: a.value.string_value for a in group.resource.attributes}
            assert of["service.name"] == "mirror-rt"
            for span in (span for scope in group.scope_spans for span in scope.spans):
                spans.setdefault(span.name, []).append(span)
    assert {name: len(found) for name, found in spans.items()} == {
        "POST /embed": 1, "POST /embed_all": 1, "POST /v1/embeddings": 1, "queue": 2,
        "execution": 2,
    }  # fmt: skip
    [root] = spans["POST /embed"]
    assert root.trace_id.hex() == PARENT.split("-")[1]
    assert root.parent_span_id.hex() == PARENT.split("-")[2]
    values = {a.key: getattr(a.value, a.value.WhichOneof("value")) for a in root.attributes}
    assert values["mirror_rt.request_id"] == "id-1"
    assert (values["http.route"], values["http.response.status_code"]) == ("/embed", 200)
    assert (values["mirror_rt.model"], values["mirror_rt.texts"]) == ("tiny", 2)
    assert values["mirror_rt.tokens"] > 2
    assert values["mirror_rt.runs"] == 1
    assert values["mirror_rt.execution_seconds"] > 0
    assert values["mirror_rt.queue_seconds"] >= 0
    inside = [s for name in ("queue", "execution") for s in spans[name]
              if s.parent_span_id == root.span_id]  # fmt: skip
    queue, execution = inside
    # Of two clocks, so that only what lies between two moments can be compared.
    times = [queue.start_time_unix_nano, execution.start_time_unix_nano,
             execution.end_time_unix_nano]  # fmt: skip
    assert queue.end_time_unix_nano == times[1]
    assert times == sorted(times)
    assert times[2] - times[0] <= root.end_time_unix_nano - root.start_time_unix_nano


def test_failures_are_errors():
    needs_opentelemetry()
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    from mirror_rt.server.exchange import Exchange

    kept = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(kept))
    tracing = Tracing(provider)
    for method in ("GET", "POST"):
        for status in (200, 422, 500, 424, 0):
            exchange = Exchange({"headers": [], "method": method})
            span = tracing.begin(exchange)
            assert (span is None) == (method == "GET")
            exchange.status = status
            if span is not None:
                tracing.end(span, exchange)
    tracing.close()
    found = [(span.attributes.get("error.type"), span.status.status_code.name)
             for span in kept.get_finished_spans()]  # fmt: skip
    assert found == [(None, "UNSET"), (None, "UNSET"), ("500", "ERROR"), ("424", "ERROR"),
                     ("499", "ERROR")]  # fmt: skip


def test_nothing_is_imported_without_an_endpoint():
    code = (
        "import sys\n"
        "from mirror_rt.server.monitoring.tracing import tracing_from_environment as t\n"
        "e = {'OTEL_EXPORTER_OTLP_ENDPOINT': 'http://127.0.0.1:1'}\n"
        "off = {'OTEL_SDK_DISABLED': 'true'}, {'OTEL_TRACES_EXPORTER': 'none'}\n"
        "print([t({}), *(t(e | o) for o in off)])\n"
        "print([name for name in sys.modules if name.startswith('opentelemetry')])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.split("\n")[:2] == ["[None, None, None]", "[]"], done.stderr


def test_it_serves_without_opentelemetry(caplog, monkeypatch):
    """The variables are a cluster's; that nothing comes of them is in the log."""
    environment = {"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://127.0.0.1:1"}
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    assert tracing_from_environment(environment) is None
    assert "no traces: sending traces needs the package 'opentelemetry" in caplog.text
    assert "pip install 'mirror-rt[otel]'" in caplog.text
    environment["OTEL_EXPORTER_OTLP_PROTOCOL"] = "http/json"
    with pytest.raises(ConfigError, match="must be one of http/protobuf, grpc, got 'http/json'"):
        tracing_from_environment(environment)


def test_times_of_a_call(bundle):
    """Runs are noted for the call that asked, and for no other."""
    from mirror_rt import Encoder, Scheduler
    from mirror_rt.scheduling import RequestTimes

    times = RequestTimes()
    with Encoder.load(bundle, threads=1) as encoder, Scheduler(encoder) as scheduler:
        scheduler.encode_with_info(["a"])
        scheduler.encode_with_info(["a", "b"], times=times)
        assert times.runs == 1
        assert times.ended - times.began == pytest.approx(times.run_seconds)
        assert 0 <= times.queue_seconds < 10
        scheduler.submit(["c"], times=times).result()
        assert times.runs == 2
        statistics = scheduler.statistics()
    assert (statistics.batches, statistics.texts) == (3, 4)
