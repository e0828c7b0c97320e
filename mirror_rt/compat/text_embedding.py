"""Offer the interface of fastembed over an `Encoder`, and over a `Reranker`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Literal, cast

import numpy as np
import numpy.typing as npt

from mirror_rt.adapters.lazy import LazyEncoder, LazyReranker
from mirror_rt.compat.arguments import pairs_with_blanks
from mirror_rt.compat.fastembed_model import FastembedModel, Provider, windows_of
from mirror_rt.encoding.encoder import Encoder
from mirror_rt.keywords import refuse_unknown
from mirror_rt.pipeline.inputs import Texts
from mirror_rt.pipeline.options import EncodeKeywords
from mirror_rt.reranking.reranker import Reranker

Vector = npt.NDArray[np.float32]


class TextEmbedding(FastembedModel):
    """A bundle with the methods of `fastembed.TextEmbedding`, whose arguments it takes."""

    _kind, _lists = LazyEncoder, "encoders"

    def __init__(
        self, model_name: str = "all-MiniLM-L6-v2", cache_dir: str | None = None,
        threads: int | None = None, providers: Sequence[Provider] | None = None,
        cuda: bool | Literal["auto"] = "auto", device_ids: list[int] | None = None,
        lazy_load: bool = False, **kwargs: Any,
    ) -> None:  # fmt: skip
        super().__init__(
            model_name, cache_dir, threads, providers, cuda, device_ids, lazy_load, **kwargs
        )

    @property
    def encoder(self) -> Encoder:
        """The encoder that does the work."""
        return cast(Encoder, self._lazy.load())  # it was loaded by name

    @property
    def embedding_size(self) -> int:
        """The length D of an embedding."""
        return self.encoder.dimension

    @classmethod
    def get_embedding_size(cls, model_name: str) -> int:
        """Return the length D of an embedding of a bundle, which is loaded for it if need be."""
        return cls(model_name).embedding_size

    def embed(
        self,
        documents: Texts,
        batch_size: int = 256,
        parallel: int | None = None,
        **kwargs: Any,
    ) -> Iterator[Vector]:
        """Encode a stream of texts in constant memory, to one float32 [D] each, in order.

        Args:
            documents: one string, or any iterable of strings.
            batch_size: as in `Encoder.encode`, texts of 64 tokens.
            parallel: not needed, because one process uses all processors and cards.
            **kwargs: further options of `Encoder.encode_iter`.

        Raises:
            InvalidTextError, ConfigError: as `Encoder.encode_iter`.
        """
        refuse_unknown("embed", kwargs, {**EncodeKeywords.__annotations__, "window": int})
        windows, pipeline = windows_of(documents, kwargs), self.encoder.pipeline
        plan = pipeline.plan(batch_size=batch_size, **kwargs)
        for encoded in pipeline.encode_windows(windows, plan):
            # Yield copies, so that a vector that is kept does not keep its whole window.
            yield from (row.copy() for row in encoded.embeddings)

    def query_embed(self, query: Texts, **kwargs: Any) -> Iterator[Vector]:
        """Encode queries like `embed`, with the model's prompt for queries if it has one."""
        yield from self._with_prompt(("query",), query, kwargs)

    def passage_embed(self, texts: Iterable[str], **kwargs: Any) -> Iterator[Vector]:
        """Encode documents like `embed`, with the model's prompt for documents if it has one."""
        yield from self._with_prompt(("document", "passage"), texts, kwargs)

    def token_count(self, texts: Texts, batch_size: int = 1024, **kwargs: Any) -> int:
        """Return the number of tokens of all texts, special tokens included."""
        return sum(map(len, self.encoder.tokenize(texts)))

    def _with_prompt(
        self, names: tuple[str, ...], texts: Texts, options: dict[str, Any]
    ) -> Iterator[Vector]:
        if "prompt" not in options and (name := self.encoder.prompts.first_of(names)):
            options = {"prompt_name": name, **options}
        return self.embed(texts, **options)


class TextCrossEncoder(FastembedModel):
    """A bundle of a cross-encoder with the methods of fastembed's `TextCrossEncoder`."""

    _kind, _lists = LazyReranker, "cross-encoders"

    @property
    def reranker(self) -> Reranker:
        """The cross-encoder that does the work."""
        return cast(Reranker, self._lazy.load())

    def rerank(
        self, query: str, documents: Iterable[str], batch_size: int = 64, **kwargs: Any
    ) -> Iterator[float]:
        """Yield a score for each document, in their order, as `rerank_pairs` does."""
        pairs = ((query, document) for document in documents)
        yield from self.rerank_pairs(pairs, batch_size, **kwargs)

    def rerank_pairs(
        self, pairs: Iterable[tuple[str, str]], batch_size: int = 64,
        parallel: int | None = None, **kwargs: Any,
    ) -> Iterator[float]:  # fmt: skip
        """Yield the output of the model, a logit, for each pair of a query and a document.

        `parallel` is not needed; `**kwargs` are further options of `Reranker.predict`.

        Raises:
            InvalidTextError, ConfigError: as `Reranker.predict`.
        """
        windows, plan = pairs_with_blanks(self.reranker.pipeline, pairs, batch_size, kwargs)
        for encoded in self.reranker.pipeline.encode_windows(windows, plan):
            yield from encoded.embeddings[:, 0].tolist()
