"""Supervise several worker processes: start them, restart those that die, and end them."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import logging
import os
import pickle
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prometheus_client.multiprocess import mark_process_dead

from mirror_rt.cpus import cpu_budget
from mirror_rt.errors import ConfigError, MirrorError
from mirror_rt.server.config import ListenConfig, ServerConfig
from mirror_rt.server.models.served_models import lasting
from mirror_rt.server.process.listening import url_of

logger = logging.getLogger("mirror_rt.server")

# Seconds before a worker that died is started again: doubled with each death, up to the longest.
_FIRST_PAUSE, _LONGEST_PAUSE = 0.2, 30.0
# A worker that served for so long counts as sound: its next death is again counted as the first.
_SOUND_SECONDS = 60.0
# Time that workers have after the drain to close their models.
_CLOSE_SECONDS = 10.0
# Windows has no SIGHUP, and no workers either; but this module is imported there.
_SIGNALS = tuple(
    getattr(signal, name) for name in ("SIGTERM", "SIGINT", "SIGHUP") if hasattr(signal, name)
)


@dataclass(eq=False)
class _Worker:
    """One of the worker processes, which is started again when it dies."""

    number: int
    process: subprocess.Popen[bytes] | None = None
    listening_since: float | None = None
    deaths: int = 0
    due: float = 0.0  # when to start it
    error: MirrorError | None = None  # why it cannot start, in its own words


class Supervisor:
    """Serve one address in several processes.

    This process keeps the socket open, so that connections that wait when a worker dies are taken
    by other workers. Weights are memory-mapped files, which the processes share.

    Args:
        source: bundle or pack.
        config: configuration of every worker; without `load.threads`, they share the processors
            evenly.
        listen: how connections are accepted; `workers` is the number of processes.
        listener: bound socket; closed when the workers are told to end.
    """

    def __init__(
        self, source: str | Path, config: ServerConfig, listen: ListenConfig,
        listener: socket.socket,
    ) -> None:  # fmt: skip
        self._threads = config.load.threads or max(1, cpu_budget().threads // listen.workers)
        load = dataclasses.replace(config.load, threads=self._threads)
        self._config = dataclasses.replace(config, load=load)
        self._source, self._listen, self._listener = str(lasting(source)), listen, listener
        self._url = url_of(listener, listen)
        self._workers = [_Worker(number) for number in range(1, listen.workers + 1)]
        self._selector = selectors.DefaultSelector()
        self._environment: dict[str, str] = {}
        self._complete = False  # whether all workers have been listening at the same time
        self._failure: MirrorError | None = None
        self._kill_at: float | None = None  # set when the server stops

    def run(self) -> None:
        """Serve until SIGTERM or Ctrl-C, then let the workers answer the accepted requests.

        Raises:
            MirrorError: a worker cannot start (once the server has served: no worker can), or one
                did not end in time.
        """
        with _metrics_folder() as folder, self._wake_up() as wake_up:
            self._environment = {"RAYON_NUM_THREADS": str(self._threads), **os.environ,
                                 "PROMETHEUS_MULTIPROC_DIR": folder}  # fmt: skip
            self._selector.register(wake_up, selectors.EVENT_READ)
            try:
                while self._kill_at is None or self._running():
                    self._start_due()
                    for key, _ in self._selector.select(self._pause()):
                        if key.data is None:
                            self._take_signals(wake_up)
                        else:
                            self._listen_to(key.data)
                    self._check_deadline()
            finally:
                self._kill()
        if self._failure is not None:
            raise self._failure
        logger.info("all workers have ended")

    def _start_due(self) -> None:
        for worker in self._workers:
            if self._kill_at is None and worker.process is None and worker.due <= time.monotonic():
                self._start(worker)

    def _start(self, worker: _Worker) -> None:
        descriptor = self._listener.fileno()
        # A worker inherits blocked signals, so that none of them ends it before it can handle them.
        # SIGINT stays blocked: a terminal sends Ctrl-C to all, but this process ends the workers.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT, signal.SIGHUP])
        try:
            process = subprocess.Popen(
                [sys.executable, "-P", "-m", "mirror_rt.server.process.worker"],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0,
                pass_fds=[descriptor], env=self._environment,
            )  # fmt: skip
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        worker.process, worker.listening_since, worker.error = process, None, None
        assert process.stdin is not None
        assert process.stdout is not None
        task = self._source, self._config, self._listen, descriptor
        with contextlib.suppress(BrokenPipeError):  # it is dead: `_listen_to` notices
            process.stdin.write(pickle.dumps(task))
        self._selector.register(process.stdout, selectors.EVENT_READ, worker)

    def _listen_to(self, worker: _Worker) -> None:
        """Read a worker's report; the end of its output means that the worker has ended."""
        assert worker.process is not None
        assert worker.process.stdout is not None
        line = worker.process.stdout.readline()
        if not line:
            self._bury(worker, worker.process)
            return
        report: dict[str, Any] = json.loads(line)
        if "error" in report:
            worker.error = (ConfigError if report["usage"] else MirrorError)(report["error"])
            return
        worker.listening_since = time.monotonic()
        logger.info("worker %d listens, process %d", worker.number, worker.process.pid)
        if not self._complete and all(w.listening_since is not None for w in self._workers):
            self._complete = True
            logger.info("listening at %s: %d workers, %d threads each", self._url,
                        len(self._workers), self._threads)  # fmt: skip

    def _bury(self, worker: _Worker, process: subprocess.Popen[bytes]) -> None:
        """Record that a worker has ended, and when to start it again."""
        assert process.stdin is not None
        assert process.stdout is not None
        self._selector.unregister(process.stdout)
        process.stdin.close()
        process.stdout.close()
        code = process.wait()
        worker.process = None
        # Its gauges (open requests) go; its counters stay.
        folder = self._environment["PROMETHEUS_MULTIPROC_DIR"]
        mark_process_dead(process.pid, folder)  # type: ignore[no-untyped-call]
        if self._kill_at is not None:
            return
        served = worker.listening_since
        worker.listening_since = None
        if served is None and not (self._complete and self._anyone_serves()):
            self._failure = worker.error or MirrorError(
                f"a worker {_how(code)} before it served: is there memory for "
                f"{len(self._workers)} of them?"
            )
            self._stop()
            return
        if served is not None and time.monotonic() - served > _SOUND_SECONDS:
            worker.deaths = 0
        pause = min(_LONGEST_PAUSE, _FIRST_PAUSE * 2**worker.deaths)
        worker.deaths += 1
        worker.due = time.monotonic() + pause
        logger.error("worker %d, process %d, %s: starting it again in %.1f s", worker.number,
                     process.pid, worker.error or _how(code), pause)  # fmt: skip

    def _take_signals(self, wake_up: socket.socket) -> None:
        for number in wake_up.recv(4096):
            if number == signal.SIGHUP:
                self._send(signal.SIGHUP)
            elif number == signal.SIGINT and self._kill_at is not None:
                self._kill_at = 0.0  # the second Ctrl-C
            elif number in _SIGNALS:
                self._stop()

    def _stop(self) -> None:
        """Accept no more connections, and let the workers end."""
        if self._kill_at is None:
            # Closed first: connections made from now on would wait for workers that accept no more.
            self._listener.close()
            self._kill_at = time.monotonic() + self._listen.drain + _CLOSE_SECONDS
        self._send(signal.SIGTERM)

    def _check_deadline(self) -> None:
        if self._kill_at is None or time.monotonic() < self._kill_at or not self._running():
            return
        late = len(self._running())
        self._kill()
        if self._failure is None:
            self._failure = MirrorError(f"{late} workers did not end in time, and were killed")

    def _kill(self) -> None:
        """End all running workers at once."""
        self._kill_at = self._kill_at or 0.0
        for worker in self._workers:
            if worker.process is not None:
                worker.process.kill()
                self._bury(worker, worker.process)

    def _send(self, number: int) -> None:
        for process in self._running():
            process.send_signal(number)

    def _running(self) -> list[subprocess.Popen[bytes]]:
        return [worker.process for worker in self._workers if worker.process is not None]

    def _anyone_serves(self) -> bool:
        return any(worker.listening_since is not None for worker in self._workers)

    def _pause(self) -> float | None:
        """Return the seconds until something is due, apart from reports; None if nothing is."""
        if self._kill_at is not None:
            return max(0.0, self._kill_at - time.monotonic())
        due = [worker.due for worker in self._workers if worker.process is None]
        return max(0.0, min(due) - time.monotonic()) if due else None

    @contextlib.contextmanager
    def _wake_up(self) -> Iterator[socket.socket]:
        """Yield a socket that receives the numbers of signals."""
        reader, writer = socket.socketpair()
        with reader, writer, self._selector:
            writer.setblocking(False)
            handlers = {number: signal.signal(number, lambda *_: None) for number in _SIGNALS}
            before = signal.set_wakeup_fd(writer.fileno())
            try:
                yield reader
            finally:
                signal.set_wakeup_fd(before)
                for number, handler in handlers.items():
                    signal.signal(number, handler)


def _metrics_folder() -> tempfile.TemporaryDirectory[str]:
    """Make a folder for the workers' metrics: in memory if possible, as a disk may be full."""
    where = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    return tempfile.TemporaryDirectory(prefix="mirror_rt-metrics-", dir=where)


def _how(code: int) -> str:
    return f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with {code}"
