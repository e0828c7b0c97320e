"""Offer the interface of fastembed's `SparseTextEmbedding` over a `SparseEncoder`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from mirror_rt.adapters.lazy import LazyModel
from mirror_rt.compat.fastembed_model import FastembedModel, windows_of
from mirror_rt.keywords import refuse_unknown
from mirror_rt.pipeline.inputs import Texts
from mirror_rt.pipeline.prompts import DOCUMENT_NAMES, QUERY_NAMES
from mirror_rt.sparse.options import SparseKeywords, SparseOptions
from mirror_rt.sparse.sparse_encoder import SparseEncoder
from mirror_rt.sparse.vectors import Indices, Values


@dataclass
class SparseEmbedding:
    """A sparse vector, as fastembed has it.

    Attributes:
        values: float32 [k], the weights of words.
        indices: int32 [k], the words, ascending.
    """

    values: Values
    indices: Indices

    def as_object(self) -> dict[str, Values | Indices]:
        """Return `values` and `indices` by name, as Qdrant's `SparseVector` takes them."""
        return {"values": self.values, "indices": self.indices}

    def as_dict(self) -> dict[int, float]:
        """Return the weight of each word."""
        return dict(zip(self.indices.tolist(), self.values.tolist(), strict=True))

    @classmethod
    def from_dict(cls, data: Mapping[int, float]) -> SparseEmbedding:
        """Make a vector of the weight of each word."""
        return cls(np.array([*data.values()], np.float32), np.array([*data], np.int32))


class _LazySparse(LazyModel[SparseEncoder]):
    """A sparse encoder that is loaded on first use."""

    _kind = SparseEncoder
    _keywords = SparseKeywords


class SparseTextEmbedding(FastembedModel):
    """A sparse encoder with the methods of `fastembed.SparseTextEmbedding`.

    `list_supported_models` is empty, because every model is loaded by its folder, or by its name on
    a hub. BM25, BM42 and miniCOIL are no models of words' weights, and are refused.
    """

    _kind = _LazySparse

    @property
    def encoder(self) -> SparseEncoder:
        """The encoder that does the work."""
        return cast(SparseEncoder, self._lazy.load())

    def embed(
        self, documents: Texts, batch_size: int = 256, parallel: int | None = None, **kwargs: Any
    ) -> Iterator[SparseEmbedding]:
        """Encode a stream of texts in constant memory, to one vector each, in order.

        Args:
            documents: one string, or any iterable of strings.
            batch_size: as in `SparseEncoder.encode`, texts of 64 tokens.
            parallel: not needed, because one process uses all processors and cards.
            **kwargs: further options of `SparseEncoder.encode`, and `window`.

        Raises:
            InvalidTextError, ConfigError: as `SparseEncoder.encode`.
        """
        yield from self._embed(DOCUMENT_NAMES[:0], documents, {"batch_size": batch_size, **kwargs})

    def query_embed(self, query: Texts, **kwargs: Any) -> Iterator[SparseEmbedding]:
        """Encode queries like `embed`, with the model's prompt or table for them if it has one."""
        yield from self._embed(QUERY_NAMES, query, kwargs)

    def passage_embed(self, texts: Iterable[str], **kwargs: Any) -> Iterator[SparseEmbedding]:
        """Encode documents like `embed`, with the model's prompt for documents if it has one."""
        yield from self._embed(DOCUMENT_NAMES, texts, kwargs)

    def token_count(self, texts: Texts, batch_size: int = 1024, **kwargs: Any) -> int:
        """Return the number of tokens of all texts, special tokens included."""
        pipeline = self.encoder.pipeline
        plan = pipeline.plan(prompt="")
        windows = windows_of(texts, {})
        return sum(int(pipeline.tokenize(one, plan).tokens.lengths.sum()) for one in windows)

    def _embed(
        self, names: Sequence[str], texts: Texts, options: dict[str, Any]
    ) -> Iterator[SparseEmbedding]:
        refuse_unknown("embed", options, {**SparseKeywords.__annotations__, "window": int})
        if "prompt" not in options and (name := self.encoder.prompts.first_of(names)):
            options = {"prompt_name": name, **options}
        windows = windows_of(texts, options)
        stream = self.encoder.encode_windows(
            windows, SparseOptions(**options), query=names == QUERY_NAMES
        )
        with closing(stream):
            for vectors in stream:
                yield from (SparseEmbedding(row.values, row.indices) for row in vectors)
