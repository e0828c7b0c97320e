"""Chroma: `MirrorEmbeddingFunction`, for its collections."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mirror_rt.adapters.lazy import LazyEncoder, TextEncoder
from mirror_rt.errors import importing

with importing("chromadb", extra="chroma", purpose="mirror_rt.adapters.chroma"):
    from chromadb.api.types import Documents, EmbeddingFunction, Embeddings, Space
    from chromadb.utils.embedding_functions import register_embedding_function

__all__ = ["MirrorEmbeddingFunction"]


@register_embedding_function
class MirrorEmbeddingFunction(EmbeddingFunction[Documents]):
    """Chroma's `EmbeddingFunction`; arguments are those of `LazyEncoder`.

    What is added to a collection takes the model's prompt for documents, `query_texts` the one for
    queries. A collection stores the name and options of the model, and opens it again where this
    module has been imported.

    Raises:
        MirrorError: the model cannot be loaded.
    """

    def __init__(
        self,
        model: str | Path | TextEncoder,
        *,
        model_kwargs: Mapping[str, Any] | None = None,
        encode_kwargs: Mapping[str, Any] | None = None,
    ) -> None:
        self._lazy = LazyEncoder(model, model_kwargs, encode_kwargs)
        self._lazy.load()  # an error now, not at the first query

    def __call__(self, input: Documents) -> Embeddings:
        """Texts to a list of vectors, with `encode_document`."""
        return list(self._lazy.documents(input))

    def embed_query(self, input: Documents) -> Embeddings:
        """Queries to a list of vectors, with `encode_query`."""
        return list(self._lazy.queries(input))

    @staticmethod
    def name() -> str:
        """What Chroma stores for the class."""
        return "mirror-rt"

    def default_space(self) -> Space:
        """The distance of a collection that names none."""
        return "cosine"

    def get_config(self) -> dict[str, Any]:
        """The arguments, as Chroma stores them.

        Raises:
            ConfigError: it was made of an encoder that has no folder.
        """
        return self._lazy.config()

    @staticmethod
    def build_from_config(config: dict[str, Any]) -> MirrorEmbeddingFunction:
        """The function of `get_config`."""
        return MirrorEmbeddingFunction(**config)
