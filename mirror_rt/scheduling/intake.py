"""Take a scheduler's calls into its queue: they are checked, admitted and tokenised."""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar

import numpy as np

from mirror_rt.errors import ClosedError, ConfigError, InvalidTextError, ReentrantCallError
from mirror_rt.pipeline.inputs import Inputs, as_list
from mirror_rt.pipeline.options import EncodeKeywords, EncodePlan
from mirror_rt.pipeline.pipeline import Pipeline
from mirror_rt.scheduling.device_thread import DeviceThread
from mirror_rt.scheduling.queue import RequestQueue
from mirror_rt.scheduling.requests import Request, RequestTimes, Tokenizing, Work
from mirror_rt.tokens.chunking import TokenRows
from mirror_rt.tokens.padding import RaggedTokens
from mirror_rt.tokens.tokenization import Stopped
from mirror_rt.tokens.windows import cut_ranges, size_of

# Limits of a call that is tokenised in the event loop itself, within a fraction of a millisecond:
# the number of texts, and the total number of characters or token ids.
_MOST_INLINE_TEXTS, _MOST_INLINE_SIZE = 8, 1024
# Texts that are tokenised in one step, which cannot be interrupted: their encodings are all in
# memory at once, at some hundred bytes a token.
_STEP_TEXTS, _STEP_CHARACTERS = 1024, 1 << 18

T = TypeVar("T")


class ReentryGuard(threading.local):
    """Refuses a call by a signal handler that interrupted a call in the same thread.

    The interrupted code may hold a lock that the handler's call needs, or the device that serves
    it. They would wait forever, because the interrupted code goes on only after the handler.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()  # one per thread: if it is locked, this thread locked it

    def __call__(self) -> threading.Lock:
        """Return the lock that a call holds in a `with` block, which releases it even on Ctrl-C."""
        if self._lock.locked():
            raise ReentrantCallError(
                "a signal handler calls a Scheduler in the middle of another call: set a flag in "
                "the handler and encode outside of it, or use loop.add_signal_handler"
            )
        return self._lock


class Intake:
    """Takes calls, from threads or asyncio tasks, into the queue of one scheduler."""

    def __init__(
        self, pipeline: Pipeline, queue: RequestQueue, device: DeviceThread,
        alone: Callable[[], bool],
    ) -> None:  # fmt: skip
        self._pipeline, self.queue, self._device = pipeline, queue, device
        self._looks_up = pipeline.model.looks_up
        self._alone = alone  # whether no other model has something to run
        # The second thread is for work of several steps. So large requests are tokenised one
        # after the other, and small ones wait for none of them.
        self._short, self._long = (
            ThreadPoolExecutor(1, thread_name_prefix=f"mirror_rt-tokenizer-{kind}")
            for kind in ("short", "long")
        )
        self.process = os.getpid()
        self.guard = ReentryGuard()

    def request(
        self, inputs: Inputs, timeout: float | None, options: EncodeKeywords,
        times: RequestTimes | None, *, of_tokens: bool = False, runs: bool = True,
    ) -> Request:  # fmt: skip
        """Check the arguments of a call; with `runs` false its texts are only tokenised."""
        if timeout is not None and not 0 < timeout < math.inf:
            raise ConfigError(field="timeout", expected="above 0 seconds, or None", value=timeout)
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
        finish = self._pipeline.finish
        request = Request(as_list(inputs), plan, finish, timeout, times, of_tokens, runs)
        queue = self.queue  # a waiting call must not keep the scheduler alive
        request.future.add_done_callback(
            lambda future: queue.cancel(request) if future.cancelled() else None
        )
        return request

    def begin(
        self, inputs: Inputs, timeout: float | None, options: EncodeKeywords,
        times: RequestTimes | None, *, of_tokens: bool = False, exempt: bool = False,
        here: bool = False, prepare: Callable[[list[Any]], list[Any]] | None = None,
        awaited: bool = False,
    ) -> Request:  # fmt: skip
        """Check a call, and queue its texts: at once if they are short, else once tokenised.

        With `here`, texts of any length are tokenised in this thread. With `exempt`, the call is
        admitted however much waits. `prepare` changes some texts at a time in the thread that
        tokenises them. Texts that are tokenised in this thread are looked up here, too, and run
        here where the call is `awaited` and nothing else would share their run: to wake the
        device's thread, and be woken by it, takes longer than a moment's run. The caller holds the
        guard.
        """
        request = self.request(inputs, timeout, options, times, of_tokens=of_tokens)
        request.exempt, request.prepare = exempt, prepare
        # The cache is a file, for which no event loop waits.
        asks_cache = self._pipeline.cache is not None and not exempt
        short = _is_short(request.texts) and prepare is None
        if here or (short and not asks_cache):
            rows = (
                self._pipeline.tokenize(request.texts, request.plan)
                if short and request.texts
                else _tokenize(self._pipeline, request)
            )
            runs_here = self._looks_up or (awaited and short and self._runs_at_once(rows))
            self._put(request, rows, wake=not runs_here)
            if runs_here:
                self._device.run_next()
        else:
            self.admit(request, "tokenize" if prepare is None else "shorten")
            self.tokenize_aside(request, self._put)
        return request

    def _runs_at_once(self, rows: TokenRows) -> bool:
        """Return whether rows run in the caller's thread: on a card, which overlaps runs, none."""
        overlaps = self._pipeline.model.parallel_runs > 1
        return not overlaps and self.queue.runs_at_once(len(rows.tokens.ids)) and self._alone()

    def admit(self, request: Request, work: Work) -> None:
        """Admit a request whose texts go to a tokenising thread, or refuse it."""
        texts, longest = request.texts, _longest(self._pipeline, request.plan)
        if texts and isinstance(texts[0], list) and work == "tokenize":
            work = "check"
        size = int(sum(min(longest, size_of(text)) for text in texts))
        request.tokenizing = Tokenizing(work, size, _is_long(texts))
        estimate = self.queue.admission.estimate
        self.queue.admit(request, estimate.tokens(request) if request.runs else 0)

    def _put(self, request: Request, rows: TokenRows, *, wake: bool = True) -> None:
        """Queue the rows of a request, with the vectors that the cache has.

        An exempt request asks whether the model runs.
        """
        cache = self._pipeline.cache
        if cache is None or request.of_tokens or request.exempt:
            self.queue.put(request, rows, wake=wake)
        else:
            self.queue.put(request, rows, cache.find(rows.tokens.keys()))

    def tokenize_aside(
        self, request: Request, then: Callable[[Request, TokenRows], object]
    ) -> None:
        """Tokenise the texts of an admitted request in another thread, and go on there."""
        # The work must not hold the texts: the request may be over before it begins.
        pipeline, queue = self._pipeline, self.queue
        request.stop = threading.Event()

        def work() -> None:
            try:
                if not request.over:
                    then(request, _tokenize(pipeline, request, partial(queue.tokenized, request)))
            except BaseException as error:  # noqa: BLE001 - the caller gets it, whatever it is
                if queue.end(request):
                    request.fail(error)

        try:
            self._submit(request, work)
        except ClosedError:
            queue.end(request)
            raise

    async def encode(
        self, inputs: Inputs, timeout: float | None, options: EncodeKeywords,
        times: RequestTimes | None, **how: Any,
    ) -> Any:  # fmt: skip
        """Take in a call as `begin` does, and await its result."""
        with self.guard():
            request = self.begin(inputs, timeout, options, times, awaited=True, **how)
        return await self.result(request)

    async def result(self, request: Request) -> Any:
        """Await the result of a request, which fails when its time is over."""
        import asyncio  # imported here: a synchronous program saves 30 ms

        if request.future.done():
            return request.future.result()
        timer = None
        if (left := request.time_left) is not None:
            timer = asyncio.get_running_loop().call_later(left, self.queue.expire, request)
        try:
            return await asyncio.wrap_future(request.future)
        finally:
            if timer is not None:
                timer.cancel()

    async def in_tokenizer(self, request: Request, work: Callable[[], T], size: int) -> T:
        """Do a part of an admitted request's work, of `size` characters, in a tokenising thread."""
        import asyncio

        queue = self.queue

        def counted() -> T:
            began = time.monotonic()
            try:
                return work()
            finally:
                queue.tokenized(request, size, time.monotonic() - began)

        return await asyncio.wrap_future(self._submit(request, counted))

    def _submit(self, request: Request, work: Callable[[], T]) -> Future[T]:
        """Let the thread of a request do some work; ClosedError if it was shut down."""
        try:
            return (self._long if request.tokenizing.long else self._short).submit(work)
        except RuntimeError:
            raise ClosedError("this Scheduler is closed: make another") from None

    def close(self) -> None:
        """Let the tokenising threads end after the work that is queued there."""
        self._short.shutdown(wait=False)
        self._long.shutdown(wait=False)


def _is_short(texts: list[Any]) -> bool:
    """Return whether tokenising texts takes less time than handing them to another thread."""
    return len(texts) <= _MOST_INLINE_TEXTS and sum(map(size_of, texts)) <= _MOST_INLINE_SIZE


def _is_long(texts: list[Any]) -> bool:
    """Return whether texts take more than one step."""
    return len(texts) > _STEP_TEXTS or sum(map(size_of, texts)) > _STEP_CHARACTERS


def _longest(pipeline: Pipeline, plan: EncodePlan) -> float:
    """Return how much of a text is tokenised at most."""
    return math.inf if plan.on_too_long == "chunk" else pipeline.tokenizer.clip_characters


def _tokenize(
    pipeline: Pipeline, request: Request, count: Callable[[int, float], object] | None = None
) -> TokenRows:
    """Check and tokenise texts, or check token ids, step by step; raise Stopped if it is over.

    An InvalidTextError names all texts that cannot be encoded. `count` gets the size of each step,
    and the seconds that it took.
    """
    texts, plan, stop, prepare = request.texts, request.plan, request.stop, request.prepare
    clip, longest = pipeline.tokenizer.clip_characters, _longest(pipeline, plan)
    sizes = [size_of(text) for text in texts]
    parts, invalid = [], []
    for step in cut_ranges([min(n, clip) for n in sizes], _STEP_TEXTS, _STEP_CHARACTERS):
        if stop is not None and stop.is_set():
            raise Stopped
        began, some = time.monotonic(), texts[step.start : step.stop]
        try:
            parts.append(pipeline.tokenize(prepare(some) if prepare else some, plan, stop))
        except InvalidTextError as error:
            invalid += [(step.start + i, reason) for i, reason in error.items]
        if count is not None:
            size = sum(min(longest, n) for n in sizes[step.start : step.stop])
            count(int(size), time.monotonic() - began)
    if invalid:
        raise InvalidTextError(invalid)
    return parts[0] if len(parts) == 1 else _joined(parts)


def _joined(parts: list[TokenRows]) -> TokenRows:
    """Join the rows of consecutive texts."""
    starts = np.cumsum([0, *(len(part.truncated) for part in parts)]).tolist()
    numbered = list(zip(starts, parts, strict=False))
    text = weights = None
    if any(part.text is not None for part in parts):
        text = np.concatenate([start + part.text_of_rows() for start, part in numbered])
    if any(part.weights is not None for part in parts):
        ones = [np.ones(len(part.tokens), np.float32) for part in parts]
        weights = np.concatenate([
            one if part.weights is None else part.weights
            for one, part in zip(ones, parts, strict=True)
        ])  # fmt: skip
    return TokenRows(
        0,
        RaggedTokens.from_arrays(
            [part.tokens.ids[begin:end] for part in parts for begin, end in part.tokens.spans()]
        ),
        np.concatenate([part.truncated for part in parts]),
        [(start + i, why) for start, part in numbered for i, why in part.invalid],
        text,
        weights,
    )
