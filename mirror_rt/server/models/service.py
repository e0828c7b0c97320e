"""Serve one model: its scheduler, and answers that are computed while they are sent."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar, Unpack, cast

from mirror_rt.encoding.encoder import Encoder
from mirror_rt.errors import renumbered
from mirror_rt.pipeline.options import EncodeKeywords
from mirror_rt.pipeline.pipeline import EncodedTexts, Vectors
from mirror_rt.reranking.reranker import Reranker
from mirror_rt.scheduling import BatchReport, RequestTimes, Scheduler, Turns
from mirror_rt.scheduling.requests import Request, Work
from mirror_rt.server.config import ServerConfig
from mirror_rt.server.models.served_models import Loaded, NamedEncoder
from mirror_rt.server.monitoring.metrics import ModelMetrics
from mirror_rt.server.monitoring.recent import Recent
from mirror_rt.tokens.pairs import Pair
from mirror_rt.tokens.windows import cut_ranges, size_of, text_windows

logger = logging.getLogger("mirror_rt.server")

# Texts, or lists of token ids.
Items = Sequence[str] | Sequence[list[int]]

# Texts that run, or are tokenised, at a time for an answer that is computed while it is sent. A
# vector for each token is some hundred times larger than a vector for the text, and a token with
# its position and text is larger than a character.
_TOKEN_VECTORS_PIECE, _TOKENS_PIECE, _TOKENS_PIECE_CHARACTERS = 8, 64, 1 << 14

# All tokens of a text are in memory at once, with their positions: half a kilobyte each.
_LONG_TEXT = 1 << 16

# Texts from which the server learns how fast the model is: about half of a full run.
_USUAL_TEXTS = ["a text of as many words as the usual sentence has in most languages"] * 64

# Numbers of the vectors of a run, and of a request; those of sparse encoders have one a word.
_MOST_NUMBERS = 1 << 26

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """The facts that are shown of a model, also after it has left the memory."""

    provider: str
    provider_reason: str
    precision: str
    dimension: int
    matryoshka: list[int]  # numbers of first dimensions that were trained to stand alone
    max_length: int
    pooling: str
    space: str | None
    prompts: list[str]
    labels: tuple[str, ...]  # of the scores; none if it gives vectors

    @classmethod
    def of(cls, loaded: Loaded) -> ModelFacts:
        """Return the facts of a loaded model."""
        manifest = loaded.manifest
        provider = loaded.providers[0].removesuffix("ExecutionProvider")
        return cls(
            provider, loaded.provider_reason, loaded.variant.precision,
            loaded.pipeline.model.dimension, manifest.matryoshka, loaded.max_length,
            "splade" if manifest.words else manifest.pooling, manifest.space,
            [] if isinstance(loaded, Reranker) else list(loaded.prompts.by_name),
            loaded.labels if isinstance(loaded, Reranker) else (),
        )  # fmt: skip


class ModelService:
    """One loaded model, and the requests that wait for it.

    `metrics` and `recent` learn of every run, and `turns` says when it may run.
    """

    def __init__(
        self, model: NamedEncoder, config: ServerConfig, metrics: ModelMetrics, recent: Recent,
        turns: Turns,
    ) -> None:  # fmt: skip
        self.model = model
        self.loaded = model.open()
        self.facts = ModelFacts.of(self.loaded)
        self.warm = False
        self.config = config
        self._metrics = metrics
        self._recent = recent
        if (cache := self.encoder.pipeline.cache) is not None:
            cache.on_find = metrics.count_cached
        self.scheduler = Scheduler(
            self.loaded,
            token_budget=min(config.token_budget, self.most_texts),
            max_waiting_texts=config.max_waiting_texts,
            max_waiting_tokens=sys.maxsize,  # `max_wait` limits them
            max_wait=config.max_wait,
            on_batch=self._on_batch,
            turns=turns,
        )
        metrics.loaded.inc()

    @property
    def encoder(self) -> Encoder:
        """Return the encoder of a model that gives vectors."""
        return cast(Encoder, self.loaded)

    async def encode(
        self, items: Sequence[Any], timeout: float, times: RequestTimes | None,
        prepare: Callable[[list[Any]], list[Any]] | None = None, **options: Unpack[EncodeKeywords],
    ) -> EncodedTexts:  # fmt: skip
        """Encode the items of a request, which `prepare` changes where they are tokenised."""
        encoded: EncodedTexts = await self.scheduler.intake.encode(
            items, timeout, options, times, prepare=prepare
        )
        return encoded

    async def token_vectors(
        self, items: Items, timeout: float, options: EncodeKeywords, times: RequestTimes | None
    ) -> AsyncIterator[list[Vectors]]:
        """Encode the items of a request to a vector for each token, some items at a time.

        All of them are checked before the first vectors are yielded, which happens within `timeout`
        seconds. Vectors are computed only when they are asked for, and no more once the iterator is
        closed. Between two pieces the rest is no work that waits.

        Yields:
            For some texts at a time, in their order: a float32 array [tokens, H] of each.
        """
        intake = self.scheduler.intake
        with self._admitted(items, timeout, options, "tokenize") as whole:
            intake.tokenize_aside(whole, lambda request, rows: request.future.set_result(rows))
            rows = (await intake.result(whole)).tokens
            ids = [rows.ids[begin:end].tolist() for begin, end in rows.spans()]
            for piece in cut_ranges([0] * len(ids), _TOKEN_VECTORS_PIECE, 0):
                left = whole.time_left if piece.start == 0 else None
                chosen = [ids[i] for i in piece]
                intake.queue.give_back(whole, len(chosen), sum(map(len, chosen)))
                with renumbered(piece):
                    vectors = await intake.encode(
                        chosen, left, options, times, of_tokens=True, exempt=True
                    )
                with intake.queue.uncounted(whole):
                    yield vectors

    async def tokens(
        self, texts: Items, timeout: float, work: Callable[[Any], T], kind: Work
    ) -> AsyncIterator[T]:
        """Yield the results of work on at least one item, some items at a time, in another thread.

        The first result comes within `timeout` seconds, or TimeoutError is raised. Between two
        pieces the rest is no work that waits.
        """
        sizes, intake = [len(text) for text in texts], self.scheduler.intake
        with self._admitted(texts, timeout, {}, kind) as whole:
            whole.texts = []
            for piece in cut_ranges(sizes, _TOKENS_PIECE, _TOKENS_PIECE_CHARACTERS):
                size = sum(sizes[piece.start : piece.stop])
                async with asyncio.timeout(timeout if piece.start == 0 else None):
                    found = await intake.in_tokenizer(
                        whole, partial(work, texts[piece.start : piece.stop]), size
                    )
                with intake.queue.uncounted(whole):
                    yield found

    @property
    def most_texts(self) -> int:
        """Return the most texts whose vectors may be in memory at a time: 256 MB of them."""
        return max(1, _MOST_NUMBERS // self.facts.dimension)

    @property
    def most_characters(self) -> int:
        """Return the most characters of a text for `tokens`: more than the longest input has."""
        length = self.facts.max_length
        return min(self.encoder.pipeline.tokenizer.clip_characters, max(_LONG_TEXT, 16 * length))

    async def probe(self, timeout: float) -> None:
        """Run the model once, however much is waiting; raise the error if it fails."""
        ready = self._items(["ready"])
        await self.scheduler.intake.encode(ready, timeout, {}, None, exempt=True)

    def warm_up(self) -> None:
        """Run the model in the shapes that requests will have, and see how long usual texts take.

        A MirrorError says that the model does not run, or gives a vector that is not finite.
        """
        began = time.monotonic()
        self.loaded.warmup(batch_size=max(1, self.config.token_budget // 64))
        pipeline = self.loaded.pipeline
        pipeline.encode(text_windows(self._items(["ready"]), invalid={}), pipeline.plan())
        texts, usual = self._items(_USUAL_TEXTS), time.monotonic()
        rows = pipeline.tokenize(texts, pipeline.plan()).tokens
        tokenized = time.monotonic()
        pipeline.run(pipeline.pad(rows))  # all of them, though they are equal
        tokens = rows.lengths.tolist()
        seconds = time.monotonic() - tokenized
        self.scheduler.intake.queue.learn(
            BatchReport(tokens, sum(tokens), [], seconds, failed=False), time.monotonic(),
            (sum(map(size_of, texts)), tokenized - usual),
        )  # fmt: skip
        self.warm = True
        logger.info("%s is warm after %.1f s", self.model.name, time.monotonic() - began)

    def close(self) -> None:
        """Run the waiting texts, within the server's timeout, end the threads, free the model."""
        self.scheduler.close(timeout=self.config.timeout)
        self.loaded.close()
        self._metrics.loaded.dec()
        self._metrics.waiting_tokens.set(0)

    def _items(self, texts: list[str]) -> list[Any]:
        """Return texts as the model takes them."""
        return [Pair(text, text) for text in texts] if self.model.gives == "scores" else texts

    @contextlib.contextmanager
    def _admitted(
        self, items: Items, timeout: float, options: EncodeKeywords, work: Work
    ) -> Iterator[Request]:
        """Admit a request as a whole, whose parts a block tokenises, and may run, one by one."""
        intake, runs = self.scheduler.intake, work == "tokenize"
        with intake.guard():
            whole = intake.request(items, timeout, options, None, of_tokens=runs, runs=runs)
            intake.admit(whole, work)
        try:
            yield whole
        finally:
            intake.queue.end(whole)

    def _on_batch(self, report: BatchReport) -> None:
        self._metrics.observe(report)
        self._recent.add_run(report)
        self._metrics.waiting_tokens.set(self.scheduler.waiting_tokens)
