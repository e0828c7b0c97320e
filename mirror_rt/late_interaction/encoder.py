"""The late-interaction encoder of the runtime: vectors of tokens, and documents ranked by them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Unpack, overload

import numpy as np
import numpy.typing as npt

from mirror_rt.bundle.description import ModelDescription
from mirror_rt.bundle.model_kinds import LATE
from mirror_rt.encoding.loaded_bundle import LoadedBundle, open_model
from mirror_rt.errors import ConfigError
from mirror_rt.inference.load_options import LoadKeywords, LoadOptions
from mirror_rt.keywords import with_visible_options
from mirror_rt.late_interaction.projection import TokenModel
from mirror_rt.late_interaction.token_encoder import TokenEncoder
from mirror_rt.pipeline.inputs import Texts, as_list
from mirror_rt.pipeline.options import EncodeKeywords
from mirror_rt.vectors.maxsim import maxsim

Vectors = npt.NDArray[Any]
Ranking = list[dict[str, Any]]


@with_visible_options(LoadOptions)
class MultiVectorEncoder(LoadedBundle):
    """A loaded late-interaction model: `MultiVectorEncoder.load(path).rank(query, documents)`.

    It is safe to use from several threads at once.
    """

    _kinds = (LATE,)

    def __init__(self, description: ModelDescription, options: LoadOptions) -> None:
        super().__init__(description, options)
        self._model = open_model(self.description, options)
        model = TokenModel.open(self._model, self.description)
        self.dimension = model.dimension
        """The length D of the vectors."""
        self.encoder = TokenEncoder(description, model)
        """Encodes both sides, by its own interface."""
        self.pipeline = self.encoder.pipelines["document"]

    @classmethod
    def load(cls, path_or_name: str | Path, **keywords: Unpack[LoadKeywords]) -> MultiVectorEncoder:
        """Load a late-interaction model from a folder or by its name on a hub.

        The folder is a bundle that `mirror-rt export` wrote, or one with weights in safetensors
        that PyLate, Stanford's ColBERT or sentence-transformers' MultiVectorEncoder saved.

        Args:
            path_or_name: a folder, or the name of one on a hub.
            **keywords: the fields of `LoadOptions`.

        Raises:
            BundleError: the folder is none of these, or is incomplete or changed.
            ConfigError, ProviderError, MissingDependencyError: as `Encoder.load`.
        """
        return cls._load(path_or_name, keywords)

    @property
    def max_length(self) -> int:
        """Most tokens of a query or a document, whichever may be longer."""
        return self.manifest.max_length

    @overload
    def encode_query(  # type: ignore[overload-overlap]  # a string is an iterable of strings, too
        self, queries: str, **options: Unpack[EncodeKeywords]
    ) -> Vectors: ...
    @overload
    def encode_query(self, queries: Texts, **options: Unpack[EncodeKeywords]) -> list[Vectors]: ...
    def encode_query(
        self, queries: Texts, **options: Unpack[EncodeKeywords]
    ) -> Vectors | list[Vectors]:
        """Encode queries to the vectors of their tokens, those of query expansion included.

        Args:
            queries: one string, or any iterable of strings.
            **options: those of `Encoder.encode` that are named `batch_size`, `prompt_name`,
                `prompt`, `on_too_long` (`truncate` or `error`) and `precision` (`float32`,
                `float16`, `int8` or `uint8`, all of which `maxsim` takes as documents).

        Returns:
            Of each query float32 [t, D]; of one string the array alone.

        Raises:
            InvalidTextError: a text is empty, blank, or no valid Unicode; or it is too long and
                `on_too_long` is `"error"`.
            ConfigError: an option has an unusable value.
        """
        found = self.encoder.encode("query", as_list(queries), options)
        return found[0] if isinstance(queries, str) else found

    @overload
    def encode_document(  # type: ignore[overload-overlap]
        self, documents: str, *, pool_factor: float = 1, protected_tokens: int = 1,
        **options: Unpack[EncodeKeywords],
    ) -> Vectors: ...  # fmt: skip
    @overload
    def encode_document(
        self, documents: Texts, *, pool_factor: float = 1, protected_tokens: int = 1,
        **options: Unpack[EncodeKeywords],
    ) -> list[Vectors]: ...  # fmt: skip
    def encode_document(
        self,
        documents: Texts,
        *,
        pool_factor: float = 1,
        protected_tokens: int = 1,
        **options: Unpack[EncodeKeywords],
    ) -> Vectors | list[Vectors]:
        """Encode documents to the vectors of their tokens, without those of the skip list.

        Args:
            documents: one string, or any iterable of strings.
            pool_factor: merge similar vectors of a document, so that one is left of this number, as
                `mirror_rt.vectors.token_pooling.pool_tokens` does.
            protected_tokens: number of first vectors that are never merged.
            **options: as for queries.

        Returns:
            Of each document [t, D] in the precision asked for; of one string the array alone.

        Raises:
            InvalidTextError, ConfigError: as `encode_query`.
        """
        pooling = None if pool_factor == 1 else (pool_factor, protected_tokens)
        found = self.encoder.encode("document", as_list(documents), options, pooling)
        return found[0] if isinstance(documents, str) else found

    def similarity(self, queries: Sequence[Vectors], documents: Sequence[Vectors]) -> Vectors:
        """Return the scores, float32 [n, m], of encoded queries and documents.

        They are those of `mirror_rt.vectors.maxsim.maxsim`, divided by the number of vectors of the
        query where the model declares `meanmaxsim`.
        """
        scores = maxsim(queries, documents)
        if self.encoder.tokens.mean:
            scores /= np.array([max(1, len(one)) for one in queries], np.float32)[:, None]
        return scores

    def rank(
        self,
        query: str,
        documents: Sequence[str] | Sequence[Vectors],
        *,
        top_k: int | None = None,
        return_documents: bool = False,
        batch_size: int = 32,
    ) -> Ranking:
        """Rank documents by their scores with a query, the best first.

        Args:
            query: the query.
            documents: the documents, or their vectors as `encode_document` gives them.
            top_k: number of the best to return; None for all.
            return_documents: whether to return the documents, too.
            batch_size: as in `encode_query`.

        Returns:
            A dictionary for each document: its index `corpus_id`, its `score`, and with
            `return_documents` its `text`. Documents of the same score keep their order.

        Raises:
            InvalidTextError, ConfigError: as `encode_query`.
        """
        if isinstance(documents, str) or not isinstance(query, str):
            expected, got = "one query and a list of documents", (query, documents)
            raise ConfigError(field="documents", expected=expected, value=got)
        if top_k is not None and top_k < 1:
            raise ConfigError(field="top_k", expected="at least 1, or None", value=top_k)
        given: Any = list(documents)
        if not all(isinstance(one, np.ndarray) for one in given):
            given = self.encode_document(given, batch_size=batch_size)
        scores = self.similarity([self.encode_query(query)], given)[0]
        order = np.argsort(-scores, kind="stable")[:top_k].tolist()
        ranking: Ranking = [{"corpus_id": i, "score": float(scores[i])} for i in order]
        if return_documents:
            ranking = [one | {"text": documents[one["corpus_id"]]} for one in ranking]
        return ranking

    def __repr__(self) -> str:
        return f"MultiVectorEncoder({str(self.folder)!r}, dimension={self.dimension})"
