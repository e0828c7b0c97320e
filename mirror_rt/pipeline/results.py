"""What comes out of a pipeline: embeddings, and what the model made of each text."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from mirror_rt.pipeline.options import EncodePlan
from mirror_rt.tokens.chunking import TokenRows
from mirror_rt.vectors.quantization import Embeddings

__all__ = ["Encoded", "EncodedTexts", "describe_texts", "empty_texts", "join", "place"]


@dataclass(frozen=True, slots=True)
class EncodedTexts:
    """Embeddings of n texts, and what the model made of each.

    Attributes:
        embeddings: [n, D], in the precision asked for.
        token_counts: int64 [n], tokens that were run, special tokens and prompt included.
        chunks: int64 [n], rows that were run: more than 1 with `on_too_long="chunk"` alone, 0 for
            a text that could not be encoded.
        truncated: bool [n], True where text was cut to fit.
    """

    embeddings: Embeddings
    token_counts: npt.NDArray[np.int64]
    chunks: npt.NDArray[np.int64]
    truncated: npt.NDArray[np.bool_]


class Encoded(NamedTuple):
    """Embeddings of the texts of a call, and what says more of them to those who ask."""

    embeddings: Embeddings
    describe: Callable[[], EncodedTexts]


def describe_texts(embeddings: Embeddings, rows: TokenRows) -> EncodedTexts:
    """Say of the texts of a window what their rows tell."""
    return EncodedTexts(embeddings, rows.token_counts, rows.chunks, rows.truncated)


def empty_texts(n: int, columns: int, dtype: npt.DTypeLike) -> EncodedTexts:
    """Make room for n texts with embeddings of so many columns."""
    return EncodedTexts(
        np.empty((n, columns), dtype=dtype),
        np.empty(n, dtype=np.int64),
        np.empty(n, dtype=np.int64),
        np.empty(n, dtype=np.bool_),
    )


def place(part: EncodedTexts, rows: slice | npt.NDArray[np.int64], whole: EncodedTexts) -> None:
    """Copy a part to its rows of the whole."""
    for field in fields(EncodedTexts):
        getattr(whole, field.name)[rows] = getattr(part, field.name)


def join(parts: Iterable[EncodedTexts], n: int, plan: EncodePlan) -> EncodedTexts:
    """Put windows of n texts together, each let go of as it comes."""
    joined = empty_texts(n, plan.quantizer.width(plan.dimension), plan.quantizer.dtype)
    start = 0
    for part in parts:
        end = start + len(part.truncated)
        place(part, slice(start, end), joined)
        start = end
    return joined
