"""Run every export in a process of its own.

torch's exporter is not thread-safe. One process per model also gives back all of its memory, and
if the system kills it, for example because memory runs out, only that model fails.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import subprocess
import tempfile
import threading
import time
from collections.abc import Generator, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from typing import IO, Any, Literal

from mirror_export.config import ExportConfig
from mirror_rt import Manifest
from mirror_rt.child_process import give_task, how_it_ended, read_reply, start_child
from mirror_rt.cpus import available_cpus
from mirror_rt.diagnostics.benchmarking import peak_memory_mb
from mirror_rt.errors import MirrorError

ModelStatus = Literal["exported", "kept", "failed"]


@dataclass(frozen=True, slots=True)
class ModelResult:
    """The result of one model.

    Attributes:
        name: name of its bundle in the pack.
        model: folder or hub name of the model.
        status: `kept`: an earlier run made the bundle from the same files with the same options.
        seconds: duration of the export.
        manifest: manifest of the bundle; None if the export failed.
        error: why it failed, in one line; None if it did not.
        log: warnings, line by line.
        peak_bytes: most memory that the export held; None if the system does not tell.
    """

    name: str
    model: str
    status: ModelStatus
    seconds: float = 0.0
    manifest: Manifest | None = None
    error: str | None = None
    log: tuple[str, ...] = ()
    peak_bytes: int | None = None

    @property
    def bytes(self) -> int:
        """Size of the bundle's files if it is copied out of the pack alone."""
        return sum(r.bytes for r in self.manifest.files.values()) if self.manifest else 0


def run_workers(
    configs: Mapping[str, ExportConfig], jobs: int
) -> Generator[ModelResult, None, None]:
    """Export every model in a process of its own, `jobs` at a time; yield results as they end.

    The results have no manifest. If the iterator is closed or raises, the processes that still run
    are killed.
    """
    threads = max(1, available_cpus() // jobs)
    running = _Running()
    executor = ThreadPoolExecutor(jobs)
    try:
        futures = [
            executor.submit(_run, name, config, threads, running)
            for name, config in configs.items()
        ]
        for future in as_completed(futures):
            yield future.result()
    finally:
        executor.shutdown(wait=False, cancel_futures=True)
        running.kill()
        executor.shutdown(wait=True)


class _Running:
    """The running processes, which can be killed together."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._processes: set[subprocess.Popen[bytes]] = set()
        self._closed = False

    @contextlib.contextmanager
    def start(self, log: IO[bytes], threads: int) -> Iterator[subprocess.Popen[bytes]]:
        share = os.environ.get("OMP_NUM_THREADS") or str(threads)
        environment = os.environ | {"OMP_NUM_THREADS": share, "RAYON_NUM_THREADS": share}
        with self._lock:
            if self._closed:
                raise KeyboardInterrupt
            process = start_child(stderr=log, environment=environment)
            self._processes.add(process)
        try:
            with process:
                yield process
        finally:
            self._processes.discard(process)

    def kill(self) -> None:
        with self._lock:
            self._closed = True
            for process in self._processes:
                process.kill()


def _run(name: str, config: ExportConfig, threads: int, running: _Running) -> ModelResult:
    start = time.monotonic()
    with tempfile.TemporaryFile() as log:
        with running.start(log, threads) as process:
            shared = dataclasses.replace(config, threads=config.threads or threads)
            give_task(process, export_here, shared)
            reply = read_reply(process)
        log.seek(0)
        lines = log.read().decode(errors="replace").splitlines()
    if reply is None:
        said = next((line for line in reversed(lines) if line.strip()), "nothing said")
        reply = {"error": how_it_ended(process, advice=": try fewer --jobs", said=said)}
    status: ModelStatus = "failed" if reply["error"] else "exported"
    seconds = round(time.monotonic() - start, 1)
    return ModelResult(name, config.model, status, seconds, log=tuple(lines), **reply)


def export_here(config: ExportConfig) -> dict[str, Any]:
    """Export a model in this process; return the error and the memory for its result."""
    from mirror_export.export import export_bundle

    error = None
    try:
        if (made := export_bundle(config).format) != "mirror_rt bundle":
            kind = made.removeprefix("mirror_rt ")
            error = f"it is a {kind}, and a pack holds encoders: export it by itself"
    except (MirrorError, OSError) as problem:
        error = " ".join(str(problem).split())
    peak = peak_memory_mb()
    return {"error": error, "peak_bytes": None if peak is None else int(peak * 2**20)}
