"""Offer the properties that sentence-transformers has of a model of embeddings."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any

from mirror_rt.compat.base_model import BaseModel
from mirror_rt.compat.util import SimilarityFunction, function_named
from mirror_rt.encoding.encoder import Encoder


class ModelProperties(BaseModel):
    """The properties of a model by the names of `sentence_transformers.SentenceTransformer`."""

    SUPPORTED_SIMILARITY_FN_NAMES = tuple(SimilarityFunction.possible_values())

    encoder: Encoder
    truncate_dim: int | None
    _own_prompts = MappingProxyType({"query": "", "document": ""})
    _similarity = SimilarityFunction.COSINE

    def get_embedding_dimension(self) -> int:
        """Return the length D of an embedding."""
        return min(self.truncate_dim or self.encoder.dimension, self.encoder.dimension)

    get_sentence_embedding_dimension = get_embedding_dimension

    @property
    def similarity_fn_name(self) -> str:
        """The name of the function that compares vectors; a `SimilarityFunction` sets it, too."""
        return self._similarity.value

    @similarity_fn_name.setter
    def similarity_fn_name(self, value: object) -> None:
        self._similarity = function_named("cosine" if value is None else value)

    def _saved_settings(self) -> dict[str, Any]:
        return super()._saved_settings() | {"similarity_fn_name": self.similarity_fn_name}

    @contextmanager
    def truncate_embeddings(self, truncate_dim: int | None) -> Iterator[None]:
        """Keep the first `truncate_dim` dimensions within the block."""
        before, self.truncate_dim = self.truncate_dim, truncate_dim
        try:
            yield
        finally:
            self.truncate_dim = before

    truncate_sentence_embeddings = truncate_embeddings
