"""The scheduler, as its callers see it."""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Protocol, Self, Unpack

from mirror_rt.errors import ConfigError
from mirror_rt.keywords import with_visible_options
from mirror_rt.pipeline.inputs import Inputs
from mirror_rt.pipeline.options import EncodeKeywords, EncodeOptions
from mirror_rt.pipeline.pipeline import EncodedTexts, Pipeline
from mirror_rt.scheduling.device_thread import DeviceThread
from mirror_rt.scheduling.intake import Intake
from mirror_rt.scheduling.queue import RequestQueue
from mirror_rt.scheduling.requests import BatchReport, Limits, RequestTimes, SchedulerStatistics
from mirror_rt.scheduling.turns import Turns
from mirror_rt.vectors.quantization import Embeddings

__all__ = ["HasPipeline", "Scheduler"]

logger = logging.getLogger("mirror_rt")


class HasPipeline(Protocol):
    """An encoder, as far as a scheduler needs it."""

    @property
    def pipeline(self) -> Pipeline:
        """The pipeline that turns texts into vectors."""


@with_visible_options(EncodeOptions)
class Scheduler:
    """Batches the texts of concurrent callers, threads or asyncio tasks, when a device is free.

    There is no timer: a text that comes while nothing runs is run at once. While a batch runs,
    further texts wait, sorted by length. The next batch is the text that is due first, with those
    that need the least padding beside it, up to the token budget. If a batch fails, it is halved
    until the text at fault is found: that one alone fails, and the others get their vectors.

        with Scheduler(Encoder.load("bundle")) as scheduler:
            vector = scheduler.encode("one text")            # in any number of threads
            vector = await scheduler.aencode("one text")     # or of tasks

    Closing a scheduler leaves its encoders open. A scheduler that is no longer referenced runs
    the texts that still wait and closes itself; it does not keep its encoders alive after that.

    A signal handler should not call a scheduler, but set a flag or use `loop.add_signal_handler`:
    if the signal interrupted a call of the same scheduler, the handler's call raises
    `ReentrantCallError`, because it would wait forever for locks that the interrupted code holds.
    For the same reason a handler should not wait for a future of `submit`.

    Args:
        encoders: one encoder, or several of the same model; the scheduler starts one thread for
            each run that an encoder can have in flight: two per card, one or two on a CPU.
        token_budget: most padded tokens of a run; a text longer than that runs alone.
        max_waiting_texts: most texts that may wait; a call beyond that raises `OverloadedError`.
        max_waiting_tokens: the same limit, in tokens.
        max_wait: seconds; a call raises `OverloadedError`, too, if the work before it would take
            longer, or would leave it too little of its `timeout`. None for no such limit.
        on_batch: called after every run in the device's thread, once its results are given, for
            example to collect metrics; after lookups also in the calling thread, where it cannot
            encode.
        turns: shared with the schedulers of other models, so that the models take turns;
            a model that only looks up vectors needs none.

    Raises:
        ConfigError: a limit is below 1, there is no encoder, or the encoders differ in dimension.
    """

    def __init__(
        self,
        encoders: HasPipeline | Sequence[HasPipeline],
        *,
        token_budget: int = 2048,
        max_waiting_texts: int = 4096,
        max_waiting_tokens: int = 262_144,
        max_wait: float | None = None,
        on_batch: Callable[[BatchReport], None] | None = None,
        turns: Turns | None = None,
    ) -> None:
        several = encoders if isinstance(encoders, Sequence) else [encoders]
        pipelines = [encoder.pipeline for encoder in several]
        _check(pipelines, token_budget=token_budget, max_waiting_texts=max_waiting_texts,
               max_waiting_tokens=max_waiting_tokens)  # fmt: skip
        first = pipelines[0]
        limits = Limits(
            max_texts=max_waiting_texts,
            max_tokens=max_waiting_tokens,
            max_wait=max_wait,
            max_length=first.tokenizer.max_length,
            token_budget=token_budget,
            run_cost=first.model.run_cost,
            dimension=first.model.dimension,
            pad_to=first.pad_to,
        )
        self._queue = RequestQueue(limits)
        runs = [pipeline.model.prepare_concurrent_runs() for pipeline in pipelines]
        if first.model.looks_up:  # which is over at once
            turns = None
        self._turns = turns
        self._share = None if turns is None else turns.join(sum(runs))
        take = partial(turns.take, self._share) if turns and self._share else (lambda _: (False,))
        self._devices = [
            DeviceThread(pipeline, self._queue, self._report, take)
            for pipeline, n in zip(pipelines, runs, strict=True)
            for _ in range(n)
        ]
        alone = partial(turns.is_alone, self._share) if turns and self._share else (lambda: True)
        self.intake = Intake(first, self._queue, self._devices[0], alone)
        self._on_batch = on_batch
        for device in self._devices:
            device.start()
        weakref.finalize(self, _close_unheld, self._queue, self.intake.process).atexit = False

    def submit(
        self,
        inputs: Inputs,
        *,
        timeout: float | None = None,
        times: RequestTimes | None = None,
        **options: Unpack[EncodeKeywords],
    ) -> Future[EncodedTexts]:
        """Tokenise texts in the calling thread, and queue them for a device.

        Args:
            inputs: one string, any iterable of strings, or an iterable of lists of token ids. Token
                ids run as they are: with the special tokens that they contain, without a prompt,
                and no list may be longer than `max_length`.
            timeout: seconds from now after which the vectors are of no use: texts that still
                wait then do not run.
            times: where the runs of these texts are recorded before the future is done.
            **options: those of `Encoder.encode`, except `batch_size`.

        Returns:
            A future of the embeddings [n, D] in the order of `inputs`, with the number of tokens
            of each text and whether it was cut. Until it is done it can be cancelled: texts that
            still wait then do not run. It fails with DeadlineError, with ClosedError (the scheduler
            was closed before the texts ran), with NonFiniteError, or with the model's own error.

        Raises:
            InvalidTextError: a text cannot be encoded.
            ConfigError: an option has an unusable value, or this call alone exceeds a limit.
            OverloadedError: too many texts or tokens wait already.
            ClosedError: the scheduler is closed.
            ReentrantCallError: a signal handler makes this call in the middle of another one.
        """
        with self.intake.guard():
            return self.intake.begin(inputs, timeout, options, times, here=True).future

    def encode_with_info(
        self,
        inputs: Inputs,
        *,
        timeout: float | None = None,
        times: RequestTimes | None = None,
        **options: Unpack[EncodeKeywords],
    ) -> EncodedTexts:
        """Submit texts, and wait for the result.

        Raises:
            DeadlineError: the time is over; texts that still waited were withdrawn.
            MirrorError: any error of `submit` or of its future.
        """
        with self.intake.guard():
            request = self.intake.begin(inputs, timeout, options, times, here=True)
            future: Future[EncodedTexts] = request.future
            try:
                with contextlib.suppress(TimeoutError):
                    return future.result(request.time_left)
                self._queue.expire(request)  # unless it was done just now
                return future.result()
            finally:
                future.cancel()  # for Ctrl-C while it waits; has no effect if it is done

    def encode(
        self, inputs: Inputs, *, timeout: float | None = None, **options: Unpack[EncodeKeywords]
    ) -> Embeddings:
        """Return only the embeddings of `encode_with_info`: [n, D], or [D] for a single string."""
        embeddings = self.encode_with_info(inputs, timeout=timeout, **options).embeddings
        return embeddings[0] if isinstance(inputs, str) else embeddings

    async def aencode_with_info(
        self,
        inputs: Inputs,
        *,
        timeout: float | None = None,
        times: RequestTimes | None = None,
        **options: Unpack[EncodeKeywords],
    ) -> EncodedTexts:
        """Submit texts, and await the result; long texts are tokenised in another thread.

        Cancelling the task withdraws the texts that still wait. The errors are those of
        `encode_with_info`.
        """
        encoded: EncodedTexts = await self.intake.encode(inputs, timeout, options, times)
        return encoded

    async def aencode(
        self, inputs: Inputs, *, timeout: float | None = None, **options: Unpack[EncodeKeywords]
    ) -> Embeddings:
        """Return only the embeddings of `aencode_with_info`: [n, D], or [D] for a single string."""
        encoded = await self.aencode_with_info(inputs, timeout=timeout, **options)
        return encoded.embeddings[0] if isinstance(inputs, str) else encoded.embeddings

    def statistics(self) -> SchedulerStatistics:
        """Return the counts since the start, and how much waits now."""
        return self._queue.statistics()

    def refusing(self) -> tuple[float, str] | None:
        """Return for how many seconds every call was refused, and why; None if one would not be.

        A call of one token would be refused now, too, and none was let in since the first refusal.
        """
        with self.intake.guard():
            return self._queue.refusing(self.intake.request([""], None, {}, None))

    @property
    def waiting_tokens(self) -> int:
        """The number of tokens that wait now; read without a lock, so it is cheap to ask often."""
        return self._queue.admission.waiting_tokens

    @property
    def running(self) -> bool:
        """Tell whether the thread of every device is alive and takes texts."""
        return os.getpid() == self.intake.process and all(d.is_alive() for d in self._devices)

    def close(self, *, drain: bool = True, timeout: float | None = None) -> None:
        """Accept no more texts, and wait until nothing runs.

        Args:
            drain: run the texts that wait; False lets them fail with ClosedError.
            timeout: seconds after which the texts that still wait fail with ClosedError. A run
                that has begun is always waited for.
        """
        if os.getpid() != self.intake.process:
            return  # the threads stayed in the parent process
        until = None if timeout is None else time.monotonic() + timeout
        self._queue.close()
        self.intake.close()
        if not drain:
            self._queue.clear()
        others = [device for device in self._devices if device is not threading.current_thread()]
        for device in others:
            device.join(None if until is None else max(0.0, until - time.monotonic()))
        self._queue.clear()
        for device in others:
            device.join()
        if self._turns and self._share:
            self._turns.leave(self._share)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Close; run the texts that wait only if the block ended without an exception."""
        self.close(drain=kind is None)

    def _report(self, report: BatchReport) -> None:
        if self._on_batch is not None:
            try:
                self._on_batch(report)
            except Exception:
                logger.exception("on_batch of a Scheduler failed")


def _close_unheld(queue: RequestQueue, process: int) -> None:
    """Let the devices of a scheduler that was freed run the texts that wait, and then end."""
    if os.getpid() == process:
        queue.close()


def _check(pipelines: Sequence[Pipeline], **limits: int) -> None:
    """Raise ConfigError if a limit is below 1, there is no model, or the dimensions differ."""
    for name, limit in limits.items():
        if limit < 1:
            raise ConfigError(field=name, expected="at least 1", value=limit)
    if not pipelines:
        raise ConfigError("a Scheduler needs at least one encoder, got none")
    dimensions = {pipeline.model.dimension for pipeline in pipelines}
    if len(dimensions) > 1:
        raise ConfigError(
            f"the encoders of a Scheduler must be of one model, got dimensions {sorted(dimensions)}"
        )
