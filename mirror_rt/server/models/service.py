"""Turn checked requests into vectors and tokens: admit them, cut large ones, schedule them."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from dataclasses import fields
from functools import partial
from typing import Any, TypeVar, cast

import numpy as np
import numpy.typing as npt

from mirror_rt.errors import DeadlineError, OverloadedError, renumbered
from mirror_rt.pipeline.options import EncodeKeywords
from mirror_rt.pipeline.pipeline import EncodedTexts, Vectors
from mirror_rt.scheduling import BatchReport, RequestTimes, Scheduler
from mirror_rt.server.admission.waiting_forecast import Pace
from mirror_rt.server.config import ServerConfig
from mirror_rt.server.models.served_models import NamedEncoder
from mirror_rt.server.monitoring.metrics import ModelMetrics
from mirror_rt.server.monitoring.recent import Recent
from mirror_rt.tokens.windows import cut_ranges

logger = logging.getLogger("mirror_rt.server")

# Texts, or lists of token ids.
Items = Sequence[str] | Sequence[list[int]]
Ids = npt.NDArray[np.int32]

# A request of more texts or more characters than a piece may have is cut into pieces. Of all
# requests together, two pieces wait for the device at a time, and two for the tokenizer: enough to
# keep it busy, while no text of others waits behind more. A running piece cannot be cancelled.
_PIECE, _PIECE_CHARACTERS, _PIECES_AT_A_TIME = 64, 1 << 18, 2
# A vector for each token is some hundred times larger than a vector for the text, and a token with
# its position and text is larger than a character.
_TOKEN_VECTORS_PIECE, _TOKENS_PIECE_CHARACTERS = 8, 1 << 14

# All tokens of a text are in memory at once, with their positions: half a kilobyte each.
_LONG_TEXT = 1 << 16

T = TypeVar("T")


class ModelService:
    """One model, and the requests that wait for it; `metrics` and `recent` learn of every run."""

    def __init__(
        self, model: NamedEncoder, config: ServerConfig, metrics: ModelMetrics, recent: Recent
    ) -> None:
        self.model = model
        self.encoder = model.encoder
        self.config = config
        self._metrics = metrics
        self._recent = recent
        self._open_texts = 0
        self._pace = Pace(model.encoder.pipeline.model.run_cost)
        self._pieces = asyncio.Semaphore(_PIECES_AT_A_TIME)
        self._tokenizing = asyncio.Semaphore(_PIECES_AT_A_TIME)
        self.scheduler = Scheduler(
            model.encoder,
            token_budget=config.token_budget,
            # More than is ever admitted: admission here refuses a request as a whole or not at all.
            max_waiting_texts=config.max_waiting_texts + _PIECE,
            max_waiting_tokens=(config.max_waiting_texts + _PIECE) * model.encoder.max_length,
            on_batch=self._on_batch,
        )

    async def encode(
        self,
        items: Items,
        timeout: float,
        options: EncodeKeywords,
        times: RequestTimes | None = None,
    ) -> EncodedTexts:
        """Encode at least one item of a request; an error of one of them fails the whole request.

        Raises:
            OverloadedError: too much is waiting.
            MirrorError: an error of `Scheduler.aencode`; it numbers texts as in `items`.
        """
        until = time.monotonic() + timeout

        async def encode(rows: list[int]) -> EncodedTexts:
            chosen = cast("Items", [items[i] for i in rows])
            left = max(until - time.monotonic(), 1e-3)
            with renumbered(rows):
                return await self.scheduler.aencode_with_info(
                    chosen, timeout=left, times=times, **options
                )

        with self._admitted(len(items), timeout):
            pieces = self._cut_by_length(items)
            if len(pieces) == 1:
                return await self.scheduler.aencode_with_info(
                    items, timeout=timeout, times=times, **options
                )
            async with _within(timeout):
                return _join(await self._each(pieces, encode), pieces, len(items))

    async def token_vectors(
        self,
        items: Items,
        timeout: float,
        options: EncodeKeywords,
        times: RequestTimes | None = None,
    ) -> AsyncIterator[list[Vectors]]:
        """Encode at least one item of a request to a vector for each token, some items at a time.

        All of them are checked before the first vectors are yielded, which happens within `timeout`
        seconds. Vectors are computed only when they are asked for, and no more once the iterator is
        closed.

        Yields:
            For some texts at a time, in their order: a float32 array [tokens, H] of each.

        Raises:
            OverloadedError, MirrorError: as in `encode`.
        """
        until = time.monotonic() + timeout
        with self._admitted(len(items), timeout):
            async with _within(timeout):
                rows = await self._tokenized(items, options)
        for start in range(0, len(rows), _TOKEN_VECTORS_PIECE):
            piece = range(start, min(start + _TOKEN_VECTORS_PIECE, len(rows)))
            left = max(until - time.monotonic(), 1e-3) if start == 0 else None
            with renumbered(piece):
                async with _within(left), self._pieces:
                    vectors = await self.scheduler.aencode_tokens(
                        [rows[i].tolist() for i in piece], times=times, **options
                    )
            yield vectors

    async def tokens(
        self, texts: Sequence[str], timeout: float, work: Callable[[Sequence[str]], T]
    ) -> AsyncIterator[T]:
        """Yield the results of work on at least one text, some texts at a time, in another thread.

        Raises:
            OverloadedError: too much is waiting.
            DeadlineError: there is no first result within `timeout` seconds.
        """
        pieces = cut_ranges([len(text) for text in texts], _PIECE, _TOKENS_PIECE_CHARACTERS)

        async def found(piece: range) -> T:
            async with self._turn(len(pieces)):
                return await self.scheduler.in_tokenizer(
                    partial(work, texts[piece.start : piece.stop])
                )

        with self._admitted(len(texts), timeout):
            async with _within(timeout):
                first = await found(pieces[0])
        yield first
        for piece in pieces[1:]:
            yield await found(piece)

    @property
    def most_characters(self) -> int:
        """Return the most characters of a text for `tokens`: more than the longest input has."""
        length = self.encoder.max_length
        return min(self.encoder.pipeline.tokenizer.clip_characters, max(_LONG_TEXT, 16 * length))

    @property
    def waiting_seconds(self) -> float:
        """Return how long the work that waits now will take, judging by past runs."""
        return self._pace.seconds(self.scheduler.waiting_tokens)

    @contextlib.contextmanager
    def _admitted(self, texts: int, timeout: float) -> Iterator[None]:
        """Count the texts of a request while it is open; OverloadedError if it is refused."""
        tokens = self.scheduler.waiting_tokens
        wait = self._pace.seconds(tokens)
        # One text of full length may always wait: else one slow run could make it refuse everybody.
        most = self.config.max_wait if tokens > self.encoder.max_length else math.inf
        if wait > min(most, timeout):
            raise OverloadedError(f"what waits takes {wait:.2g} s", retry_after=wait)
        if self._open_texts + texts > self.config.max_waiting_texts:
            raise OverloadedError(f"{self._open_texts} texts wait", retry_after=max(wait, 1.0))
        self._open_texts += texts
        try:
            yield
        finally:
            self._open_texts -= texts

    async def probe(self, timeout: float) -> None:
        """Run the model once, however much is waiting; raise the error if it fails."""
        await self.scheduler.aencode("ready", timeout=timeout)

    def warm_up(self) -> None:
        """Run the model in the shapes that requests will have, and once on a text.

        Raises:
            MirrorError: the model does not run, or gives a vector that is not finite.
        """
        began = time.monotonic()
        self.encoder.warmup(batch_size=max(1, self.config.token_budget // 64))
        self.encoder.encode("ready", show_progress_bar=False)
        logger.info("%s is warm after %.1f s", self.model.name, time.monotonic() - began)

    def close(self, timeout: float | None = None) -> None:
        """Run what is waiting, for at most `timeout` seconds, and end the threads."""
        self.scheduler.close(timeout=timeout)

    def _cut_by_length(self, items: Items) -> list[list[int]]:
        """Cut items into pieces of similar lengths; return the pieces as lists of item numbers."""
        order = sorted(range(len(items)), key=lambda i: len(items[i]))
        # No more of a text than `clip_characters` is tokenised at a time.
        sizes = [min(len(items[i]), self.encoder.pipeline.tokenizer.clip_characters) for i in order]
        return [[order[i] for i in piece] for piece in cut_ranges(sizes, _PIECE, _PIECE_CHARACTERS)]

    def _turn(self, pieces: int) -> contextlib.AbstractAsyncContextManager[object]:
        """Return the tokenizer's semaphore; a request of a single piece need not wait for it."""
        return self._tokenizing if pieces > 1 else contextlib.nullcontext()

    async def _tokenized(self, items: Sequence[Any], options: EncodeKeywords) -> list[Ids]:
        """Check and tokenise texts, or check token ids; return the token ids of each."""
        pipeline = self.encoder.pipeline
        plan = pipeline.plan_for_tokens(**options)
        clip = pipeline.tokenizer.clip_characters
        pieces = cut_ranges([min(len(item), clip) for item in items], _PIECE, _PIECE_CHARACTERS)
        found: list[Ids] = []
        for piece in pieces:
            with renumbered(piece):
                async with self._turn(len(pieces)):
                    chosen = list(items[piece.start : piece.stop])
                    work = partial(pipeline.tokenize, chosen, plan)
                    rows = await self.scheduler.in_tokenizer(work)
            found += [rows.tokens.ids[begin:end] for begin, end in rows.tokens.spans()]
        return found

    async def _each(
        self, pieces: list[list[int]], encode: Callable[[list[int]], Coroutine[Any, Any, T]]
    ) -> list[T]:
        """Encode the pieces of a large request, a few of all requests at a time."""
        tasks: list[asyncio.Task[T]] = []
        try:
            async with asyncio.TaskGroup() as group:
                for rows in pieces:
                    await self._pieces.acquire()
                    task = group.create_task(encode(rows))
                    task.add_done_callback(lambda _: self._pieces.release())
                    tasks.append(task)
        except BaseExceptionGroup as group_error:
            raise group_error.exceptions[0] from None
        return [task.result() for task in tasks]

    def _on_batch(self, report: BatchReport) -> None:
        self._metrics.observe(report)
        self._recent.add_run(report)
        self._metrics.waiting_tokens.set(self.scheduler.waiting_tokens)
        self._pace.add(report, time.monotonic())


@contextlib.asynccontextmanager
async def _within(timeout: float | None) -> AsyncIterator[None]:
    """Run a block; DeadlineError if it takes longer than `timeout` seconds."""
    try:
        async with asyncio.timeout(timeout):
            yield
    except TimeoutError as error:
        if isinstance(error, DeadlineError):
            raise
        raise DeadlineError(timeout) from None


def _join(parts: list[EncodedTexts], pieces: list[list[int]], n: int) -> EncodedTexts:
    """Join the results of the pieces, in the order of the request."""
    order = np.empty(n, dtype=np.int64)
    order[np.concatenate(pieces)] = np.arange(n)
    columns = ([getattr(part, each.name) for part in parts] for each in fields(EncodedTexts))
    return EncodedTexts(*(np.concatenate(column)[order] for column in columns))
