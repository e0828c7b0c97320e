"""Store embeddings in fewer bytes: float16, 8-bit codes, packed bits (csrc/vector_ops/).

For the same ranges, the codes are those of sentence-transformers' `quantize_embeddings`. Without
ranges the two differ: see `unit_ranges`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from mirror_rt import _core
from mirror_rt.errors import ConfigError, Setting

EmbeddingPrecision = Literal["float32", "float16", "int8", "uint8", "binary", "ubinary"]
_PRECISIONS = get_args(EmbeddingPrecision)
Embeddings = npt.NDArray[Any]
Ranges = npt.NDArray[np.float32]

# In multiples of 1 / sqrt(D), the root mean square of the components of a unit vector. The largest
# component over English words and sentences was 6.4 times that (all-MiniLM-L6-v2,
# multilingual-e5-small, one tuned model).
_UNIT_RANGE = 8.0


def unit_ranges(dimension: int) -> Ranges:
    """Return ranges (float32 [2, D]) for unit vectors without calibration, the same for all D.

    The range extends 8 root mean squares to each side of zero (8 / sqrt(D), at most 1), so that
    values are rarely clipped. As all dimensions have the same scale, dot products of codes keep the
    order of the cosines. As the range is fixed, the code of a text does not depend on other texts.
    """
    bound = min(1.0, _UNIT_RANGE / dimension**0.5)
    return np.full((2, dimension), [[-bound], [bound]], dtype=np.float32)


def calibration_ranges(embeddings: npt.ArrayLike) -> Ranges:
    """Return smallest and largest value of every dimension of sample embeddings: float32 [2, D].

    Raises:
        ConfigError: the sample is not [n, D] of at least two rows, or has a non-finite value.
    """
    sample = _as_floats(embeddings, "calibration_embeddings")
    if sample.ndim != 2 or len(sample) < 2:
        raise ConfigError(
            f"calibration_embeddings must be [n, D] with n of at least 2, got {list(sample.shape)}"
        )
    return checked_ranges(np.stack([sample.min(axis=0), sample.max(axis=0)]), sample.shape[1])


@dataclass(frozen=True, slots=True)
class Quantizer:
    """Converts float32 rows to a precision.

    Attributes:
        precision: precision of the result.
        ranges: float32 [2, D] for `int8` and `uint8`, else None.
        nan_as_zero: whether NaN becomes 0 first, so that such rows have a code.
    """

    precision: EmbeddingPrecision
    ranges: Ranges | None = None
    nan_as_zero: bool = False

    @classmethod
    def make(
        cls,
        precision: EmbeddingPrecision,
        dimension: int,
        ranges: npt.ArrayLike | None,
        *,
        unit: bool,
    ) -> Quantizer:
        """Check the options, and make a quantizer of them for vectors of `dimension` numbers.

        If they are of unit length, `unit_ranges` can stand in for ranges.
        """
        if precision not in _PRECISIONS:
            names = ", ".join(_PRECISIONS)
            raise ConfigError(field="precision", expected=f"one of {names}", value=precision)
        if precision not in ("int8", "uint8"):
            if ranges is not None:
                raise ConfigError(Setting("ranges"), f" are for int8 and uint8, not {precision}")
            return cls(precision)
        if ranges is not None:
            return cls(precision, checked_ranges(ranges, dimension))
        if not unit:
            raise ConfigError(
                f"precision {precision!r} of vectors that are not of unit length needs ranges: "
                "give those of calibration_ranges, or normalise"
            )
        return cls(precision, unit_ranges(dimension))

    def width(self, dimension: int) -> int:
        """Return the columns of the result; binary precisions have eight dimensions per byte."""
        return -(-dimension // 8) if self.precision in ("binary", "ubinary") else dimension

    @property
    def dtype(self) -> np.dtype[Any]:
        """The data type of the result."""
        names = {"binary": "int8", "ubinary": "uint8"}
        return np.dtype(names.get(self.precision, self.precision))

    def __call__(self, vectors: npt.NDArray[np.float32]) -> Embeddings:
        """Quantise float32 [n, D] to [n, width]."""
        if self.nan_as_zero:
            vectors = np.where(np.isnan(vectors), np.float32(0), vectors)
        if self.precision == "float32":
            return vectors
        if self.precision == "float16":
            return vectors.astype(np.float16)
        if self.ranges is None:
            return self._pack(vectors)
        starts, ends = self.ranges
        steps = (ends - starts) / np.float32(255)
        steps[steps == 0] = 1
        try:
            codes = _core.quantize_rows(
                np.ascontiguousarray(vectors), starts, steps, signed=self.precision == "int8"
            )
        except ValueError as error:
            raise ConfigError(f"no {self.precision} code for NaN: {error}") from error
        return codes.view(self.dtype)

    def _pack(self, vectors: npt.NDArray[np.float32]) -> Embeddings:
        # This needs no C++: numpy's comparison and packbits together cost no more than a copy of
        # the vectors (benchmarks/encode/vector_ops.py).
        bits = np.packbits(vectors > 0, axis=-1)
        if (missing := np.flatnonzero(np.isnan(vectors).any(axis=1))).size:
            raise ConfigError(f"no {self.precision} code for NaN: row {missing[0]} holds NaN")
        return bits if self.precision == "ubinary" else (bits ^ 0x80).view(np.int8)


def quantize_embeddings(
    embeddings: npt.ArrayLike,
    precision: EmbeddingPrecision,
    ranges: npt.ArrayLike | None = None,
    calibration_embeddings: npt.ArrayLike | None = None,
) -> Embeddings:
    """Convert embeddings to another precision.

    `int8` and `uint8` divide the range of every dimension into 255 steps; values outside get the
    nearest code. `binary` and `ubinary` keep the sign of every dimension, eight to a byte, the
    first dimension in the highest bit; `binary` is `ubinary` minus 128.

    Args:
        embeddings: float [n, D] or [D].
        precision: precision of the result.
        ranges: [2, D], lower and upper bound of every dimension, for `int8` and `uint8`.
        calibration_embeddings: [n, D], sample to take the ranges from (`calibration_ranges`). If
            neither is given, embeddings must be unit vectors, and `unit_ranges` are used.

    Returns:
        [n, D], or [n, D / 8 rounded up] for the binary precisions; without n for embeddings [D].

    Raises:
        ConfigError: an argument has an unusable type, shape or value.
    """
    vectors = _as_floats(embeddings, "embeddings")
    if vectors.ndim not in (1, 2) or vectors.shape[-1] == 0:
        raise ConfigError(f"embeddings must be [n, D] or [D], got {list(vectors.shape)}")
    rows = np.atleast_2d(vectors)
    if ranges is not None and calibration_embeddings is not None:
        raise ConfigError("give ranges or calibration_embeddings, not both")
    if calibration_embeddings is not None:
        ranges = calibration_ranges(calibration_embeddings)
    unit = precision in ("int8", "uint8") and ranges is None
    unit = unit and bool(np.all(np.abs(np.einsum("nd,nd->n", rows, rows) - 1) < 2e-2))
    quantized = Quantizer.make(precision, rows.shape[1], ranges, unit=unit)(rows)
    return quantized[0] if vectors.ndim == 1 else quantized


def _as_floats(values: npt.ArrayLike, name: str) -> npt.NDArray[np.float32]:
    array = np.asarray(values)
    if not np.issubdtype(array.dtype, np.floating):
        raise ConfigError(f"{name} must be floating-point numbers, got {array.dtype}")
    return array.astype(np.float32, copy=False)


def checked_ranges(values: npt.ArrayLike, dimension: int) -> Ranges:
    """Return ranges as float32 [2, D]; raise ConfigError if they are unusable."""
    ranges = _as_floats(values, "ranges")
    if ranges.shape != (2, dimension):
        raise ConfigError(field="ranges", expected=f"[2, {dimension}]", value=list(ranges.shape))
    if not np.isfinite(ranges).all() or (ranges[0] > ranges[1]).any():
        raise ConfigError(
            Setting("ranges"), " must be finite, with no lower bound above its upper bound"
        )
    return np.ascontiguousarray(ranges)
