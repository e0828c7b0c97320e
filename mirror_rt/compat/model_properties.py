"""Offer the properties that sentence-transformers has of a model of embeddings."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any

from mirror_rt.compat.arguments import renamed
from mirror_rt.compat.base_model import BaseModel
from mirror_rt.compat.util import SimilarityFunction, function_named
from mirror_rt.encoding.encoder import Encoder
from mirror_rt.errors import ConfigError

DOCUMENT_NAMES = ("document", "passage", "corpus")


def encode_as(encode: Callable[..., Any], task: str, names: Sequence[str]) -> Callable[..., Any]:
    """Make the method that encodes with the first prompt that a model has of these names."""
    # It calls `encode` with keywords, as the original does, for classes that override it.
    known = list(inspect.signature(encode).parameters)[1:]

    @renamed(sentences="inputs")
    def call(
        self: BaseModel, inputs: Any, prompt_name: str | None = None,
        prompt: str | None = None, *rest: Any, **options: Any,
    ) -> Any:  # fmt: skip
        given = (inputs, prompt_name, prompt, *rest)
        options = {**options, **dict(zip(known, given, strict=False)), "task": task}
        if prompt_name is None and prompt is None:
            options["prompt_name"] = self._prompts.first_of(names)
        return self.encode(**options)

    call.__doc__ = f"Encode with the model's prompt `{task}`; arguments as in `encode`."
    call.__name__, call.__qualname__ = f"encode_{task}", f"{encode.__qualname__}_{task}"
    return call


class EmbeddingModel(BaseModel):
    """The properties that models of vectors have, of texts or of tokens."""

    SUPPORTED_SIMILARITY_FN_NAMES: tuple[str, ...] = ("cosine", "dot", "euclidean", "manhattan")

    encoder: Any
    _own_prompts = MappingProxyType({"query": "", "document": ""})
    _similarity = SimilarityFunction.COSINE

    def get_embedding_dimension(self) -> int:
        """Return the length D of an embedding."""
        return int(self.encoder.dimension)

    def get_sentence_embedding_dimension(self) -> int:
        """Call `get_embedding_dimension`, which is its name since version 6 of the original."""
        return self.get_embedding_dimension()

    @property
    def similarity_fn_name(self) -> str:
        """The name of the function that compares vectors; a `SimilarityFunction` sets it, too."""
        return self._similarity.value

    @similarity_fn_name.setter
    def similarity_fn_name(self, value: object) -> None:
        found = type(self)._similarity if value is None else function_named(value)
        if found not in self.SUPPORTED_SIMILARITY_FN_NAMES:  # in the words of the original
            other = (
                "SentenceTransformer"
                if "maxsim" in self.SUPPORTED_SIMILARITY_FN_NAMES
                else ("MultiVectorEncoder")
            )
            raise ConfigError(
                f"{type(self).__name__} only supports similarity_fn_name in "
                f"{self.SUPPORTED_SIMILARITY_FN_NAMES}, got {found.value!r}, which a {other} has"
            )
        self._similarity = found

    def _saved_settings(self) -> dict[str, Any]:
        return super()._saved_settings() | {"similarity_fn_name": self.similarity_fn_name}


class ModelProperties(EmbeddingModel):
    """The properties of a model by the names of `sentence_transformers.SentenceTransformer`."""

    encoder: Encoder
    truncate_dim: int | None

    def get_embedding_dimension(self) -> int:
        """Return the length D of an embedding."""
        return min(self.truncate_dim or self.encoder.dimension, self.encoder.dimension)

    @contextmanager
    def truncate_embeddings(self, truncate_dim: int | None) -> Iterator[None]:
        """Keep the first `truncate_dim` dimensions within the block."""
        before, self.truncate_dim = self.truncate_dim, truncate_dim
        try:
            yield
        finally:
            self.truncate_dim = before

    truncate_sentence_embeddings = truncate_embeddings
