"""The way of a scheduler's calls into its queue: they are checked, tokenised and queued."""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

from mirror_rt.errors import ClosedError, ConfigError, DeadlineError
from mirror_rt.pipeline.inputs import Inputs, as_list
from mirror_rt.pipeline.options import EncodeKeywords
from mirror_rt.pipeline.pipeline import Pipeline
from mirror_rt.scheduling.calls import ReentryGuard, cancel_result, is_short
from mirror_rt.scheduling.queue import RequestQueue
from mirror_rt.scheduling.requests import Call, RequestTimes, make_request

T = TypeVar("T")


class Intake:
    """Takes calls, from threads or asyncio tasks, into the queue of one scheduler."""

    def __init__(self, pipeline: Pipeline, queue: RequestQueue) -> None:
        self._pipeline, self._queue = pipeline, queue
        self._tokenizing = ThreadPoolExecutor(1, thread_name_prefix="mirror_rt-tokenizer")
        self.process = os.getpid()
        self.guard = ReentryGuard()

    def admit(
        self,
        inputs: Inputs,
        timeout: float | None,
        options: EncodeKeywords,
        times: RequestTimes | None,
        *,
        of_tokens: bool = False,
    ) -> Call:
        """Check the arguments of a call, and reserve room in the queue for its texts."""
        arrived = time.monotonic()
        if timeout is not None and not 0 < timeout < math.inf:
            raise ConfigError(f"timeout must be above 0 seconds, or None, got {timeout}")
        if "batch_size" in options:
            raise ConfigError(
                "batch_size: the batches of a Scheduler are common to its callers; give it a "
                "token_budget"
            )
        make_plan = self._pipeline.plan_for_tokens if of_tokens else self._pipeline.plan
        plan = make_plan(**options)
        if os.getpid() != self.process:
            raise ClosedError(
                f"this Scheduler belongs to process {self.process}, its threads were not forked "
                f"into process {os.getpid()}: make one there"
            )
        texts = as_list(inputs)
        self._queue.admit(len(texts))
        return Call(texts, plan, arrived, timeout, times, of_tokens)

    async def run(
        self,
        inputs: Inputs,
        timeout: float | None,
        options: EncodeKeywords,
        times: RequestTimes | None,
        *,
        of_tokens: bool = False,
    ) -> Any:
        """Return the result of a call, or raise DeadlineError when its time is over."""
        import asyncio  # imported here: a synchronous program saves 30 ms

        with self.guard():
            call = self.admit(inputs, timeout, options, times, of_tokens=of_tokens)
        try:
            async with asyncio.timeout(call.timeout):
                if is_short(call.texts):
                    with self.guard():
                        future = self.accept(call)
                else:
                    future = await self._accept_aside(call)
                return await asyncio.wrap_future(future)
        except TimeoutError as error:
            if isinstance(error, DeadlineError):
                raise
            raise DeadlineError(call.timeout) from None

    def accept(self, call: Call, stop: threading.Event | None = None) -> Future[Any]:
        """Tokenise admitted texts and queue them; raise Stopped if `stop` is set meanwhile."""
        try:
            rows = self._pipeline.tokenize(call.texts, call.plan, stop)
            dimension, pad_to = self._pipeline.model.dimension, self._pipeline.pad_to
            request = make_request(call, rows, dimension=dimension, pad_to=pad_to)
        except BaseException:
            self._queue.release(len(call.texts))
            raise
        # Look now: once the request is queued, a device may finish it and clear its texts.
        has_texts = bool(request.texts)
        self._queue.put(request, admitted=len(call.texts))
        if has_texts:
            queue = self._queue  # a waiting call must not keep the scheduler alive
            request.future.add_done_callback(
                lambda future: queue.cancel(request) if future.cancelled() else None
            )
        else:
            request.succeed(self._pipeline.finish)
        return request.future

    async def _accept_aside(self, call: Call) -> Future[Any]:
        """Call `accept` in the tokenising thread, so that the event loop goes on."""
        import asyncio

        stop = threading.Event()
        accepted = self._tokenizing.submit(self.accept, call, stop)
        accepted.add_done_callback(
            lambda future: self._queue.release(len(call.texts)) if future.cancelled() else None
        )
        try:
            return await asyncio.wrap_future(accepted)
        except BaseException:
            stop.set()
            accepted.add_done_callback(cancel_result)
            raise

    async def in_tokenizer(self, work: Callable[[], T]) -> T:
        """Run `work` in the tokenising thread; raise ClosedError if the scheduler is closed."""
        import asyncio

        try:
            future = self._tokenizing.submit(work)
        except RuntimeError:  # the executor was shut down
            raise ClosedError("this Scheduler is closed: make another") from None
        return await asyncio.wrap_future(future)

    def close(self) -> None:
        """Let the tokenising thread end after the work that is queued there."""
        self._tokenizing.shutdown(wait=False)
