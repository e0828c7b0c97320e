"""Adapt models to LangChain: `MirrorEmbeddings` embeds, `MirrorReranker` ranks documents."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mirror_rt.adapters.lazy import Adapter, LazyReranker
from mirror_rt.errors import importing

with importing("langchain_core", extra="langchain", purpose="mirror_rt.adapters.langchain"):
    from langchain_core.documents import BaseDocumentCompressor, Document
    from langchain_core.embeddings import Embeddings
    from pydantic import Field, PrivateAttr


class MirrorEmbeddings(Adapter, Embeddings):
    """`langchain_core.embeddings.Embeddings`; the arguments are those of `LazyEncoder`.

    Queries take the model's prompt for queries, texts its prompt for documents. The asynchronous
    methods do not block the event loop. Only the name and options of the model are pickled.
    """

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        """Embed texts with `encode_document`."""
        return self._lazy.documents(texts).tolist()

    def embed_query(self, text: str) -> list[float]:
        """Embed a query with `encode_query`."""
        return self._lazy.query(text).tolist()

    async def aembed_documents(self, texts: list[str]) -> list[list[float]]:
        """Do the same as `embed_documents` without blocking the event loop."""
        return (await self._lazy.adocuments(texts)).tolist()

    async def aembed_query(self, text: str) -> list[float]:
        """Do the same as `embed_query` without blocking the event loop."""
        return (await self._lazy.aquery(text)).tolist()


class MirrorReranker(BaseDocumentCompressor):
    """`BaseDocumentCompressor`, which keeps the documents that answer a query best.

    Of each it returns a copy, the best first, with its score in the metadata as `relevance_score`.
    `top_n` is the number of documents to keep, None for all; the other arguments are those of
    `LazyReranker`. Pickles hold the name and options of the model.

    Raises:
        MirrorError: the model cannot be loaded, or an option is unknown.
    """

    model: Any
    top_n: int | None = Field(default=3, ge=1)
    model_kwargs: dict[str, Any] = Field(default_factory=dict)
    predict_kwargs: dict[str, Any] = Field(default_factory=dict)
    _lazy: LazyReranker = PrivateAttr()

    def __init__(self, model: Any, **options: Any) -> None:
        super().__init__(model=model, **options)
        self._lazy = LazyReranker(model, self.model_kwargs, self.predict_kwargs)
        self._lazy.load()  # so that an error comes now, not at the first query

    def compress_documents(
        self, documents: Sequence[Document], query: str, callbacks: object = None
    ) -> Sequence[Document]:
        """Return the `top_n` documents with the highest scores."""
        texts = [document.page_content for document in documents]
        return _scored(documents, self._lazy.rank(query, texts, self.top_n))

    async def acompress_documents(
        self, documents: Sequence[Document], query: str, callbacks: object = None
    ) -> Sequence[Document]:
        """Do the same as `compress_documents` without blocking the event loop."""
        texts = [document.page_content for document in documents]
        return _scored(documents, await self._lazy.arank(query, texts, self.top_n))


def _scored(documents: Sequence[Document], ranking: list[dict[str, Any]]) -> list[Document]:
    copies = []
    for entry in ranking:
        document = documents[entry["corpus_id"]]
        metadata = {**document.metadata, "relevance_score": entry["score"]}
        copies.append(document.model_copy(update={"metadata": metadata}))
    return copies
