"""Normalise rows to unit length."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

# A row shorter than this is divided by this number instead, so that a row of zeros stays so.
_SHORTEST = 1e-12


def normalize_rows(rows: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Divide each row of floats [n, D] by its Euclidean length; a row of zeros stays as it is.

    The result has the same type. A row that is not finite holds NaN in it.
    """
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    return np.asarray(rows / np.maximum(lengths, rows.dtype.type(_SHORTEST)))
