"""Map the spaces of two languages onto each other linearly, from pairs of corresponding rows.

Steps and defaults are those of VecMap's supervised mode (Artetxe et al., AAAI 2018: Generalizing
and improving bilingual word embedding mappings with a multi-step framework of linear
transformations).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from mirror_rt.errors import DataError
from mirror_rt.vectors.normalization import normalize_rows

__all__ = ["normalized", "orthogonal_procrustes", "vecmap"]

Matrix = npt.NDArray[np.float64]
Rows = npt.NDArray[np.intp]

_REWEIGHT = 0.5  # exponent of the correlations, for both sides


def normalized(vectors: Matrix) -> Matrix:
    """Scale rows to unit length, centre them on their mean, and rescale them; float64 [n, D]."""
    centred = normalize_rows(vectors)
    return normalize_rows(centred - centred.mean(axis=0))


def orthogonal_procrustes(source: Matrix, target: Matrix) -> Matrix:
    """Return the orthogonal W [D, D] with the least Frobenius norm of source W - target [n, D]."""
    left, _, right = np.linalg.svd(source.T @ target)
    return np.asarray(left @ right)


def vecmap(
    source: Matrix, target: Matrix, source_rows: Rows, target_rows: Rows
) -> tuple[Matrix, Matrix]:
    """Map two languages into one space: whiten, rotate, re-weight, de-whiten.

    Whitening (ZCA, computed from the rows of the dictionary) and the rotations [U, S, V] = SVD(X'Z)
    give dimensions in the order of their correlations S. Both sides are weighted by S^.5, and each
    side is de-whitened with its own whitening.

    Args:
        source: float64 [n, D], `normalized`.
        target: float64 [m, D], `normalized`.
        source_rows: [d], for each dictionary entry the row of its word.
        target_rows: [d], for each dictionary entry the row of its translation.

    Returns:
        Both mapped, [n, D] and [m, D].

    Raises:
        DataError: the dictionary has fewer different words than dimensions, so that whitening is
            undefined.
    """
    x, x_inverse = _whitening(source[source_rows], "source")
    z, z_inverse = _whitening(target[target_rows], "target")
    left, correlation, right = np.linalg.svd(
        (source[source_rows] @ x).T @ (target[target_rows] @ z)
    )
    weights = correlation**_REWEIGHT
    return (
        ((source @ x @ left) * weights) @ (left.T @ x_inverse @ left),
        ((target @ z @ right.T) * weights) @ (right @ z_inverse @ right.T),
    )


def _whitening(vectors: Matrix, side: str) -> tuple[Matrix, Matrix]:
    """Return (X'X)^-1/2 and its inverse, symmetric [D, D], on the directions that X has.

    After a layer norm and centring, X is 0 in one direction: a layer norm's outputs sum to 0.
    """
    if (distinct := len(np.unique(vectors, axis=0))) < vectors.shape[1]:
        raise DataError(
            f"whitening needs {vectors.shape[1]} different {side} words in the dictionary, there "
            f"are {distinct} (of {len(vectors)} entries): use a larger dictionary"
        )
    _, values, directions = np.linalg.svd(vectors, full_matrices=False)
    kept = values > values[0] * 1e-6
    values, directions = values[kept], directions[kept]
    return (directions.T / values) @ directions, (directions.T * values) @ directions
