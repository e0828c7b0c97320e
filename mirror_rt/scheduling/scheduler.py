"""The scheduler: its callers' side."""

from __future__ import annotations

import atexit
import os
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Literal, Self

from mirror_rt.encoding import Vectors, _as_list
from mirror_rt.errors import ClosedError, ConfigError, DeadlineError, InvalidTextError
from mirror_rt.scheduling.device import Device, ScheduledEncoder
from mirror_rt.scheduling.queue import RequestQueue
from mirror_rt.scheduling.requests import (
    BatchReport,
    Options,
    SchedulerStatistics,
    make_request,
)

__all__ = ["Scheduler"]

# What a run costs besides its tokens, in tokens. On two cores all-MiniLM-L6-v2 computes some
# 8,000 tokens a second, and a run of one word takes 2 ms. A GPU is about a hundred times as
# fast, and to launch the kernels of a run takes it as long.
_RUN_COST, _RUN_COST_GPU = 16, 1024


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
        encoders: one encoder, or one for each device.
        token_budget: most padded tokens of a run; a text longer than that runs alone.
        max_waiting_texts: where more would wait, a call is an `OverloadedError`.
        max_waiting_tokens: the same, in tokens.
        on_batch: called after every run, in the device's thread: for metrics.

    Raises:
        ConfigError: a limit is below 1, there is no encoder, or they differ in dimension.
    """

    def __init__(
        self,
        encoders: ScheduledEncoder | Sequence[ScheduledEncoder],
        *,
        token_budget: int = 2048,
        max_waiting_texts: int = 4096,
        max_waiting_tokens: int = 262_144,
        on_batch: Callable[[BatchReport], None] | None = None,
    ) -> None:
        encoders = list(encoders) if isinstance(encoders, Sequence) else [encoders]
        limits = {
            "token_budget": token_budget,
            "max_waiting_texts": max_waiting_texts,
            "max_waiting_tokens": max_waiting_tokens,
        }
        _check(encoders, limits)
        self._encoder = encoders[0]
        self._process = os.getpid()
        on_cpu = self._encoder.providers[0] == "CPUExecutionProvider"
        self._queue = RequestQueue(
            max_texts=max_waiting_texts,
            max_tokens=max_waiting_tokens,
            token_budget=token_budget,
            run_cost=_RUN_COST if on_cpu else _RUN_COST_GPU,
        )
        self._tokenizing = ThreadPoolExecutor(1, thread_name_prefix="mirror_rt-tokenizer")
        self._devices = [Device(encoder, self._queue, on_batch) for encoder in encoders]
        for device in self._devices:
            device.start()
        atexit.register(self._stop)

    def submit(
        self,
        inputs: str | Iterable[str],
        *,
        timeout: float | None = None,
        normalize_embeddings: bool = True,
        truncate_dim: int | None = None,
        errors: Literal["raise", "nan"] = "raise",
    ) -> Future[Vectors]:
        """Let texts wait for the device, after tokenising them in the calling thread.

        Args:
            inputs: one string, or any iterable of strings.
            timeout: seconds from now after which the vectors are of no use: texts that still
                wait then do not run.
            normalize_embeddings: give unit vectors.
            truncate_dim: keep the first so many dimensions (then normalise, if asked to).
            errors: `"raise"` fails the call for an unusable text; `"nan"` gives it a row of NaN.

        Returns:
            A future of float32 [n, D] in the order of `inputs`; [D] for a single string. Until it
            is done it can be cancelled: texts that still wait then do not run. It fails with
            DeadlineError, with ClosedError (closed before it ran), with InvalidTextError (no
            finite vector), or with what the model raised for it.

        Raises:
            InvalidTextError: a text cannot be encoded.
            ConfigError: an option is out of range, or the call alone is more than may wait.
            OverloadedError: too much waits.
            ClosedError: the scheduler is closed.
        """
        options = Options(timeout, normalize_embeddings, truncate_dim, errors)
        texts = self._admit(inputs, options)
        return self._accept(texts, options, single=isinstance(inputs, str))

    def encode(
        self, inputs: str | Iterable[str], *, timeout: float | None = None, **options: Any
    ) -> Vectors:
        """`submit`, and wait for the vectors.

        Args:
            inputs: one string, or any iterable of strings.
            timeout: seconds to wait.
            **options: the others of `submit`.

        Returns:
            float32 [n, D] in the order of `inputs`; [D] for a single string.

        Raises:
            DeadlineError: the time is over; what waited was taken back.
            MirrorError: what `submit` raises, or its future.
        """
        future = self.submit(inputs, timeout=timeout, **options)
        try:
            return future.result(timeout)
        except TimeoutError:
            if future.cancel():
                raise DeadlineError(timeout) from None
            return future.result()  # it is done after all, or ended by itself
        finally:
            future.cancel()  # Ctrl-C while it waits; nothing happens to one that is done

    async def aencode(
        self, inputs: str | Iterable[str], *, timeout: float | None = None, **options: Any
    ) -> Vectors:
        """`submit`, tokenising in another thread, and await the vectors.

        A task that is cancelled takes back the texts that wait.

        Args:
            inputs: one string, or any iterable of strings.
            timeout: seconds to wait.
            **options: the others of `submit`.

        Returns:
            float32 [n, D] in the order of `inputs`; [D] for a single string.

        Raises:
            DeadlineError: the time is over; what waited was taken back.
            MirrorError: what `submit` raises, or its future.
        """
        import asyncio  # here: it takes as long to import as all the rest

        checked = Options(timeout, **options)
        texts = self._admit(inputs, checked)
        accepted = self._tokenizing.submit(
            self._accept, texts, checked, single=isinstance(inputs, str)
        )
        accepted.add_done_callback(
            lambda future: self._queue.release(len(texts)) if future.cancelled() else None
        )
        try:
            async with asyncio.timeout(timeout):
                future: Future[Vectors] = await asyncio.wrap_future(accepted)
                return await asyncio.wrap_future(future)
        except TimeoutError as error:
            if isinstance(error, DeadlineError):
                raise
            raise DeadlineError(timeout) from None
        finally:
            accepted.add_done_callback(_cancel_result)

    def statistics(self) -> SchedulerStatistics:
        """Counts since the start, and what waits now."""
        return self._queue.statistics()

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

    def _admit(self, inputs: str | Iterable[str], options: Options) -> list[Any]:
        """Check a call and make room for its texts."""
        options.check(self._encoder.dimension)
        if os.getpid() != self._process:
            raise ClosedError(
                f"this Scheduler belongs to process {self._process}, its threads were not forked "
                f"into process {os.getpid()}: make one there"
            )
        texts = [inputs] if isinstance(inputs, str) else _as_list(inputs)
        self._queue.admit(len(texts))
        return texts

    def _accept(self, texts: list[Any], options: Options, *, single: bool) -> Future[Vectors]:
        """Tokenise admitted texts and queue them."""
        try:
            tokens, unusable = self._encoder.prepare(texts)
            if unusable and options.errors == "raise":
                raise InvalidTextError(unusable)
            request = make_request(
                tokens,
                options,
                dimension=self._encoder.dimension,
                pad_to=self._encoder.pad_to,
                single=single,
            )
        except BaseException:
            self._queue.release(len(texts))
            raise
        self._queue.put(request, admitted=len(texts))
        if request.texts:
            request.future.add_done_callback(
                lambda future: self._queue.cancel(request) if future.cancelled() else None
            )
        else:
            request.succeed()
        return request.future

    def _drop(self) -> None:
        for request in self._queue.clear():
            request.fail(ClosedError("the Scheduler was closed before this text ran"))

    def _stop(self) -> None:
        self.close(drain=False)


def _cancel_result(accepted: Future[Future[Vectors]]) -> None:
    """Cancel what was accepted for a task that is gone; nothing happens to one that is done."""
    if not accepted.cancelled() and accepted.exception() is None:
        accepted.result().cancel()


def _check(encoders: Sequence[ScheduledEncoder], limits: dict[str, int]) -> None:
    for name, limit in limits.items():
        if limit < 1:
            raise ConfigError(f"{name} must be at least 1, got {limit}")
    if not encoders:
        raise ConfigError("a Scheduler needs at least one encoder, got none")
    dimensions = {encoder.dimension for encoder in encoders}
    if len(dimensions) > 1:
        raise ConfigError(
            f"the encoders of a Scheduler must be of one model, got dimensions {sorted(dimensions)}"
        )
