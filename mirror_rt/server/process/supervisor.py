"""Supervise several worker processes: start them, restart those that die, and end them."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import logging
import os
import pickle
import signal
import socket
import sys
import tempfile
import time
from asyncio.subprocess import PIPE, Process
from contextlib import closing

from mirror_rt.cpus import cpu_budget
from mirror_rt.errors import ConfigError, MirrorError
from mirror_rt.server.config import ListenConfig, ServerConfig
from mirror_rt.server.models.sources import Sources, lasting, listed
from mirror_rt.server.monitoring.metrics import WorkerCounts
from mirror_rt.server.process.listening import say_listening

assert sys.platform != "win32"  # where ListenConfig refuses several workers
logger = logging.getLogger("mirror_rt.server")

# Seconds before a worker that died is started again: doubled with each death, up to the longest.
_FIRST_PAUSE, _LONGEST_PAUSE = 0.2, 30.0
# A worker that served for this time counts as sound: its next death counts as the first again.
_SOUND_SECONDS = 60.0
# Time that workers have after the drain to close their models.
_CLOSE_SECONDS = 10.0
# Most bytes of a worker's report.
_REPORT_BYTES = 1 << 16


class Supervisor:
    """Serve one address in as many processes as `listen.workers` says.

    This process keeps the bound socket open until the workers are told to end, so that connections
    that wait when a worker dies are taken by other workers. Weights are memory-mapped files, which
    the processes share, as they do the processors unless `load.threads` is given.
    """

    def __init__(
        self, source: Sources, config: ServerConfig, listen: ListenConfig,
        listener: socket.socket, url: str,
    ) -> None:  # fmt: skip
        self._threads = config.load.threads or max(1, cpu_budget().threads // listen.workers)
        load = dataclasses.replace(config.load, threads=self._threads)
        self._task = (
            [str(lasting(one)) for one in listed(source)],
            dataclasses.replace(config, load=load),
            listen,
            listener.fileno(),
        )
        self._listen, self._listener, self._url = listen, listener, url
        self._environment: dict[str, str] = {}
        self._running: set[Process] = set()
        self._serving: set[Process] = set()  # those that have said that they listen
        self._listened: set[int] = set()  # numbers of workers that have listened
        self._complete = False  # whether all workers have been listening at the same time
        self._failure: MirrorError | None = None

    def run(self) -> None:
        """Serve until SIGTERM or Ctrl-C, then let the workers answer the accepted requests.

        A MirrorError says that a worker cannot start (once the server has served: that no worker
        can), or that one did not end in time.
        """
        handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
        with _metrics_folder() as folder, closing(WorkerCounts(folder)) as self._counts:
            self._environment = {"RAYON_NUM_THREADS": str(self._threads), **os.environ,
                                 "PROMETHEUS_MULTIPROC_DIR": folder}  # fmt: skip
            try:
                asyncio.run(self._serve())
            finally:
                for number, handler in handlers.items():
                    signal.signal(number, handler)
        if self._failure is not None:
            raise self._failure
        logger.info("all workers have ended")

    async def _serve(self) -> None:
        loop = asyncio.get_running_loop()
        self._stopping, self._starting = asyncio.Event(), asyncio.Lock()
        loop.add_signal_handler(signal.SIGTERM, self._stop)
        loop.add_signal_handler(signal.SIGINT, self._interrupt)
        loop.add_signal_handler(signal.SIGHUP, self._send, signal.SIGHUP)
        numbers = range(1, self._listen.workers + 1)
        workers = [loop.create_task(self._keep(number)) for number in numbers]
        stopping = loop.create_task(self._stopping.wait())
        try:
            await asyncio.wait([*workers, stopping], return_when=asyncio.FIRST_COMPLETED)
            patience = self._listen.lame_duck + self._listen.drain + _CLOSE_SECONDS
            await asyncio.wait(workers, timeout=patience)
            self._kill_late()
        finally:
            self._stop()
            self._send(signal.SIGKILL)
            await asyncio.gather(*workers)

    async def _keep(self, number: int) -> None:
        """Run a worker, and start it again whenever it dies, until the server stops."""
        deaths = 0
        while not self._stopping.is_set():
            process = await self._start()
            served, error = await self._listen_to(process, number)
            code = await process.wait()
            self._running.discard(process)
            self._serving.discard(process)
            lost = self._counts.bury(process.pid)
            if self._stopping.is_set():
                return
            if served is None and not (self._complete and self._serving):
                self._failure = error or MirrorError(
                    f"a worker {_how(code)} before it served: is there memory for "
                    f"{self._listen.workers} of them?"
                )
                self._stop()
                return
            if served is not None and time.monotonic() - served > _SOUND_SECONDS:
                deaths = 0
            pause = min(_LONGEST_PAUSE, _FIRST_PAUSE * 2**deaths)
            deaths += 1
            self._counts.add("mirror_rt_worker_deaths_total")
            self._counts.add("mirror_rt_lost_requests_total", lost)
            said = "worker %d, process %d, %s with %d open requests: starting it again in %.1f s"
            logger.error(said, number, process.pid, error or _how(code), lost, pause)  # fmt: skip
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), pause)

    async def _start(self) -> Process:
        # A worker inherits blocked signals, so that none of them ends it before it can handle them.
        # SIGINT stays blocked: a terminal sends Ctrl-C to all, but this process ends the workers.
        # One at a time: a second worker would take the blocked signals for those of before.
        async with self._starting:
            before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT, signal.SIGHUP])
            try:
                process = await asyncio.create_subprocess_exec(
                    sys.executable, "-P", "-m", "mirror_rt.server.process.worker",
                    stdin=PIPE, stdout=PIPE, limit=_REPORT_BYTES,
                    pass_fds=[self._listener.fileno()], env=self._environment,
                )  # fmt: skip
            finally:
                signal.pthread_sigmask(signal.SIG_SETMASK, before)
        assert process.stdin is not None
        process.stdin.write(pickle.dumps(self._task))  # it stays open: its end would end the worker
        self._running.add(process)
        if self._stopping.is_set():
            _signal(process, signal.SIGTERM)
        return process

    async def _listen_to(
        self, process: Process, number: int
    ) -> tuple[float | None, MirrorError | None]:
        """Read a worker's reports until it ends: since when it served, and why it could not."""
        served = error = None
        assert process.stdout is not None
        async for line in process.stdout:
            report = json.loads(line)
            if "error" in report:
                error = (ConfigError if report["usage"] else MirrorError)(report["error"])
                continue
            served = time.monotonic()
            self._serving.add(process)
            if number in self._listened:
                self._counts.add("mirror_rt_worker_restarts_total")
            self._listened.add(number)
            logger.info("worker %d listens, process %d", number, process.pid)
            if not self._complete and len(self._serving) == self._listen.workers:
                self._complete = True
                logger.info("listening at %s: workers: %d, threads of each: %d", self._url,
                            self._listen.workers, self._threads)  # fmt: skip
                say_listening()
        return served, error

    def _interrupt(self) -> None:
        """Stop at the first Ctrl-C, and kill the workers at the second."""
        if self._stopping.is_set():
            self._kill_late()
        self._stop()

    def _kill_late(self) -> None:
        if self._running and self._failure is None:
            late = len(self._running)
            self._failure = MirrorError(f"{late} workers did not end in time, and were killed")
        self._send(signal.SIGKILL)

    def _stop(self) -> None:
        """Let the workers end; they accept connections as long as they are lame ducks."""
        # Closed first: connections made later would wait for workers that accept no more.
        self._listener.close()
        self._stopping.set()
        self._send(signal.SIGTERM)

    def _send(self, number: int) -> None:
        for process in self._running:
            _signal(process, number)


def _signal(process: Process, number: int) -> None:
    """Send a signal to a process that may have ended just now.

    `Process.send_signal` would look whether it has, and take the exit status that asyncio then
    waits for in vain: it says so, and takes 255 for it.
    """
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, number)


def _metrics_folder() -> tempfile.TemporaryDirectory[str]:
    """Make a folder for the workers' metrics: in memory if possible, as a disk may be full."""
    where = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    return tempfile.TemporaryDirectory(prefix="mirror_rt-metrics-", dir=where)


def _how(code: int) -> str:
    return f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with {code}"
