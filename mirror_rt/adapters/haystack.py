"""Haystack: components that embed the query of a pipeline, and its documents."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from mirror_rt.adapters.lazy import LazyEncoder, TextEncoder
from mirror_rt.errors import importing

with importing("haystack", extra="haystack", purpose="mirror_rt.adapters.haystack"):
    from haystack import Document, component, default_from_dict, default_to_dict

__all__ = ["MirrorDocumentEmbedder", "MirrorTextEmbedder"]


@component
class MirrorTextEmbedder:
    """A component that embeds a query; arguments are those of `LazyEncoder`.

    Pipelines are stored with the name and options of the model. To load one, Haystack wants to be
    told that this module is trusted: `Pipeline.loads(text, allowed_modules=["mirror_rt"])`.
    """

    def __init__(
        self,
        model: str | Path | TextEncoder,
        *,
        model_kwargs: Mapping[str, Any] | None = None,
        encode_kwargs: Mapping[str, Any] | None = None,
    ) -> None:
        self._lazy = LazyEncoder(model, model_kwargs, encode_kwargs)

    def warm_up(self) -> None:
        """Load the model; the first run does, too."""
        self._lazy.load()

    def to_dict(self) -> dict[str, Any]:
        """The component as Haystack stores it.

        Raises:
            ConfigError: it was made of an encoder that has no folder.
        """
        return default_to_dict(self, **self._lazy.config())

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> MirrorTextEmbedder:
        """The component of `to_dict`."""
        return default_from_dict(cls, data)

    @component.output_types(embedding=list[float])
    def run(self, text: str) -> dict[str, Any]:
        """Embed a query with `encode_query`: `{"embedding": [...]}`."""
        return {"embedding": self._lazy.query(text).tolist()}

    @component.output_types(embedding=list[float])
    async def run_async(self, text: str) -> dict[str, Any]:
        """`run` beside the event loop."""
        return {"embedding": (await self._lazy.aquery(text)).tolist()}


@component
class MirrorDocumentEmbedder:
    """A component that embeds documents; the first arguments are those of `LazyEncoder`.

    Args:
        model: path or hub name of a bundle, or an encoder.
        model_kwargs: options of `Encoder.load`.
        encode_kwargs: options of `Encoder.encode`.
        meta_fields_to_embed: names of meta data that are put before a document's content.
        embedding_separator: between those and the content.
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
        self._lazy = LazyEncoder(model, model_kwargs, encode_kwargs)
        self.meta_fields_to_embed = list(meta_fields_to_embed)
        self.embedding_separator = embedding_separator

    def warm_up(self) -> None:
        """Load the model; the first run does, too."""
        self._lazy.load()

    def to_dict(self) -> dict[str, Any]:
        """The component as Haystack stores it.

        Raises:
            ConfigError: it was made of an encoder that has no folder.
        """
        return default_to_dict(
            self,
            **self._lazy.config(),
            meta_fields_to_embed=self.meta_fields_to_embed,
            embedding_separator=self.embedding_separator,
        )

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> MirrorDocumentEmbedder:
        """The component of `to_dict`."""
        return default_from_dict(cls, data)

    @component.output_types(documents=list[Document])
    def run(self, documents: list[Document]) -> dict[str, Any]:
        """Copies of the documents with their `embedding`, by `encode_document`."""
        vectors = self._lazy.documents(map(self._text, documents))
        return _with_embeddings(documents, vectors.tolist())

    @component.output_types(documents=list[Document])
    async def run_async(self, documents: list[Document]) -> dict[str, Any]:
        """`run` beside the event loop."""
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
