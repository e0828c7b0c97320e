"""A device's side of the scheduler: it runs batches as long as texts wait."""

from __future__ import annotations

import atexit
import threading
import time
import weakref
from collections.abc import Callable

import numpy as np

from mirror_rt.errors import DeadlineError, NonFiniteError
from mirror_rt.pipeline.pipeline import Pipeline, Vectors
from mirror_rt.scheduling.queue import RequestQueue
from mirror_rt.scheduling.requests import BatchReport, Request
from mirror_rt.scheduling.waiting import WaitingText
from mirror_rt.tokens.padding import RaggedTokens

__all__ = ["DeviceThread"]


class DeviceThread(threading.Thread):
    """The thread that runs one model, until the queue is closed and empty.

    It is a daemon, because a scheduler that nobody closed must not hang the interpreter at its
    end. It does not hold that scheduler, so that one which nobody holds any more is freed.

    Args:
        pipeline: runs the model.
        queue: whose texts it runs.
        on_batch: a method of the scheduler, told of every run as long as there is one.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        queue: RequestQueue,
        on_batch: Callable[[BatchReport], None],
    ) -> None:
        super().__init__(name="mirror_rt-device", daemon=True)
        self._pipeline = pipeline
        self.queue = queue
        self._on_batch = weakref.WeakMethod(on_batch)
        _devices.add(self)

    def run(self) -> None:
        """Run what waits, again and again."""
        while (work := self.queue.take()) is not None:
            for request in work.expired:
                request.fail(DeadlineError(request.timeout))
            for of_tokens in (False, True):  # two outputs of the graph, and so two runs
                self._run_batch([t for t in work.batch if t.request.of_tokens == of_tokens])
            del work  # its vectors need not wait for the next

    def _run_batch(self, batch: list[WaitingText[Request]]) -> None:
        """Run a batch; where it fails, its halves."""
        batch = [text for text in batch if not text.request.over]
        if not batch:
            return
        tokens = RaggedTokens.from_arrays([text.ids for text in batch])
        began = time.monotonic()
        try:
            vectors = self._run_model(tokens, of_tokens=batch[0].request.of_tokens)
        except Exception as error:  # noqa: BLE001 - whatever it is, the caller gets it
            self._report(batch, began, failed=True)
            if len(batch) > 1:
                self._run_batch(batch[: len(batch) // 2])
                self._run_batch(batch[len(batch) // 2 :])
            elif self.queue.end(batch[0].request):
                batch[0].request.fail(error)
        else:
            self._report(batch, began, failed=False)
            self._deliver(batch, vectors)

    def _run_model(self, tokens: RaggedTokens, *, of_tokens: bool) -> Vectors | list[Vectors]:
        if of_tokens:
            return self._pipeline.run_token_vectors(tokens)
        return self._pipeline.run_tokens(tokens, normalize=False)

    def _deliver(self, batch: list[WaitingText[Request]], vectors: Vectors | list[Vectors]) -> None:
        for i, row in enumerate(vectors):
            if np.isfinite(row).all():
                continue
            request = batch[i].request
            if request.plan.errors == "raise" and self.queue.end(request):
                request.fail(NonFiniteError(request.rows.text_of_rows()[[batch[i].row]]))
        for request in self.queue.fill(batch, list(vectors)):
            request.succeed(self._pipeline.finish)

    def _report(self, batch: list[WaitingText[Request]], began: float, *, failed: bool) -> None:
        report = BatchReport(
            tokens=[len(text.ids) for text in batch],
            padded_tokens=len(batch) * max(text.length for text in batch),
            queue_seconds=[began - text.arrived for text in batch],
            run_seconds=time.monotonic() - began,
            failed=failed,
        )
        self.queue.count(report, batch, began)
        if (on_batch := self._on_batch()) is not None:
            on_batch(report)


_devices: weakref.WeakSet[DeviceThread] = weakref.WeakSet()


@atexit.register
def _end_devices() -> None:
    """End the devices of schedulers that nobody closed: none may run while the interpreter ends."""
    running = [device for device in list(_devices) if device.is_alive()]  # none after a fork
    for device in running:
        device.queue.clear()
    for device in running:
        device.join()
