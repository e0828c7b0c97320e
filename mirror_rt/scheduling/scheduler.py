"""The scheduler: its callers' side."""

from __future__ import annotations

import atexit
import math
import os
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Self, Unpack

from mirror_rt.encoding.inputs import Inputs, as_list
from mirror_rt.encoding.options import EncodeKeywords
from mirror_rt.encoding.pipeline import EncodedTexts
from mirror_rt.errors import ClosedError, ConfigError, DeadlineError
from mirror_rt.scheduling.calls import Call, HasPipeline, cancel_result, check_scheduler, is_short
from mirror_rt.scheduling.device_thread import DeviceThread
from mirror_rt.scheduling.queue import RequestQueue
from mirror_rt.scheduling.requests import (
    BatchReport,
    RequestTimes,
    SchedulerStatistics,
    make_request,
)
from mirror_rt.vectors.quantization import Embeddings

__all__ = ["HasPipeline", "Scheduler"]


class Scheduler:
    """Batches the texts of concurrent callers, threads or asyncio tasks, as the device is free.

    There is no timer: what comes while nothing runs, runs at once. While a batch runs, texts
    wait, sorted by tokens. The next batch is the text that is due first, with those that pad it
    least, up to the token budget. A text that fails, fails alone: its batch is halved until it
    is found, and the others get their vectors.

        with Scheduler(Encoder.load("bundle")) as scheduler:
            vector = scheduler.encode("one text")            # in any number of threads
            vector = await scheduler.aencode("one text")     # or of tasks

    The encoders stay open when it is closed.

    Args:
        encoders: one encoder, or several of the same model; each has a thread for each run that it
            can have in flight: one a device, two on a CPU.
        token_budget: most padded tokens of a run; a text longer than that runs alone.
        max_waiting_texts: where more would wait, a call is an `OverloadedError`.
        max_waiting_tokens: the same, in tokens.
        on_batch: called after every run, in the device's thread: for metrics.

    Raises:
        ConfigError: a limit is below 1, there is no encoder, or they differ in dimension.
    """

    def __init__(
        self,
        encoders: HasPipeline | Sequence[HasPipeline],
        *,
        token_budget: int = 2048,
        max_waiting_texts: int = 4096,
        max_waiting_tokens: int = 262_144,
        on_batch: Callable[[BatchReport], None] | None = None,
    ) -> None:
        several = encoders if isinstance(encoders, Sequence) else [encoders]
        pipelines = [encoder.pipeline for encoder in several]
        limits = {
            "token_budget": token_budget,
            "max_waiting_texts": max_waiting_texts,
            "max_waiting_tokens": max_waiting_tokens,
        }
        check_scheduler(pipelines, limits)
        self._pipeline = pipelines[0]
        self._process = os.getpid()
        self._queue = RequestQueue(
            max_texts=max_waiting_texts,
            max_tokens=max_waiting_tokens,
            token_budget=token_budget,
            run_cost=self._pipeline.model.run_cost,
        )
        self._tokenizing = ThreadPoolExecutor(1, thread_name_prefix="mirror_rt-tokenizer")
        self._devices = [
            DeviceThread(pipeline, self._queue, on_batch)
            for pipeline in pipelines
            for _ in range(pipeline.model.prepare_concurrent_runs())
        ]
        for device in self._devices:
            device.start()
        atexit.register(self._stop)

    def submit(
        self,
        inputs: Inputs,
        *,
        timeout: float | None = None,
        times: RequestTimes | None = None,
        **options: Unpack[EncodeKeywords],
    ) -> Future[EncodedTexts]:
        """Let texts wait for the device, after tokenising them in the calling thread.

        Args:
            inputs: one string, any iterable of strings, or one of lists of token ids, which run as
                they are: special tokens included, no prompt, and none of more than `max_length`.
            timeout: seconds from now after which the vectors are of no use: texts that still
                wait then do not run.
            times: where the texts' runs are noted before the future is done.
            **options: those of `Encoder.encode`, except `batch_size`.

        Returns:
            A future of the embeddings [n, D] in the order of `inputs`, with the number of tokens
            of each text and whether it was cut. Until it is done it can be cancelled: texts that
            still wait then do not run. It fails with DeadlineError, with ClosedError (closed
            before it ran), with NonFiniteError, or with what the model raised for it.

        Raises:
            InvalidTextError: a text cannot be encoded.
            ConfigError: an option has an unusable value, or the call alone is more than may wait.
            OverloadedError: too much waits.
            ClosedError: the scheduler is closed.
        """
        call = self._admit(inputs, timeout, options, times)
        return self._accept(call)

    def encode_with_info(
        self,
        inputs: Inputs,
        *,
        timeout: float | None = None,
        times: RequestTimes | None = None,
        **options: Unpack[EncodeKeywords],
    ) -> EncodedTexts:
        """`submit`, and wait.

        Raises:
            DeadlineError: the time is over; what waited was taken back.
            MirrorError: what `submit` raises, or its future.
        """
        future = self.submit(inputs, timeout=timeout, times=times, **options)
        try:
            return future.result(timeout)
        except TimeoutError:
            if future.cancel():
                raise DeadlineError(timeout) from None
            return future.result()  # it is done after all, or ended by itself
        finally:
            future.cancel()  # Ctrl-C while it waits; nothing happens to one that is done

    def encode(
        self,
        inputs: Inputs,
        *,
        timeout: float | None = None,
        **options: Unpack[EncodeKeywords],
    ) -> Embeddings:
        """`encode_with_info`, the embeddings alone: [n, D], or [D] for a single string."""
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
        """`submit`, and await the result; what is long to tokenise is so in another thread.

        A task that is cancelled takes back the texts that wait.

        Raises:
            DeadlineError: the time is over; what waited was taken back.
            MirrorError: what `submit` raises, or its future.
        """
        import asyncio  # 30 ms that a synchronous program does without

        call = self._admit(inputs, timeout, options, times)
        try:
            async with asyncio.timeout(timeout):
                short = is_short(call.texts)
                future = self._accept(call) if short else await self._accept_aside(call)
                return await asyncio.wrap_future(future)
        except TimeoutError as error:
            if isinstance(error, DeadlineError):
                raise
            raise DeadlineError(timeout) from None

    async def aencode(
        self,
        inputs: Inputs,
        *,
        timeout: float | None = None,
        **options: Unpack[EncodeKeywords],
    ) -> Embeddings:
        """`aencode_with_info`, the embeddings alone: [n, D], or [D] for a single string."""
        encoded = await self.aencode_with_info(inputs, timeout=timeout, **options)
        return encoded.embeddings[0] if isinstance(inputs, str) else encoded.embeddings

    def statistics(self) -> SchedulerStatistics:
        """Counts since the start, and what waits now."""
        return self._queue.statistics()

    @property
    def waiting_tokens(self) -> int:
        """Tokens that wait now; read without a lock, for whoever asks often."""
        return self._queue.waiting_tokens

    @property
    def running(self) -> bool:
        """Whether every device's thread is there to take texts."""
        return os.getpid() == self._process and all(d.is_alive() for d in self._devices)

    def close(self, *, drain: bool = True, timeout: float | None = None) -> None:
        """Accept nothing more, and wait until nothing runs.

        Args:
            drain: run what waits; False fails it with ClosedError.
            timeout: seconds, after which what still waits fails with ClosedError. A run that has
                begun is waited for in any case.
        """
        atexit.unregister(self._stop)
        if os.getpid() != self._process:
            return  # the threads stayed in the parent process
        until = None if timeout is None else time.monotonic() + timeout
        self._queue.close()
        self._tokenizing.shutdown(wait=False)
        if not drain:
            self._drop()
        others = [device for device in self._devices if device is not threading.current_thread()]
        for device in others:
            device.join(None if until is None else max(0.0, until - time.monotonic()))
        self._drop()
        for device in others:
            device.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Close; run what waits only where the block ended well."""
        self.close(drain=kind is None)

    def _admit(
        self,
        inputs: Inputs,
        timeout: float | None,
        options: EncodeKeywords,
        times: RequestTimes | None,
    ) -> Call:
        """Check a call and make room for its texts."""
        arrived = time.monotonic()
        if timeout is not None and not 0 < timeout < math.inf:
            raise ConfigError(f"timeout must be above 0 seconds, or None, got {timeout}")
        if "batch_size" in options:
            raise ConfigError(
                "batch_size: the batches of a Scheduler are common to its callers; give it a "
                "token_budget"
            )
        plan = self._pipeline.plan(**options)
        if os.getpid() != self._process:
            raise ClosedError(
                f"this Scheduler belongs to process {self._process}, its threads were not forked "
                f"into process {os.getpid()}: make one there"
            )
        texts = [inputs] if isinstance(inputs, str) else as_list(inputs)
        self._queue.admit(len(texts))
        return Call(texts, plan, arrived, timeout, times)

    def _accept(self, call: Call) -> Future[EncodedTexts]:
        """Tokenise admitted texts and queue them."""
        try:
            request = make_request(
                self._pipeline.prepare(call.texts, call.plan),
                call.plan,
                dimension=self._pipeline.model.dimension,
                pad_to=self._pipeline.pad_to,
                arrived=call.arrived,
                timeout=call.timeout,
                times=call.times,
            )
        except BaseException:
            self._queue.release(len(call.texts))
            raise
        has_texts = bool(request.texts)  # asked before a device can be done with them
        self._queue.put(request, admitted=len(call.texts))
        if has_texts:
            request.future.add_done_callback(
                lambda future: self._queue.cancel(request) if future.cancelled() else None
            )
        else:
            request.succeed(self._pipeline.finish)
        return request.future

    async def _accept_aside(self, call: Call) -> Future[EncodedTexts]:
        """`_accept` in another thread, so that the event loop goes on."""
        import asyncio

        accepted = self._tokenizing.submit(self._accept, call)
        accepted.add_done_callback(
            lambda future: self._queue.release(len(call.texts)) if future.cancelled() else None
        )
        try:
            return await asyncio.wrap_future(accepted)
        except BaseException:
            accepted.add_done_callback(cancel_result)
            raise

    def _drop(self) -> None:
        for request in self._queue.clear():
            request.fail(ClosedError("the Scheduler was closed before this text ran"))

    def _stop(self) -> None:
        self.close(drain=False)
