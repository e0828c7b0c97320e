"""One export in a process of its own: its memory ends with it, and so does what kills it.

torch's exporter is not safe in threads. A process a model also gives every byte back, and one
that the system kills, for want of memory say, is one failure among others.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import pickle
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Generator, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from mirror_export.config import ExportConfig
from mirror_rt.cpus import available_cpus
from mirror_rt.errors import MirrorError

__all__ = ["Outcome", "main", "run_workers"]


@dataclass(frozen=True, slots=True)
class Outcome:
    """How one export ended.

    Attributes:
        name: of the bundle.
        seconds: it took.
        error: why there is no bundle; None where there is one.
        log: what it wrote to standard error, by line: warnings, or the trace of a crash.
        peak_bytes: most memory it held; None where the system does not say.
    """

    name: str
    seconds: float
    error: str | None = None
    log: tuple[str, ...] = ()
    peak_bytes: int | None = None


def run_workers(configs: Mapping[str, ExportConfig], jobs: int) -> Generator[Outcome, None, None]:
    """Export every model in a process of its own, `jobs` at a time; yield as they end.

    Closing the iterator, or an exception in it, ends the processes that still run.
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
    """The processes that run, to be ended together."""

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
            process = subprocess.Popen(
                # -P: a torch.py in the working folder is not torch.
                [sys.executable, "-P", "-c", "from mirror_export.pack.worker import main; main()"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=environment,
                process_group=0,  # Ctrl-C reaches this process alone, which ends the others
            )
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


def _run(name: str, config: ExportConfig, threads: int, running: _Running) -> Outcome:
    start = time.monotonic()
    with tempfile.TemporaryFile() as log:
        with running.start(log, threads) as process:
            assert process.stdin is not None  # it is a pipe
            assert process.stdout is not None
            with contextlib.suppress(BrokenPipeError):  # it has ended already: see below
                shared = dataclasses.replace(config, threads=config.threads or threads)
                pickle.dump(shared, process.stdin)
                process.stdin.flush()
            # Its standard input stays open: the worker ends when that is closed.
            reply = process.stdout.read()
        log.seek(0)
        lines = log.read().decode(errors="replace").splitlines()
    values = json.loads(reply) if reply.endswith(b"\n") else _crash(process.returncode, lines)
    return Outcome(name, round(time.monotonic() - start, 1), log=tuple(lines), **values)


def _crash(code: int, log: list[str]) -> dict[str, Any]:
    """What to say of a process that ended without a reply."""
    if code >= 0:
        last = next((line for line in reversed(log) if line.strip()), "nothing said")
        return {"error": f"its process ended with code {code}: {last}"}
    hint = "; out of memory, most likely: try fewer --jobs" if code == -signal.SIGKILL else ""
    return {"error": f"its process was ended by signal {-code}, {signal.strsignal(-code)}{hint}"}


def main() -> None:
    """Export what standard input says; reply with a line of JSON on standard output."""
    with os.fdopen(os.dup(1), "w") as channel:
        os.dup2(2, 1)  # whatever else prints is no reply
        config = pickle.load(sys.stdin.buffer)
        threading.Thread(target=_end_with_parent, daemon=True).start()
        from mirror_export.export import export_bundle

        error = None
        try:
            export_bundle(config)
        except (MirrorError, OSError) as problem:
            error = " ".join(str(problem).split())
        channel.write(json.dumps({"error": error, "peak_bytes": _peak()}) + "\n")


def _end_with_parent() -> None:
    """Exit at once when standard input is closed: nobody waits for the bundle any more."""
    while os.read(0, 1):
        pass
    os._exit(1)


def _peak() -> int | None:
    """Most resident memory so far; not ru_maxrss, which starts at what the parent had."""
    try:
        status = Path("/proc/self/status").read_text()
    except OSError:
        return None
    return next(
        (int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("VmHWM")),
        None,
    )
