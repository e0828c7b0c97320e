"""Collect metrics for Prometheus: of requests, and of the runs of the model behind them."""

from __future__ import annotations

import contextlib
import json
import os
import platform
import struct
from dataclasses import dataclass
from pathlib import Path
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
from prometheus_client.mmap_dict import MmapedDict, mmap_key
from prometheus_client.multiprocess import MultiProcessCollector, mark_process_dead

from mirror_rt import __version__
from mirror_rt.scheduling import BatchReport

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0,
            60.0, 120.0, 300.0, 600.0)  # fmt: skip
_COUNTS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
_TOKENS = (8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192)
_SHARES = (0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1.0)
_LABELS = ("model", "status")  # `ok` or `failed`


class Metrics:
    """The metrics of one application, in their own registry.

    In a worker process they are kept in files that all workers read (`PROMETHEUS_MULTIPROC_DIR`,
    which must be set before prometheus_client is imported); gauges are added up over live workers.
    `timeout`, the most seconds that a request may take, ends the buckets of times.
    """

    content_type = CONTENT_TYPE_PLAIN_0_0_4

    def __init__(self, timeout: float = 60.0) -> None:
        seconds = (*(one for one in _SECONDS if one < timeout), timeout)
        self.registry = CollectorRegistry()
        self._process = ProcessCollector(registry=self.registry)
        self.requests = self._histogram(
            "request_seconds", "From the head of a request to the end of its answer", seconds,
            "route", "model", "status",
        )  # fmt: skip
        self.open = self._gauge("open_requests", "Requests that are not answered yet", "livesum")
        self.hang_ups = self._counter("hang_ups_total", "Clients gone before their answer")
        self.ready = self._gauge("ready", "1 once all models are warm", "livemin")
        self._models = {
            "queue": self._histogram("queue_seconds", "Wait of a text for its run", seconds),
            "texts": self._histogram("batch_texts", "Texts of a run", _COUNTS),
            "tokens": self._histogram("text_tokens", "Tokens of a text that ran", _TOKENS),
            "padding": self._histogram("batch_padding_ratio", "Share of padding in a run", _SHARES),
            "run": self._histogram("execution_seconds", "Time of a run of the model", seconds),
        }
        self._cached = self._counter(
            "cache_texts_total", "Texts whose vectors the cache had, or had not", "model", "result"
        )
        self._waiting = self._gauge("waiting_tokens", "Tokens that wait", "livesum", "model")
        self._loaded = self._gauge(
            "model_loaded", "Processes that have the model in memory", "livesum", "model"
        )
        self.loads = self._counter("model_loads_total", "Times that the model was loaded", "model")
        self.reloads = self._counter(
            "reloads_total", "Times that a changed source was loaded again, or not", "result"
        )
        for result in ("ok", "failed"):
            self.reloads.labels(result)
        self.reloaded = self._gauge(
            "last_reload_successful", "0 while a source cannot be loaded again", "livemin"
        )
        self.reloaded.set(1)
        self._loaded_at = self._gauge(
            "last_load_timestamp_seconds", "When the models that serve were loaded", "livemin"
        )
        self._identities = self._gauge(
            "model_info", "1 for the models that serve, by the digest of their files; 0 for those "
            "before", "livemax", "model", "digest",
        )  # fmt: skip
        self._serving: set[tuple[str, str]] = set()
        build = self._gauge("build_info", "The versions that run", "livemax", "version", "python")
        build.labels(__version__, platform.python_version()).set(1)

    def serve(self, models: set[tuple[str, str]]) -> None:
        """Say which models serve from now on: their names, and the digests of their files."""
        for one in self._serving | models:
            self._identities.labels(*one).set(one in models)
        self._serving = models
        self._loaded_at.set_to_current_time()

    def _gauge(
        self, name: str, text: str, mode: Literal["livesum", "livemin", "livemax"], *labels: str
    ) -> Gauge:
        return Gauge(
            f"mirror_rt_{name}", text, labels, registry=self.registry, multiprocess_mode=mode
        )

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(f"mirror_rt_{name}", text, labels, registry=self.registry)

    def _histogram(
        self, name: str, text: str, buckets: tuple[float, ...], *labels: str
    ) -> Histogram:
        return Histogram(
            f"mirror_rt_{name}", text, labels or _LABELS, buckets=buckets, registry=self.registry
        )

    def of_model(self, name: str) -> ModelMetrics:
        """Return the metrics for the runs of one model."""
        ok, failed = (
            {key: histogram.labels(name, status) for key, histogram in self._models.items()}
            for status in ("ok", "failed")
        )
        cached = [self._cached.labels(name, result) for result in ("hit", "miss")]
        return ModelMetrics(
            ok, failed, cached, self._waiting.labels(name), self._loaded.labels(name)
        )

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


@dataclass(frozen=True, slots=True)
class ModelMetrics:
    """The metrics of one model, which its scheduler updates in the thread of the device."""

    ok: dict[str, Histogram]
    failed: dict[str, Histogram]  # of runs that failed: their texts are run again in halves
    cached: list[Counter]  # texts that the cache had, and those that it had not
    waiting_tokens: Gauge
    loaded: Gauge

    def count_cached(self, *counts: int) -> None:
        """Count the texts that the cache had, and those that it had not."""
        for counter, n in zip(self.cached, counts, strict=True):
            counter.inc(n)

    def observe(self, report: BatchReport) -> None:
        """Count a run."""
        histograms = self.failed if report.failed else self.ok
        histograms["run"].observe(report.run_seconds)
        histograms["texts"].observe(len(report.tokens))
        histograms["padding"].observe(1 - sum(report.tokens) / report.padded_tokens)
        for seconds in report.queue_seconds:
            histograms["queue"].observe(seconds)
        for tokens in report.tokens:
            histograms["tokens"].observe(tokens)


OF_WORKERS = {
    "mirror_rt_worker_deaths_total": "Workers that died while the server served",
    "mirror_rt_worker_restarts_total": "Workers that listen in place of one that died",
    "mirror_rt_lost_requests_total": "Requests that were open in workers that died",
}


class WorkerCounts:
    """The counters of the parent of workers, in a file in the folder of their metrics."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._values = MmapedDict(str(Path(folder, f"counter_{os.getpid()}.db")))  # type: ignore[no-untyped-call]
        for name in OF_WORKERS:
            self.add(name, 0)

    def add(self, name: str, number: float = 1) -> None:
        """Add to a counter."""
        key = mmap_key(name.removesuffix("_total"), name, [], [], OF_WORKERS[name])
        value, at = self._values.read_value(key)  # type: ignore[no-untyped-call]
        self._values.write_value(key, value + number, at)  # type: ignore[no-untyped-call]

    def bury(self, process: int) -> int:
        """Count a death; return how many requests were open. Gauges go, and counters stay."""
        file = Path(self._folder, f"gauge_livesum_{process}.db")
        lost = 0
        with contextlib.suppress(OSError, struct.error):  # it died before it had metrics
            for key, value, *_ in MmapedDict.read_all_values_from_file(str(file)):  # type: ignore[no-untyped-call]
                lost += int(value) if json.loads(key)[1] == "mirror_rt_open_requests" else 0
        mark_process_dead(process, self._folder)  # type: ignore[no-untyped-call]
        return lost

    def close(self) -> None:
        """Close the file."""
        self._values.close()  # type: ignore[no-untyped-call]
