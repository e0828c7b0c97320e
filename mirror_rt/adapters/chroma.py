"""Adapt encoders to Chroma: `MirrorEmbeddingFunction` embeds for its collections."""

from __future__ import annotations

from typing import Any

from mirror_rt.adapters.lazy import Adapter
from mirror_rt.errors import importing

with importing("chromadb", extra="chroma", purpose="mirror_rt.adapters.chroma"):
    from chromadb.api.types import Documents, EmbeddingFunction, Embeddings, Space
    from chromadb.utils.embedding_functions import register_embedding_function


@register_embedding_function
class MirrorEmbeddingFunction(Adapter, EmbeddingFunction[Documents]):
    """Chroma's `EmbeddingFunction`; the arguments are those of `LazyEncoder`.

    Texts that are added to a collection take the model's prompt for documents, and `query_texts`
    takes its prompt for queries. A collection stores the name and options of the model; wherever
    this module has been imported, Chroma can open the model again.
    """

    def __call__(self, input: Documents) -> Embeddings:
        """Embed texts with `encode_document`; return a list of vectors."""
        return list(self._lazy.documents(input))

    def embed_query(self, input: Documents) -> Embeddings:
        """Embed queries with `encode_query`; return a list of vectors."""
        return list(self._lazy.queries(input))

    @staticmethod
    def name() -> str:
        """Return the name under which Chroma stores the class."""
        return "mirror-rt"

    def default_space(self) -> Space:
        """Return the distance for a collection that names none."""
        return "cosine"

    def get_config(self) -> dict[str, Any]:
        """Return the arguments, as Chroma stores them.

        Raises:
            ConfigError: the function was made of an encoder that has no folder.
        """
        return self._lazy.config()

    @staticmethod
    def build_from_config(config: dict[str, Any]) -> MirrorEmbeddingFunction:
        """Make the function again from the result of `get_config`."""
        return MirrorEmbeddingFunction(**config)
