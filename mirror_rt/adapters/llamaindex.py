"""LlamaIndex: `MirrorEmbedding`, for its indexes and ingestion pipelines."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mirror_rt.adapters.lazy import LazyEncoder, TextEncoder
from mirror_rt.errors import importing

with importing("llama_index", extra="llamaindex", purpose="mirror_rt.adapters.llamaindex"):
    from llama_index.core.base.embeddings.base import BaseEmbedding
    from llama_index.core.bridge.pydantic import Field, PrivateAttr

__all__ = ["MirrorEmbedding"]


class MirrorEmbedding(BaseEmbedding):
    """LlamaIndex's `BaseEmbedding`; the first three arguments are those of `LazyEncoder`.

    Queries take the model's prompt for queries, texts the one for documents. The asynchronous
    methods run beside the event loop. `to_dict`, `from_dict` and pickle store the name and
    options of the model.

    Raises:
        MirrorError: the model cannot be loaded.
    """

    # The encoder makes batches of its own, by tokens; this is what it sees at a time.
    embed_batch_size: int = Field(default=512, gt=0, le=2048)
    model_kwargs: dict[str, Any] = Field(default_factory=dict)
    encode_kwargs: dict[str, Any] = Field(default_factory=dict)
    _lazy: LazyEncoder = PrivateAttr()

    def __init__(
        self,
        model_name: str | Path | TextEncoder,
        *,
        model_kwargs: Mapping[str, Any] | None = None,
        encode_kwargs: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> None:
        lazy = LazyEncoder(model_name, model_kwargs, encode_kwargs)
        lazy.load()  # an error now, not at the first query
        loaded_with = getattr(model_name, "load_options", lazy.model_kwargs)
        super().__init__(
            model_name=lazy.name,
            model_kwargs=loaded_with,
            encode_kwargs=lazy.encode_kwargs,
            **options,
        )
        self._lazy = lazy

    @classmethod
    def class_name(cls) -> str:
        """What LlamaIndex stores for the class."""
        return "MirrorEmbedding"

    def _get_query_embedding(self, query: str) -> list[float]:
        return self._lazy.query(query).tolist()

    def _get_text_embedding(self, text: str) -> list[float]:
        return self._get_text_embeddings([text])[0]

    def _get_text_embeddings(self, texts: list[str]) -> list[list[float]]:
        return self._lazy.documents(texts).tolist()

    async def _aget_query_embedding(self, query: str) -> list[float]:
        return (await self._lazy.aquery(query)).tolist()

    async def _aget_text_embedding(self, text: str) -> list[float]:
        return (await self._aget_text_embeddings([text]))[0]

    async def _aget_text_embeddings(self, texts: list[str]) -> list[list[float]]:
        return (await self._lazy.adocuments(texts)).tolist()
