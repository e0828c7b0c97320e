"""Adapt encoders to Haystack: components that embed a pipeline's query and its documents."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

from mirror_rt.adapters.lazy import Adapter, TextEncoder
from mirror_rt.errors import importing

with importing("haystack", extra="haystack", purpose="mirror_rt.adapters.haystack"):
    from haystack import Document, component, default_from_dict, default_to_dict


class _Embedder(Adapter):
    _loads_at_once = False  # `warm_up` does

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
        vectors = self._lazy.documents(map(self._text, documents))
        return _with_embeddings(documents, vectors.tolist())

    @component.output_types(documents=list[Document])
    async def run_async(self, documents: list[Document]) -> dict[str, Any]:
        """Do the same as `run` without blocking the event loop."""
        vectors = await self._lazy.adocuments(map(self._text, documents))
        return _with_embeddings(documents, vectors.tolist())

    def _text(self, document: Document) -> str:
        fields = [document.meta.get(name) for name in self.meta_fields_to_embed]
        parts = [str(field) for field in fields if field is not None]
        return self.embedding_separator.join([*parts, document.content or ""])


def _with_embeddings(documents: list[Document], vectors: list[list[float]]) -> dict[str, Any]:
    return {
        "documents": [
            replace(document, embedding=vector)
            for document, vector in zip(documents, vectors, strict=True)
        ]
    }
