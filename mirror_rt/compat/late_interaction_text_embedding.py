"""Offer the interface of fastembed's `LateInteractionTextEmbedding` over a `MultiVectorEncoder`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from mirror_rt.adapters.lazy import LazyModel
from mirror_rt.compat.fastembed_model import FastembedModel, windows_of
from mirror_rt.keywords import refuse_unknown
from mirror_rt.late_interaction.encoder import MultiVectorEncoder
from mirror_rt.late_interaction.token_encoder import OPTIONS, Side
from mirror_rt.pipeline.inputs import Texts
from mirror_rt.pipeline.options import EncodeKeywords

Vectors = npt.NDArray[np.float32]


class _LazyLate(LazyModel[MultiVectorEncoder]):
    """A late-interaction model that is loaded on first use."""

    _kind = MultiVectorEncoder


class LateInteractionTextEmbedding(FastembedModel):
    """A model with the methods of `fastembed.LateInteractionTextEmbedding`.

    `list_supported_models` is empty, because every model is loaded by its folder, or by its name on
    a hub. A query is cut where the model's folder says, which fastembed does not do.
    """

    _kind = _LazyLate

    @property
    def encoder(self) -> MultiVectorEncoder:
        """The encoder that does the work."""
        return cast(MultiVectorEncoder, self._lazy.load())

    @property
    def embedding_size(self) -> int:
        """The length D of the vectors."""
        return self.encoder.dimension

    @classmethod
    def get_embedding_size(cls, model_name: str) -> int:
        """Return the length D of the vectors of a model, which is loaded for it if need be."""
        return cls(model_name).embedding_size

    def embed(
        self, documents: Texts, batch_size: int = 256, parallel: int | None = None, **kwargs: Any
    ) -> Iterator[Vectors]:
        """Encode a stream of documents in constant memory, to float32 [t, D] each, in order.

        Args:
            documents: one string, or any iterable of strings.
            batch_size: as in `MultiVectorEncoder.encode_document`.
            parallel: not needed, because one process uses all processors and cards.
            **kwargs: further options of `MultiVectorEncoder.encode_document`, and `window`.

        Raises:
            InvalidTextError, ConfigError: as `MultiVectorEncoder.encode_document`.
        """
        yield from self._embed("document", documents, {"batch_size": batch_size, **kwargs})

    def query_embed(self, query: Texts, **kwargs: Any) -> Iterator[Vectors]:
        """Encode queries like `embed`, those of query expansion included."""
        yield from self._embed("query", query, kwargs)

    def passage_embed(self, texts: Iterable[str], **kwargs: Any) -> Iterator[Vectors]:
        """Call `embed`."""
        yield from self.embed(texts, **kwargs)

    def token_count(
        self, texts: Texts, batch_size: int = 1024, is_doc: bool = True,
        include_extension: bool = False, **kwargs: Any,
    ) -> int:  # fmt: skip
        """Return the number of tokens of all texts, special tokens included.

        They are documents, or queries without `is_doc`. With `include_extension`, prefixes and the
        tokens that queries are filled up with count, too. Other arguments have no effect.
        """
        side = self.encoder.encoder.sides["document" if is_doc else "query"]
        count = side if include_extension else side.without_extension
        found = (count(window.texts).tokens.lengths for window in windows_of(texts, {}))
        return sum(int(lengths.sum()) for lengths in found)

    def _embed(self, side: Side, texts: Texts, options: dict[str, Any]) -> Iterator[Vectors]:
        refuse_unknown("embed", options, (*OPTIONS, "window"))
        windows = windows_of(texts, options)
        for window in windows:
            yield from self.encoder.encoder.encode(side, window, cast(EncodeKeywords, options))
