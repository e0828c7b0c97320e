"""Adapt models to Haystack: components that embed a query and documents, and rank documents."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

from mirror_rt.adapters.lazy import Adapter, LazyEncoder, LazyReranker, TextEncoder
from mirror_rt.errors import importing
from mirror_rt.reranking.reranker import Reranker

with importing("haystack", extra="haystack", purpose="mirror_rt.adapters.haystack"):
    from haystack import Document, component, default_from_dict, default_to_dict


class _Component:
    _lazy: LazyEncoder | LazyReranker
    _stored: tuple[str, ...] = ()  # the attributes that `to_dict` stores beside the model

    def warm_up(self) -> None:
        """Load the model now rather than in the first run."""
        self._lazy.load()

    def to_dict(self) -> dict[str, Any]:
        """Return the component as Haystack stores it.

        Raises:
            ConfigError: the component was made of an encoder that has no folder.
        """
        return default_to_dict(
            self, **self._lazy.config(), **{name: getattr(self, name) for name in self._stored}
        )

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
        """Embed a query with `encode_query`; return `{"embedding": [...]}`.

        Raises:
            TypeError: it is no text, as Haystack's own components say.
        """
        return {"embedding": self._lazy.query(_checked(text, str)).tolist()}

    @component.output_types(embedding=list[float])
    async def run_async(self, text: str) -> dict[str, Any]:
        """Do the same as `run` without blocking the event loop."""
        return {"embedding": (await self._lazy.aquery(_checked(text, str))).tolist()}


@component
class MirrorDocumentEmbedder(_Embedder):
    """A component that embeds documents; the first three arguments are those of `LazyEncoder`.

    `meta_fields_to_embed` names metadata fields that are put before a document's content, with
    `embedding_separator` between them.
    """

    _stored = ("meta_fields_to_embed", "embedding_separator")

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

    @component.output_types(documents=list[Document])
    def run(self, documents: list[Document]) -> dict[str, Any]:
        """Embed documents with `encode_document`; return copies that have their `embedding`.

        Documents without a text stay without one.

        Raises:
            TypeError: they are no list of documents, as Haystack's own components say.
        """
        texts = _texts(self, documents)
        vectors = self._lazy.documents(list(texts.values()))
        return _with_embeddings(documents, dict(zip(texts, vectors.tolist(), strict=True)))

    @component.output_types(documents=list[Document])
    async def run_async(self, documents: list[Document]) -> dict[str, Any]:
        """Do the same as `run` without blocking the event loop."""
        texts = _texts(self, documents)
        vectors = await self._lazy.adocuments(list(texts.values()))
        return _with_embeddings(documents, dict(zip(texts, vectors.tolist(), strict=True)))


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

    _stored = ("top_k", "score_threshold", "meta_fields_to_embed", "embedding_separator")

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

    @component.output_types(documents=list[Document])
    def run(
        self, query: str, documents: list[Document], top_k: int | None = None
    ) -> dict[str, Any]:
        """Return copies of the best documents with their `score`, the best first.

        Documents without a text are left out.
        """
        texts = _texts(self, documents := _distinct(documents))
        ranking = self._lazy.rank(query, list(texts.values()), self._top_k(top_k))
        return self._kept([documents[i] for i in texts], ranking)

    @component.output_types(documents=list[Document])
    async def run_async(
        self, query: str, documents: list[Document], top_k: int | None = None
    ) -> dict[str, Any]:
        """Do the same as `run` without blocking the event loop."""
        texts = _texts(self, documents := _distinct(documents))
        ranking = await self._lazy.arank(query, list(texts.values()), self._top_k(top_k))
        return self._kept([documents[i] for i in texts], ranking)

    def _top_k(self, given: int | None) -> int:
        return self.top_k if given is None else given

    def _kept(self, documents: list[Document], ranking: list[dict[str, Any]]) -> dict[str, Any]:
        least = self.score_threshold
        kept = [entry for entry in ranking if least is None or entry["score"] >= least]
        return {"documents": [replace(documents[e["corpus_id"]], score=e["score"]) for e in kept]}


def _distinct(documents: list[Document]) -> list[Document]:
    return list({document.id: document for document in documents}.values())


def _checked(given: Any, kind: type) -> Any:
    if not isinstance(given, kind):
        raise TypeError(f"expected {kind.__name__}, got {type(given).__name__}")
    return given


def _texts(
    settings: MirrorDocumentEmbedder | MirrorRanker, documents: list[Document]
) -> dict[int, str]:
    """Return the content of each document, with some of its metadata before it, by its place.

    Those that have no text are not in it.
    """
    texts = {}
    for i, document in enumerate(_checked(documents, list)):
        meta = _checked(document, Document).meta
        fields = [meta.get(name) for name in settings.meta_fields_to_embed]
        parts = [str(field) for field in fields if field is not None]
        text = settings.embedding_separator.join([*parts, document.content or ""])
        if text.strip():
            texts[i] = text
    return texts


def _with_embeddings(documents: list[Document], found: dict[int, list[float]]) -> dict[str, Any]:
    return {
        "documents": [
            replace(document, embedding=found.get(i, document.embedding))
            for i, document in enumerate(documents)
        ]
    }
