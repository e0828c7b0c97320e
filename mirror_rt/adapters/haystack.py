"""Adapt models to Haystack: components that embed a query and documents, and rank documents."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

from mirror_rt.adapters.lazy import Adapter, LazyEncoder, TextEncoder
from mirror_rt.adapters.lazy_reranker import LazyReranker
from mirror_rt.errors import importing
from mirror_rt.reranking.reranker import Reranker

with importing("haystack", extra="haystack", purpose="mirror_rt.adapters.haystack"):
    from haystack import Document, component, default_from_dict, default_to_dict


class _Component:
    _lazy: LazyEncoder | LazyReranker

    def warm_up(self) -> None:
        """Load the model now rather than in the first run."""
        self._lazy.load()

    def to_dict(self) -> dict[str, Any]:
        """Return the component as Haystack stores it.

        Raises:
            ConfigError: the component was made of an encoder that has no folder.
        """
        return default_to_dict(self, **self._lazy.config())

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Self:
        """Make the component again from the result of `to_dict`."""
        return default_from_dict(cls, data)


class _Embedder(_Component, Adapter):
    _lazy: LazyEncoder
    _loads_at_once = False  # `warm_up` does


@component
class MirrorTextEmbedder(_Embedder):
    """A component that embeds a query; the arguments are those of `LazyEncoder`.

    A pipeline stores the name and options of the model. Haystack loads the pipeline only if it is
    told to trust this module: `Pipeline.loads(text, allowed_modules=["mirror_rt"])`.
    """

    @component.output_types(embedding=list[float])
    def run(self, text: str) -> dict[str, Any]:
        """Embed a query with `encode_query`; return `{"embedding": [...]}`."""
        return {"embedding": self._lazy.query(text).tolist()}

    @component.output_types(embedding=list[float])
    async def run_async(self, text: str) -> dict[str, Any]:
        """Do the same as `run` without blocking the event loop."""
        return {"embedding": (await self._lazy.aquery(text)).tolist()}


@component
class MirrorDocumentEmbedder(_Embedder):
    """A component that embeds documents; the first three arguments are those of `LazyEncoder`.

    `meta_fields_to_embed` names metadata fields that are put before a document's content, with
    `embedding_separator` between them.
    """

    def __init__(
        self,
        model: str | Path | TextEncoder,
        *,
        model_kwargs: Mapping[str, Any] | None = None,
        encode_kwargs: Mapping[str, Any] | None = None,
        meta_fields_to_embed: Sequence[str] = (),
        embedding_separator: str = "\n",
    ) -> None:
        # Not `super()`: the decorator makes the class anew.
        _Embedder.__init__(self, model, model_kwargs=model_kwargs, encode_kwargs=encode_kwargs)
        self.meta_fields_to_embed = list(meta_fields_to_embed)
        self.embedding_separator = embedding_separator

    def to_dict(self) -> dict[str, Any]:
        """Return the component as Haystack stores it; errors are those of the text embedder."""
        data = _Embedder.to_dict(self)
        data["init_parameters"] |= {
            "meta_fields_to_embed": self.meta_fields_to_embed,
            "embedding_separator": self.embedding_separator,
        }
        return data

    @component.output_types(documents=list[Document])
    def run(self, documents: list[Document]) -> dict[str, Any]:
        """Embed documents with `encode_document`; return copies that have their `embedding`."""
        vectors = self._lazy.documents(_texts(self, documents))
        return _with_embeddings(documents, vectors.tolist())

    @component.output_types(documents=list[Document])
    async def run_async(self, documents: list[Document]) -> dict[str, Any]:
        """Do the same as `run` without blocking the event loop."""
        vectors = await self._lazy.adocuments(_texts(self, documents))
        return _with_embeddings(documents, vectors.tolist())


@component
class MirrorRanker(_Component):
    """A component that keeps the documents that answer a query best.

    The first three arguments are those of `LazyReranker`; those of metadata are as in
    `MirrorDocumentEmbedder`. Of documents with the same id, which several retrievers have found,
    one is ranked.

    Args:
        top_k: the number of documents to keep.
        score_threshold: leave out documents whose score is below; None for none.
    """

    def __init__(
        self,
        model: str | Path | Reranker,
        *,
        model_kwargs: Mapping[str, Any] | None = None,
        predict_kwargs: Mapping[str, Any] | None = None,
        top_k: int = 10,
        score_threshold: float | None = None,
        meta_fields_to_embed: Sequence[str] = (),
        embedding_separator: str = "\n",
    ) -> None:
        self._lazy: LazyReranker = LazyReranker(model, model_kwargs, predict_kwargs)
        self.top_k, self.score_threshold = top_k, score_threshold
        self.meta_fields_to_embed = list(meta_fields_to_embed)
        self.embedding_separator = embedding_separator

    def to_dict(self) -> dict[str, Any]:
        """Return the component as Haystack stores it; errors are those of the text embedder."""
        data = _Component.to_dict(self)
        names = ("top_k", "score_threshold", "meta_fields_to_embed", "embedding_separator")
        data["init_parameters"] |= {name: getattr(self, name) for name in names}
        return data

    @component.output_types(documents=list[Document])
    def run(
        self, query: str, documents: list[Document], top_k: int | None = None
    ) -> dict[str, Any]:
        """Return copies of the best documents with their `score`, the best first."""
        documents = _distinct(documents)
        texts = _texts(self, documents)
        return self._kept(documents, self._lazy.rank(query, texts, self._top_k(top_k)))

    @component.output_types(documents=list[Document])
    async def run_async(
        self, query: str, documents: list[Document], top_k: int | None = None
    ) -> dict[str, Any]:
        """Do the same as `run` without blocking the event loop."""
        documents = _distinct(documents)
        texts = _texts(self, documents)
        return self._kept(documents, await self._lazy.arank(query, texts, self._top_k(top_k)))

    def _top_k(self, given: int | None) -> int:
        return self.top_k if given is None else given

    def _kept(self, documents: list[Document], ranking: list[dict[str, Any]]) -> dict[str, Any]:
        least = self.score_threshold
        kept = [entry for entry in ranking if least is None or entry["score"] >= least]
        return {"documents": [replace(documents[e["corpus_id"]], score=e["score"]) for e in kept]}


def _distinct(documents: list[Document]) -> list[Document]:
    return list({document.id: document for document in documents}.values())


def _texts(settings: MirrorDocumentEmbedder | MirrorRanker, documents: list[Document]) -> list[str]:
    """Return the content of each document, with some of its metadata before it."""
    texts = []
    for document in documents:
        fields = [document.meta.get(name) for name in settings.meta_fields_to_embed]
        parts = [str(field) for field in fields if field is not None]
        texts.append(settings.embedding_separator.join([*parts, document.content or ""]))
    return texts


def _with_embeddings(documents: list[Document], vectors: list[list[float]]) -> dict[str, Any]:
    return {
        "documents": [
            replace(document, embedding=vector)
            for document, vector in zip(documents, vectors, strict=True)
        ]
    }
