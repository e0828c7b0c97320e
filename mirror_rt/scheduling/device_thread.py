"""A device's side of the scheduler: it runs batches as long as texts wait."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

import numpy as np

from mirror_rt.encoding.pipeline import Pipeline, Vectors
from mirror_rt.errors import DeadlineError, NonFiniteError
from mirror_rt.scheduling.queue import RequestQueue
from mirror_rt.scheduling.requests import BatchReport, Request
from mirror_rt.scheduling.waiting import WaitingText
from mirror_rt.tokens.padding import RaggedTokens

__all__ = ["DeviceThread"]

logger = logging.getLogger("mirror_rt")


class DeviceThread(threading.Thread):
    """The thread that runs one model, until the queue is closed and empty.

    It is a daemon: a scheduler that nobody closed must not hang the interpreter at its end.

    Args:
        pipeline: runs the model.
        queue: whose texts it runs.
        on_batch: told of every run.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        queue: RequestQueue,
        on_batch: Callable[[BatchReport], None] | None,
    ) -> None:
        super().__init__(name="mirror_rt-device", daemon=True)
        self._pipeline = pipeline
        self._queue = queue
        self._on_batch = on_batch

    def run(self) -> None:
        """Run what waits, again and again."""
        while (work := self._queue.take()) is not None:
            for request in work.expired:
                request.fail(DeadlineError(request.timeout))
            self._run_batch(work.batch)
            del work  # its vectors need not wait for the next

    def _run_batch(self, batch: list[WaitingText[Request]]) -> None:
        """Run a batch; where it fails, its halves."""
        batch = [text for text in batch if not text.request.over]
        if not batch:
            return
        tokens = RaggedTokens.from_arrays([text.ids for text in batch])
        began = time.monotonic()
        try:
            vectors = self._pipeline.run_tokens(tokens, normalize=False)
        except Exception as error:  # noqa: BLE001 - whatever it is, the caller gets it
            self._report(batch, began, failed=True)
            if len(batch) > 1:
                self._run_batch(batch[: len(batch) // 2])
                self._run_batch(batch[len(batch) // 2 :])
            elif self._queue.end(batch[0].request):
                batch[0].request.fail(error)
        else:
            self._report(batch, began, failed=False)
            self._deliver(batch, vectors)

    def _deliver(self, batch: list[WaitingText[Request]], vectors: Vectors) -> None:
        for i in np.flatnonzero(~np.isfinite(vectors).all(axis=1)).tolist():
            request = batch[i].request
            if request.plan.errors == "raise" and self._queue.end(request):
                request.fail(NonFiniteError(request.rows.text_of_rows()[[batch[i].row]]))
        for request in self._queue.fill(batch, vectors):
            request.succeed(self._pipeline.finish)

    def _report(self, batch: list[WaitingText[Request]], began: float, *, failed: bool) -> None:
        report = BatchReport(
            tokens=[len(text.ids) for text in batch],
            padded_tokens=len(batch) * max(text.length for text in batch),
            queue_seconds=[began - text.arrived for text in batch],
            run_seconds=time.monotonic() - began,
            failed=failed,
        )
        self._queue.count(report, batch, began)
        if self._on_batch is not None:
            try:
                self._on_batch(report)
            except Exception:
                logger.exception("on_batch of a Scheduler failed")
