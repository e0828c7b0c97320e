"""The results of a pipeline: embeddings, and how each text was encoded."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields

import numpy as np
import numpy.typing as npt

from mirror_rt.pipeline.options import EncodePlan
from mirror_rt.vectors.quantization import Embeddings

Indices = npt.NDArray[np.int64]
Vectors = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class EncodedTexts:
    """The embeddings of n texts, and how each text was encoded.

    Attributes:
        embeddings: [n, D], in the requested precision.
        token_counts: int64 [n], tokens that were run, special tokens and prompt included.
        chunks: int64 [n], rows that were run: more than 1 only with `on_too_long="chunk"`, 0 for
            a text that could not be encoded.
        truncated: bool [n], True for a text that was cut to fit.
    """

    embeddings: Embeddings
    token_counts: npt.NDArray[np.int64]
    chunks: npt.NDArray[np.int64]
    truncated: npt.NDArray[np.bool_]


def empty_texts(n: int, columns: int, dtype: npt.DTypeLike) -> EncodedTexts:
    """Allocate arrays for n texts whose embeddings have `columns` columns."""
    return EncodedTexts(
        np.empty((n, columns), dtype=dtype),
        np.empty(n, dtype=np.int64),
        np.empty(n, dtype=np.int64),
        np.empty(n, dtype=np.bool_),
    )


def place(part: EncodedTexts, rows: slice | npt.NDArray[np.int64], whole: EncodedTexts) -> None:
    """Copy a part into its rows of the whole."""
    for field in fields(EncodedTexts):
        getattr(whole, field.name)[rows] = getattr(part, field.name)


def join(parts: Iterable[EncodedTexts], n: int, plan: EncodePlan) -> EncodedTexts:
    """Join consecutive windows of n texts, without holding more than one window at a time."""
    joined = empty_texts(n, plan.quantizer.width(plan.dimension), plan.quantizer.dtype)
    start = 0
    for part in parts:
        end = start + len(part.truncated)
        place(part, slice(start, end), joined)
        start = end
    return joined
