"""The results of a pipeline: embeddings, and how each text was encoded."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

import numpy as np
import numpy.typing as npt

from mirror_rt.io.vectors import invalid_rows
from mirror_rt.pipeline.options import EncodePlan
from mirror_rt.tokens.windows import TextWindow
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


SHOWN = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class RowCounts:
    """Counts of the rows of a job that have no vector, or one of a part of their text."""

    rows: int = 0  # number of rows
    invalid: int = 0  # number of rows without a vector, which are NaN, null or zeros in the output
    empty: int = 0  # number of these that have no text, or a blank one
    cut: int = 0  # number of rows whose text was cut to fit
    # The first rows of each kind, by its name: counted from 1, in datasets PART:ROW.
    first: Mapping[str, list[Any]] = field(default_factory=dict)

    @property
    def vectors(self) -> int:
        """Number of rows that have a vector."""
        return self.rows - self.invalid

    @classmethod
    def of_invalid(cls, window: TextWindow) -> RowCounts:
        """Count the rows of a window of which no more is known than which have no text."""
        n = len(window.texts)
        chunks = np.ones(n, np.int64)
        chunks[list(window.invalid)] = 0
        nothing = np.zeros((n, 1), np.float32)
        return cls.of(window, EncodedTexts(nothing, chunks, chunks, np.zeros(n, np.bool_)))

    @classmethod
    def of(cls, window: TextWindow, encoded: EncodedTexts) -> RowCounts:
        """Count the rows of a window."""
        invalid = (encoded.chunks == 0) | invalid_rows(encoded.embeddings)
        empty = [
            i
            for i in np.flatnonzero(invalid).tolist()
            if (text := window.texts[i]) is None or (isinstance(text, str) and not text.strip())
        ]
        kinds = {
            "invalid": np.flatnonzero(invalid).tolist(),
            "empty": empty,
            "cut": np.flatnonzero(encoded.truncated).tolist(),
        }
        first = {
            kind: [window.start + i + 1 for i in found[:SHOWN]]
            for kind, found in kinds.items()
            if found
        }
        counts = {kind: len(found) for kind, found in kinds.items()}
        return cls(rows=len(window.texts), **counts, first=first)

    def __add__(self, other: RowCounts) -> RowCounts:
        """Add the counts of rows that come after these."""
        sums = {name: getattr(self, name) + getattr(other, name) for name in COUNTED}
        kinds = {**self.first, **other.first}
        first = {
            kind: [*self.first.get(kind, ()), *other.first.get(kind, ())][:SHOWN] for kind in kinds
        }
        return RowCounts(**sums, first=first)

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as JSON values."""
        return asdict(self)

    def __str__(self) -> str:
        """Name the rows that were not encoded, or not whole; "" where there are none."""
        words = {"invalid": "could not be encoded", "empty": "are empty", "cut": "were cut to fit"}
        return "; ".join(
            f"{getattr(self, kind)} {said} (rows {', '.join(map(str, self.first.get(kind, ())))}"
            f"{' ...' if getattr(self, kind) > SHOWN else ''})"
            for kind, said in words.items()
            if getattr(self, kind)
        )


COUNTED = ("rows", "invalid", "empty", "cut")


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
    for one in fields(EncodedTexts):
        getattr(whole, one.name)[rows] = getattr(part, one.name)


def join(parts: Iterable[EncodedTexts], n: int, plan: EncodePlan) -> EncodedTexts:
    """Join consecutive windows of n texts, without holding more than one window at a time."""
    joined = empty_texts(n, plan.quantizer.width(plan.dimension), plan.quantizer.dtype)
    start = 0
    for part in parts:
        end = start + len(part.truncated)
        place(part, slice(start, end), joined)
        start = end
    return joined
