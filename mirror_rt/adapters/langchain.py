"""Adapt encoders to LangChain: `MirrorEmbeddings` embeds for vector stores and retrievers."""

from __future__ import annotations

from mirror_rt.adapters.lazy import Adapter
from mirror_rt.errors import importing

with importing("langchain_core", extra="langchain", purpose="mirror_rt.adapters.langchain"):
    from langchain_core.embeddings import Embeddings


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
