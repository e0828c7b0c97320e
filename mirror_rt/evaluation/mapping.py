"""Linear maps between the spaces of two languages, from pairs of rows that correspond.

The steps and defaults of VecMap's supervised mode (Artetxe et al., AAAI 2018: Generalizing and
improving bilingual word embedding mappings with a multi-step framework of linear transformations).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from mirror_rt.errors import DataError
from mirror_rt.vectors.normalization import normalize_rows

__all__ = ["normalized", "orthogonal_procrustes", "vecmap"]

Matrix = npt.NDArray[np.float64]
Rows = npt.NDArray[np.intp]

_REWEIGHT = 0.5  # of both sides


def normalized(vectors: Matrix) -> Matrix:
    """Unit length, centred on the mean of all rows, unit length again; float64 [n, D]."""
    centred = normalize_rows(vectors)
    return normalize_rows(centred - centred.mean(axis=0))


def orthogonal_procrustes(source: Matrix, target: Matrix) -> Matrix:
    """The orthogonal W [D, D] with the least Frobenius norm of source W - target ([n, D] each)."""
    left, _, right = np.linalg.svd(source.T @ target)
    return np.asarray(left @ right)


def vecmap(
    source: Matrix, target: Matrix, source_rows: Rows, target_rows: Rows
) -> tuple[Matrix, Matrix]:
    """Map two languages into one space: whiten, rotate, re-weight, de-whiten.

    Whitening (ZCA, of the rows of the dictionary) and the rotations [U, S, V] = SVD(X'Z) give
    dimensions in the order of their correlation S; both sides are weighted by S^.5; each side is
    de-whitened by its own whitening.

    Args:
        source: float64 [n, D], `normalized`.
        target: float64 [m, D], `normalized`.
        source_rows: [d], of each dictionary entry the row of its word.
        target_rows: [d], of each dictionary entry the row of its translation.

    Returns:
        Both mapped, [n, D] and [m, D].

    Raises:
        DataError: fewer different words in the dictionary than dimensions (whitening is then
            undefined).
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
    """(X'X)^-1/2 and its inverse, both symmetric [D, D], on the directions that X has.

    Behind a layer norm and its centring one has nothing in it: a layer norm's outputs sum to 0.
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
