"""Adapt models to LlamaIndex: `MirrorEmbedding` embeds, and `MirrorRerank` ranks the nodes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mirror_rt.adapters.lazy import LazyEncoder, LazyReranker, TextEncoder
from mirror_rt.errors import ConfigError, importing
from mirror_rt.reranking.reranker import Reranker

with importing("llama_index", extra="llamaindex", purpose="mirror_rt.adapters.llamaindex"):
    from llama_index.core.base.embeddings.base import BaseEmbedding
    from llama_index.core.bridge.pydantic import Field, PrivateAttr
    from llama_index.core.postprocessor.types import BaseNodePostprocessor
    from llama_index.core.schema import MetadataMode, NodeWithScore, QueryBundle


class MirrorEmbedding(BaseEmbedding):
    """LlamaIndex's `BaseEmbedding`; the first three arguments are those of `LazyEncoder`.

    Queries take the model's prompt for queries, and texts its prompt for documents. The
    asynchronous methods do not block the event loop. `to_dict`, `from_dict` and pickle store the
    name and options of the model.

    Raises:
        MirrorError: the model cannot be loaded.
    """

    # Number of texts that the encoder gets at a time; it makes its own batches of them, by tokens.
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
        lazy.load()  # so that an error comes now, not at the first query
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
        """Return the name under which LlamaIndex stores the class."""
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


class MirrorRerank(BaseNodePostprocessor):
    """A node postprocessor, which keeps the `top_n` nodes that answer a query best.

    It returns them with their scores, the best first. The first three arguments are those of
    `LazyReranker`. `to_dict`, `from_dict` and pickle store the name and options of the model.

    Raises:
        MirrorError: the model cannot be loaded, or an option is unknown.
    """

    model: str
    top_n: int = Field(default=2, gt=0)
    model_kwargs: dict[str, Any] = Field(default_factory=dict)
    predict_kwargs: dict[str, Any] = Field(default_factory=dict)
    _lazy: LazyReranker = PrivateAttr()

    def __init__(
        self,
        model: str | Path | Reranker,
        *,
        model_kwargs: Mapping[str, Any] | None = None,
        predict_kwargs: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> None:
        lazy = LazyReranker(model, model_kwargs, predict_kwargs)
        lazy.load()  # so that an error comes now, not at the first query
        super().__init__(**lazy.config(), **options)
        self._lazy = lazy

    @classmethod
    def class_name(cls) -> str:
        """Return the name under which LlamaIndex stores the class."""
        return "MirrorRerank"

    def _postprocess_nodes(
        self, nodes: list[NodeWithScore], query_bundle: QueryBundle | None = None
    ) -> list[NodeWithScore]:
        return _scored(nodes, self._lazy.rank(*_texts(nodes, query_bundle), self.top_n))

    async def _apostprocess_nodes(
        self, nodes: list[NodeWithScore], query_bundle: QueryBundle | None = None
    ) -> list[NodeWithScore]:
        return _scored(nodes, await self._lazy.arank(*_texts(nodes, query_bundle), self.top_n))


def _texts(nodes: list[NodeWithScore], query: QueryBundle | None) -> tuple[str, list[str]]:
    if query is None:
        raise ConfigError("give the query by which the nodes are ranked, as query_bundle")
    texts = [node.node.get_content(metadata_mode=MetadataMode.EMBED) for node in nodes]
    return query.query_str, texts


def _scored(nodes: list[NodeWithScore], ranking: list[dict[str, Any]]) -> list[NodeWithScore]:
    return [
        NodeWithScore(node=nodes[entry["corpus_id"]].node, score=entry["score"])
        for entry in ranking
    ]
