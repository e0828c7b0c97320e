"""From checked requests to vectors: admission, the scheduler of each model, large requests."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import cast

import numpy as np

from mirror_rt.encoding.options import EncodeKeywords
from mirror_rt.encoding.pipeline import EncodedTexts
from mirror_rt.errors import InvalidTextError, NonFiniteError, OverloadedError
from mirror_rt.scheduling import BatchReport, RequestTimes, Scheduler
from mirror_rt.server.admission.waiting_forecast import Pace
from mirror_rt.server.config import ServerConfig
from mirror_rt.server.models.served_models import NamedEncoder
from mirror_rt.server.monitoring.metrics import ModelMetrics
from mirror_rt.server.monitoring.recent import Recent

__all__ = ["Items", "ModelService"]

logger = logging.getLogger("mirror_rt.server")

# Texts, or token ids of texts.
Items = Sequence[str] | Sequence[list[int]]

# A request of more texts is cut into pieces of so many, of which two wait for the device at a
# time, whoever sent them: enough to keep it busy, and no text of others waits behind more.
_PIECE, _PIECES_AT_A_TIME = 64, 2


class ModelService:
    """One model and what waits for it.

    Args:
        model: what is served.
        config: its limits.
        metrics, recent: told of every run.
    """

    def __init__(
        self, model: NamedEncoder, config: ServerConfig, metrics: ModelMetrics, recent: Recent
    ) -> None:
        self.model = model
        self.encoder = model.encoder
        self._config = config
        self._metrics = metrics
        self._recent = recent
        self._open_texts = 0
        self._pace = Pace(model.encoder.pipeline.model.run_cost)
        self._pieces = asyncio.Semaphore(_PIECES_AT_A_TIME)
        # For what the scheduler does not do: token vectors, and tokens alone.
        self.aside = ThreadPoolExecutor(1, thread_name_prefix="mirror_rt-aside")
        self.scheduler = Scheduler(
            model.encoder,
            token_budget=config.token_budget,
            # More than is ever admitted here, where a request is refused whole or not at all.
            max_waiting_texts=config.max_waiting_texts + 16,
            max_waiting_tokens=(config.max_waiting_texts + 16) * model.encoder.max_length,
            on_batch=self._on_batch,
        )

    async def encode(
        self,
        items: Items,
        timeout: float,
        options: EncodeKeywords,
        times: RequestTimes | None = None,
    ) -> EncodedTexts:
        """Encode the texts of one request: all, or an error.

        Args:
            items: at least one.
            timeout: seconds from now.
            options: of `Encoder.encode`.
            times: where to note when they run.

        Raises:
            OverloadedError: too much waits.
            MirrorError: of `Scheduler.aencode`; numbers of texts are those in `items`.
        """
        self.admit(len(items), timeout)
        try:
            if len(items) <= _PIECE:
                return await self.scheduler.aencode_with_info(
                    items, timeout=timeout, times=times, **options
                )
            return await self._encode_pieces(items, timeout, options, times)
        finally:
            self.release(len(items))

    @property
    def waiting_seconds(self) -> float:
        """How long what waits now will take, by the runs so far."""
        return self._pace.seconds(self.scheduler.waiting_tokens)

    def admit(self, texts: int, timeout: float) -> None:
        """Count texts of a request that is accepted; OverloadedError where it is not."""
        tokens = self.scheduler.waiting_tokens
        wait = self._pace.seconds(tokens)
        # One text of full length may always wait: a machine that stalled once refuses nobody.
        most = self._config.max_wait if tokens > self.encoder.max_length else math.inf
        if wait > min(most, timeout):
            raise OverloadedError(f"what waits takes {wait:.2g} s", retry_after=wait)
        if self._open_texts + texts > self._config.max_waiting_texts:
            raise OverloadedError(f"{self._open_texts} texts wait", retry_after=max(wait, 1.0))
        self._open_texts += texts

    def release(self, texts: int) -> None:
        """Forget texts of a request that is answered."""
        self._open_texts -= texts

    async def probe(self, timeout: float) -> None:
        """Run the model once, whatever waits; raises what goes wrong."""
        await self.scheduler.aencode("ready", timeout=timeout)

    def warm_up(self) -> None:
        """Run the model in the shapes that are to come, and once on a text.

        Raises:
            MirrorError: it does not run, or gives no finite vector.
        """
        began = time.monotonic()
        self.encoder.warmup(batch_size=max(1, self._config.token_budget // 64))
        self.encoder.encode("ready", show_progress_bar=False)
        logger.info("%s is warm after %.1f s", self.model.name, time.monotonic() - began)

    def close(self, timeout: float | None = None) -> None:
        """Run what waits, for at most `timeout` seconds, and end the threads."""
        self.scheduler.close(timeout=timeout)
        self.aside.shutdown(cancel_futures=True)

    async def _encode_pieces(
        self, items: Items, timeout: float, options: EncodeKeywords, times: RequestTimes | None
    ) -> EncodedTexts:
        """Encode a large request in pieces of texts of similar length."""
        until = time.monotonic() + timeout
        order = sorted(range(len(items)), key=lambda i: len(items[i]))
        pieces = [order[i : i + _PIECE] for i in range(0, len(order), _PIECE)]
        tasks: list[asyncio.Task[EncodedTexts]] = []
        try:
            async with asyncio.TaskGroup() as group:
                for rows in pieces:
                    await self._pieces.acquire()
                    left = max(until - time.monotonic(), 1e-3)
                    task = group.create_task(self._piece(items, rows, left, options, times))
                    task.add_done_callback(lambda _: self._pieces.release())
                    tasks.append(task)
        except BaseExceptionGroup as group_error:
            raise group_error.exceptions[0] from None
        return _join([task.result() for task in tasks], pieces, len(items))

    async def _piece(
        self,
        items: Items,
        rows: list[int],
        timeout: float,
        options: EncodeKeywords,
        times: RequestTimes | None,
    ) -> EncodedTexts:
        chosen = cast("Items", [items[i] for i in rows])
        try:
            return await self.scheduler.aencode_with_info(
                chosen, timeout=timeout, times=times, **options
            )
        except NonFiniteError as error:
            raise NonFiniteError(rows[i] for i, _ in error.items) from None
        except InvalidTextError as error:
            raise InvalidTextError(sorted((rows[i], why) for i, why in error.items)) from None

    def _on_batch(self, report: BatchReport) -> None:
        self._metrics.observe(report)
        self._recent.add_run(report)
        self._metrics.waiting_tokens.set(self.scheduler.waiting_tokens)
        self._pace.add(report, time.monotonic())


def _join(parts: list[EncodedTexts], pieces: list[list[int]], n: int) -> EncodedTexts:
    """Put pieces back into the order of the request."""
    order = np.empty(n, dtype=np.int64)
    order[np.concatenate(pieces)] = np.arange(n)
    return EncodedTexts(
        np.concatenate([part.embeddings for part in parts])[order],
        np.concatenate([part.token_counts for part in parts])[order],
        np.concatenate([part.chunks for part in parts])[order],
        np.concatenate([part.truncated for part in parts])[order],
    )
