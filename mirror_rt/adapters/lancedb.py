"""Adapt encoders to LanceDB: the embedding function `mirror-rt` of its registry."""

from __future__ import annotations

from typing import Any

import numpy as np

from mirror_rt.adapters.lazy import LazyEncoder
from mirror_rt.errors import importing

with importing("lancedb", extra="lancedb", purpose="mirror_rt.adapters.lancedb"):
    from lancedb.embeddings import TextEmbeddingFunction, register
    from pydantic import Field, PrivateAttr


@register("mirror-rt")
class MirrorEmbeddings(TextEmbeddingFunction):
    """LanceDB's `TextEmbeddingFunction`: `get_registry().get("mirror-rt").create(model=...)`.

    The source column takes the model's prompt for documents, and a search its prompt for queries.
    Tables store the arguments; where this module has been imported, they can open the model again.

    Attributes:
        model: path or hub name of a bundle.
        model_kwargs: options of `Encoder.load`.
        encode_kwargs: options of `Encoder.encode`. With `errors="nan"` a row without text gets a
            vector that `on_bad_vectors` deals with; otherwise it is an error.
    """

    model: str
    model_kwargs: dict[str, Any] = Field(default_factory=dict)
    encode_kwargs: dict[str, Any] = Field(default_factory=dict)
    _lazy: LazyEncoder = PrivateAttr()

    def __init__(self, **values: Any) -> None:
        super().__init__(**values)
        self._lazy = LazyEncoder(self.model, self.model_kwargs, self.encode_kwargs)

    def ndims(self) -> int:
        """Return the length of a vector."""
        return self._lazy.dimension

    def generate_embeddings(
        self, texts: list[str] | np.ndarray[Any, Any], *args: Any, **kwargs: Any
    ) -> list[Any]:
        """Embed texts with `encode_document`."""
        return list(self._lazy.documents(texts))

    def compute_query_embeddings(self, query: Any, *args: Any, **kwargs: Any) -> list[Any]:
        """Embed queries with `encode_query`."""
        return list(self._lazy.queries(self.sanitize_input(query)))

    # The base class retries seven times, over minutes, after any error; these errors do not pass.

    def compute_query_embeddings_with_retry(self, *args: Any, **kwargs: Any) -> list[Any]:
        """Call `compute_query_embeddings` once, without retries."""
        return self.compute_query_embeddings(*args, **kwargs)

    def compute_source_embeddings_with_retry(self, *args: Any, **kwargs: Any) -> list[Any]:
        """Call `compute_source_embeddings` once, without retries."""
        return list(self.compute_source_embeddings(*args, **kwargs))
