"""The device's side of the scheduler: a thread that runs batches as long as texts wait."""

from __future__ import annotations

import atexit
import threading
import time
import weakref
from collections.abc import Callable, Iterable

import numpy as np

from mirror_rt.pipeline.pipeline import Pipeline
from mirror_rt.scheduling.queue import RequestQueue
from mirror_rt.scheduling.requests import BatchReport, WaitingText
from mirror_rt.scheduling.waiting import still_wanted
from mirror_rt.tokens.padding import RaggedTokens


class DeviceThread(threading.Thread):
    """A thread that runs one model until the queue is closed and empty.

    It is a daemon thread, so that a scheduler that nobody closed does not keep the interpreter from
    ending. It holds no strong reference to the scheduler, so that an unused scheduler is freed:
    `on_batch`, a method of the scheduler, is called after every run while the scheduler exists.
    `turns` yields when a batch may run, as long as the function that it is given returns true; the
    value says whether other models want turns, too.
    """

    def __init__(
        self, pipeline: Pipeline, queue: RequestQueue, on_batch: Callable[[BatchReport], None],
        turns: Callable[[Callable[[], bool]], Iterable[bool]],
    ) -> None:  # fmt: skip
        super().__init__(name="mirror_rt-device", daemon=True)
        self._pipeline = pipeline
        self.queue = queue
        self._on_batch = weakref.WeakMethod(on_batch)
        self._turns = turns
        _devices.add(self)

    def run(self) -> None:
        """Run batches until the queue is closed and empty."""
        while self.queue.wait():
            for shared in self._turns(self.queue.has_rows):  # until then, rows can join a batch
                self.run_next(shared=shared)

    def run_next(self, *, shared: bool = False) -> None:
        """Run the next batch in whatever thread, if rows wait: a brief one if others want turns."""
        batch = self.queue.take(wait=False, shared=shared) or []
        for of_tokens in (False, True):  # they are two outputs of the graph, so two runs
            self._run_batch([text for text in batch if text.request.of_tokens == of_tokens])
        self.queue.ran(batch)

    def _run_batch(self, batch: list[WaitingText]) -> None:
        """Run a batch; if it fails, run its halves, down to the text at fault."""
        batch = still_wanted(batch)
        if not batch:
            return
        began, pipeline = time.monotonic(), self._pipeline
        tokens = RaggedTokens.from_arrays([text.ids for text in batch])
        padded = pipeline.pad(tokens)
        run = pipeline.run_token_vectors if batch[0].request.of_tokens else pipeline.run
        try:
            vectors, bad = run(padded)
        except Exception as error:  # noqa: BLE001 - the caller gets it, whatever it is
            self._tell(self._count(batch, began, failed=True))
            if len(batch) > 1:
                self._run_batch(batch[: len(batch) // 2])
                self._run_batch(batch[len(batch) // 2 :])
            else:
                for text in batch[0].all:
                    if self.queue.end(text.request):
                        text.request.fail(error)
            return
        report = self._count(batch, began, failed=False)
        for text in [one for i in bad for one in batch[i].all]:
            request, rows = text.request, text.request.rows
            refusal = rows and request.plan.non_finite_error(rows.numbered([text.row]))
            if refusal and self.queue.end(request):
                request.fail(refusal)
        for request in self.queue.fill(batch, list(vectors)):
            request.succeed()
        # These are last, because nobody waits for them.
        if pipeline.cache is not None and isinstance(vectors, np.ndarray):
            pipeline.cache.store(tokens.keys(), vectors)
        self._tell(report)

    def _count(self, batch: list[WaitingText], began: float, *, failed: bool) -> BatchReport:
        report = BatchReport(
            tokens=[len(text.ids) for text in batch],
            padded_tokens=len(batch) * max(text.length for text in batch),
            queue_seconds=[began - one.request.arrived for text in batch for one in text.all],
            run_seconds=time.monotonic() - began,
            failed=failed,
        )
        self.queue.count(report, batch, began)
        return report

    def _tell(self, report: BatchReport) -> None:
        if (on_batch := self._on_batch()) is not None:
            on_batch(report)


_devices: weakref.WeakSet[DeviceThread] = weakref.WeakSet()


@atexit.register
def _end_devices() -> None:
    """End the threads of schedulers that nobody closed, before the interpreter shuts down."""
    running = [device for device in list(_devices) if device.is_alive()]  # none after a fork
    for device in running:
        device.queue.clear()
    for device in running:
        device.join()
