"""Collect metrics for Prometheus: of requests, and of the runs of the model behind them."""

from __future__ import annotations

import os
from typing import Literal

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    generate_latest,
)
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from prometheus_client.multiprocess import MultiProcessCollector

from mirror_rt.scheduling import BatchReport

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_COUNTS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
_TOKENS = (8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192)
_SHARES = (0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1.0)
_LABELS = ("model", "status")  # `ok` or `failed`


class Metrics:
    """The metrics of one application, in their own registry.

    In a worker process they are kept in files that all workers read (`PROMETHEUS_MULTIPROC_DIR`,
    which must be set before prometheus_client is imported); gauges are added up over live workers.
    """

    content_type = CONTENT_TYPE_PLAIN_0_0_4

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._process = ProcessCollector(registry=self.registry)
        self.requests = Histogram(
            "mirror_rt_request_seconds",
            "From the head of a request to the end of its answer",
            ["route", "model", "status"],
            buckets=_SECONDS,
            registry=self.registry,
        )
        self.open = self._gauge("open_requests", "Requests that are not answered yet", "livesum")
        self.hang_ups = Counter(
            "mirror_rt_hang_ups_total", "Clients gone before their answer", registry=self.registry
        )
        self.ready = self._gauge("ready", "1 once all models are warm", "livemin")
        self._models = {
            "queue": self._of_model("queue_seconds", "Wait of a text for its run", _SECONDS),
            "texts": self._of_model("batch_texts", "Texts of a run", _COUNTS),
            "tokens": self._of_model("text_tokens", "Tokens of a text that ran", _TOKENS),
            "padding": self._of_model("batch_padding_ratio", "Share of padding in a run", _SHARES),
            "run": self._of_model("execution_seconds", "Time of a run of the model", _SECONDS),
        }
        self._cached = Counter(
            "mirror_rt_cache_texts_total",
            "Texts whose vectors the cache had, or had not",
            ["model", "result"],
            registry=self.registry,
        )
        self._waiting = self._gauge("waiting_tokens", "Tokens that wait", "livesum", "model")
        self._loaded = self._gauge(
            "model_loaded", "Processes that have the model in memory", "livesum", "model"
        )
        self.loads = Counter("mirror_rt_model_loads_total", "Times that the model was loaded",
                             ["model"], registry=self.registry)  # fmt: skip

    def _gauge(
        self, name: str, text: str, mode: Literal["livesum", "livemin"], *labels: str
    ) -> Gauge:
        return Gauge(
            f"mirror_rt_{name}", text, labels, registry=self.registry, multiprocess_mode=mode
        )

    def _of_model(self, name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
        return Histogram(
            f"mirror_rt_{name}", text, _LABELS, buckets=buckets, registry=self.registry
        )

    def of_model(self, name: str) -> ModelMetrics:
        """Return the metrics for the runs of one model."""
        by_status = {
            status: {key: histogram.labels(name, status) for key, histogram in self._models.items()}
            for status in ("ok", "failed")
        }
        gauges = self._waiting.labels(name), self._loaded.labels(name)
        cached = [self._cached.labels(name, result) for result in ("hit", "miss")]
        return ModelMetrics(by_status["ok"], by_status["failed"], *gauges, cached)

    @property
    def open_requests(self) -> int:
        """Return the number of requests that are not answered yet."""
        return int(sum(sample.value for m in self.open.collect() for sample in m.samples))

    def resident_bytes(self) -> int | None:
        """Return the resident memory of this process; None if the system does not report it."""
        found = [s.value for metric in self._process.collect() for s in metric.samples
                 if s.name == "process_resident_memory_bytes"]  # fmt: skip
        return int(found[0]) if found else None

    def text(self) -> bytes:
        """Return all metrics in Prometheus' text format; in a worker, those of all workers."""
        if "PROMETHEUS_MULTIPROC_DIR" not in os.environ:
            return generate_latest(self.registry)
        registry = CollectorRegistry()
        MultiProcessCollector(registry)  # type: ignore[no-untyped-call]
        return generate_latest(registry)


class ModelMetrics:
    """The metrics of one model, which its scheduler updates in the thread of the device.

    Runs that failed have histograms of their own: their texts are run again in halves.
    """

    def __init__(
        self, ok: dict[str, Histogram], failed: dict[str, Histogram], waiting_tokens: Gauge,
        loaded: Gauge, cached: list[Counter],
    ) -> None:  # fmt: skip
        self._ok, self._failed = ok, failed
        self.waiting_tokens, self.loaded = waiting_tokens, loaded
        self._cached = cached

    def count_cached(self, *counts: int) -> None:
        """Count the texts that the cache had, and those that it had not."""
        for counter, n in zip(self._cached, counts, strict=True):
            counter.inc(n)

    def observe(self, report: BatchReport) -> None:
        """Count a run."""
        histograms = self._failed if report.failed else self._ok
        histograms["run"].observe(report.run_seconds)
        histograms["texts"].observe(len(report.tokens))
        histograms["padding"].observe(1 - sum(report.tokens) / report.padded_tokens)
        for seconds in report.queue_seconds:
            histograms["queue"].observe(seconds)
        for tokens in report.tokens:
            histograms["tokens"].observe(tokens)
