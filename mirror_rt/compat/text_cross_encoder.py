"""Offer the interface of `fastembed.rerank.cross_encoder.TextCrossEncoder` over a `Reranker`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Literal

from mirror_rt.adapters.lazy_reranker import LazyReranker
from mirror_rt.compat.arguments import pairs_with_blanks
from mirror_rt.compat.text_embedding import Provider, TextModel
from mirror_rt.reranking.reranker import Reranker


class TextCrossEncoder(TextModel):
    """A cross-encoder's bundle with the methods of fastembed's `TextCrossEncoder`.

    Scores are logits, as in the original; of a model with several labels the first.

    The arguments are those of `TextEmbedding`, with the folder or name of a cross-encoder's bundle.

    Raises:
        ConfigError: an argument cannot be followed; the error says what to do instead.
        BundleError: there is no such bundle (see `Reranker.load`).
    """

    def __init__(
        self, model_name: str, cache_dir: str | None = None, threads: int | None = None,
        providers: Sequence[Provider] | None = None, cuda: bool | Literal["auto"] = "auto",
        device_ids: list[int] | None = None, lazy_load: bool = False, **kwargs: Any,
    ) -> None:  # fmt: skip
        self._lazy = LazyReranker(*self._options(locals()))
        if not lazy_load:
            self._lazy.load()

    @property
    def reranker(self) -> Reranker:
        """The reranker that does the work."""
        return self._lazy.load()

    @classmethod
    def list_supported_models(cls) -> list[dict[str, Any]]:
        """List the models that load by their name alone: none, every bundle loads by its folder."""
        return []

    def rerank(
        self, query: str, documents: Iterable[str], batch_size: int = 64, **kwargs: Any
    ) -> Iterator[float]:
        """Score a stream of documents with a query, in order; as `rerank_pairs`."""
        pairs = ((query, document) for document in documents)
        yield from self.rerank_pairs(pairs, batch_size, **kwargs)

    def rerank_pairs(
        self,
        pairs: Iterable[tuple[str, str]],
        batch_size: int = 64,
        parallel: int | None = None,
        **kwargs: Any,
    ) -> Iterator[float]:
        """Score a stream of pairs in constant memory, in order.

        `parallel` is not needed. `**kwargs` are options of `Reranker.predict`.

        Raises:
            InvalidTextError, ConfigError: as `Reranker.predict`.
        """
        pipeline = self.reranker.pipeline
        windows, plan = pairs_with_blanks(pipeline, pairs, batch_size, kwargs)
        for encoded in pipeline.encode_windows(windows, plan):
            yield from encoded.embeddings[:, 0].tolist()

    def token_count(
        self, pairs: Iterable[tuple[str, str]], batch_size: int = 1024, **kwargs: Any
    ) -> int:
        """Return the number of tokens of all pairs, special tokens included."""
        pipeline = self.reranker.pipeline
        windows, plan = pairs_with_blanks(pipeline, pairs, batch_size, kwargs)
        return sum(len(pipeline.tokenize(window, plan).tokens.ids) for window in windows)
