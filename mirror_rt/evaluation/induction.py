"""Induce bilingual lexicons: find translations as nearest neighbours across mapped spaces.

The spaces are mapped linearly, from pairs of corresponding rows. Steps and defaults of `vecmap` are
those of VecMap's supervised mode (Artetxe et al., AAAI 2018: Generalizing and improving bilingual
word embedding mappings with a multi-step framework of linear transformations).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from mirror_rt.encoding.batch_encoder import EmbeddingModel
from mirror_rt.errors import DataError
from mirror_rt.vectors.normalization import normalize_rows

Matrix = npt.NDArray[np.float64]
Rows = npt.NDArray[np.intp]
Entries = list[tuple[str, str]]

_CHUNK = 1024  # number of queries whose similarities to a whole vocabulary are in memory at once
NEIGHBOURS = 10  # of CSLS, as in Lample et al. 2018
_REWEIGHT = 0.5  # exponent of the correlations, for both sides


@dataclass(frozen=True, slots=True)
class Lexicon:
    """A dictionary to learn from, one to test on, and the words to search."""

    train: Entries  # pairs (word, translation)
    test: Entries  # pairs (word, translation); a word in several pairs has several right answers
    source: list[str]  # vocabulary of the source language, with the words of both dictionaries
    target: list[str]  # vocabulary of the target language, likewise

    @classmethod
    def make(
        cls, train: Entries, test: Entries, source: Iterable[str] = (), target: Iterable[str] = ()
    ) -> Lexicon:
        """Join the words of the dictionaries with more words of the two languages, if any."""
        words, translations = zip(*train, *test, strict=True)
        own, other = dict.fromkeys([*words, *source]), dict.fromkeys([*translations, *target])
        return cls(train, test, list(own), list(other))


def induce(source: EmbeddingModel, target: EmbeddingModel, lexicon: Lexicon) -> dict[str, Matrix]:
    """Find translations with CSLS after `orthogonal_procrustes` and after `vecmap`.

    The result has for each mapping float64 [q]: 1 for each test word that got a right translation,
    else 0.
    """
    x = normalized(source.encode(lexicon.source).astype(np.float64))
    z = normalized(target.encode(lexicon.target).astype(np.float64))
    if x.shape[1] != z.shape[1]:
        raise DataError(
            f"the source vectors have {x.shape[1]} dimensions, the target vectors {z.shape[1]}: "
            "mapping needs equal numbers"
        )
    source_row = {word: i for i, word in enumerate(lexicon.source)}
    target_row = {word: i for i, word in enumerate(lexicon.target)}
    a = np.array([source_row[word] for word, _ in lexicon.train])
    b = np.array([target_row[word] for _, word in lexicon.train])
    gold: dict[str, set[int]] = {}
    for word, translation in lexicon.test:
        gold.setdefault(word, set()).add(target_row[translation])
    queries = np.array([source_row[word] for word in gold])
    hits = {}
    for name, (mapped, fixed) in {
        "procrustes": (x @ orthogonal_procrustes(x[a], z[b]), z),
        "vecmap": vecmap(x, z, a, b),
    }.items():
        nearest = csls_nearest(mapped, fixed, queries)
        hits[name] = np.array(
            [float(found in right) for found, right in zip(nearest, gold.values(), strict=True)]
        )
    return hits


def csls_nearest(source: Matrix, target: Matrix, queries: Rows, *, k: int = NEIGHBOURS) -> Rows:
    """Return the nearest row of `target` to some rows of `source` by CSLS (Lample et al. 2018).

    CSLS(x, z) = 2 cos(x, z) - r(x) - r(z), where r is the mean cosine with the k nearest words of
    the other language (all, if there are fewer). r(x) is the same for every z and therefore left
    out. Both vocabularies are whole, float64 [n, D], mapped, and [m, D]; `queries` are [q] row
    numbers in `source`, and the result is [q] row numbers in `target`.
    """
    x, z = (normalize_rows(matrix).astype(np.float32) for matrix in (source, target))
    neighbours = min(k, len(x))
    hubness = np.empty(len(z), dtype=np.float32)
    for start in range(0, len(z), _CHUNK):
        cosine = z[start : start + _CHUNK] @ x.T
        best = np.partition(cosine, -neighbours, axis=1)[:, -neighbours:]
        hubness[start : start + _CHUNK] = best.mean(axis=1)
    nearest = np.empty(len(queries), dtype=np.intp)
    for start in range(0, len(queries), _CHUNK):
        cosine = x[queries[start : start + _CHUNK]] @ z.T
        nearest[start : start + _CHUNK] = (2 * cosine - hubness).argmax(axis=1)
    return nearest


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

    Both are float64, [n, D] and [m, D], `normalized`, and so is the result. For each of d entries
    of the dictionary, the rows [d] are those of its word and of its translation.
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
