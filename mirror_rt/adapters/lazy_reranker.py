"""Hold what every adapter of a cross-encoder needs, as `lazy` does for encoders."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mirror_rt.adapters.lazy_model import LazyModel
from mirror_rt.reranking.options import PredictKeywords
from mirror_rt.reranking.reranker import Reranker


class LazyReranker(LazyModel[Reranker]):
    """A cross-encoder that is loaded on first use, with fixed options for its calls.

    Args:
        model: path or hub name of a cross-encoder's bundle, or a `Reranker`.
        model_kwargs: options of `Reranker.load` (`revision`, `variant`, `threads` ...).
        predict_kwargs: options of `Reranker.predict` (`activation`, `truncation` ...).

    Raises:
        ConfigError: `model` is none of these, or an option is unknown.
    """

    _kind = Reranker
    _method = "rank"
    _calls = "predict_kwargs"
    _keywords = PredictKeywords

    def __init__(
        self,
        model: str | Path | Reranker,
        model_kwargs: Mapping[str, Any] | None = None,
        predict_kwargs: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(model, model_kwargs, predict_kwargs)

    def rank(self, query: str, documents: list[str], top_k: int | None) -> list[dict[str, Any]]:
        """Rank documents by a query, and return the `top_k` best (None for all)."""
        return self.load().rank(query, documents, top_k=top_k, **self._call_kwargs)

    async def arank(
        self, query: str, documents: list[str], top_k: int | None
    ) -> list[dict[str, Any]]:
        """Call `rank` without blocking the event loop."""
        reranker = await self.aload()
        return await reranker.arank(query, documents, top_k=top_k, **self._call_kwargs)
