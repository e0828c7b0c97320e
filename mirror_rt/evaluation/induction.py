"""Induce bilingual lexicons: find translations as nearest neighbours across mapped spaces."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from mirror_rt.encoding.batch_encoder import EmbeddingModel
from mirror_rt.errors import DataError
from mirror_rt.evaluation.mapping import normalized, orthogonal_procrustes, vecmap
from mirror_rt.vectors.normalization import normalize_rows

__all__ = ["Induction", "Lexicon", "csls_nearest", "induce"]

Matrix = npt.NDArray[np.float64]
Entries = list[tuple[str, str]]

_CHUNK = 1024  # number of queries whose similarities to a whole vocabulary are in memory at once
NEIGHBOURS = 10  # of CSLS, as in Lample et al. 2018


@dataclass(frozen=True, slots=True)
class Lexicon:
    """A dictionary to learn from, one to test on, and the words to search.

    Attributes:
        train: pairs (word, translation).
        test: pairs (word, translation); a word in several pairs has several right answers.
        source: vocabulary of the source language, with the words of both dictionaries.
        target: vocabulary of the target language, likewise.
    """

    train: Entries
    test: Entries
    source: list[str]
    target: list[str]

    @classmethod
    def make(
        cls,
        train: Entries,
        test: Entries,
        *,
        source: Iterable[str] = (),
        target: Iterable[str] = (),
    ) -> Lexicon:
        """Join the words of the dictionaries with more words of the two languages, if any."""
        entries = [*train, *test]
        return cls(
            train,
            test,
            list(dict.fromkeys([*(a for a, _ in entries), *source])),
            list(dict.fromkeys([*(b for _, b in entries), *target])),
        )


@dataclass(frozen=True, slots=True)
class Induction:
    """The result of an induction: which of the q test words got a right translation.

    Attributes:
        queries: the test words.
        hits: maps the name of a mapping to float64 [q] of 1 and 0.
    """

    queries: list[str]
    hits: dict[str, Matrix]


def induce(source: EmbeddingModel, target: EmbeddingModel, lexicon: Lexicon) -> Induction:
    """Find translations with CSLS after `orthogonal_procrustes` and after `vecmap`.

    Raises:
        DataError: the vectors of the two languages differ in length, or the training dictionary is
            too small to learn from.
    """
    x = normalized(source.encode(lexicon.source).astype(np.float64))
    z = normalized(target.encode(lexicon.target).astype(np.float64))
    if x.shape[1] != z.shape[1]:
        raise DataError(
            f"the source vectors have {x.shape[1]} dimensions, the target vectors {z.shape[1]}: "
            "mapping needs as many"
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
    return Induction(list(gold), hits)


def csls_nearest(
    source: Matrix, target: Matrix, queries: npt.NDArray[np.intp], *, k: int = NEIGHBOURS
) -> npt.NDArray[np.intp]:
    """Return the nearest row of `target` to some rows of `source` by CSLS (Lample et al. 2018).

    CSLS(x, z) = 2 cos(x, z) - r(x) - r(z), where r is the mean cosine with the k nearest words of
    the other language (all, if there are fewer). r(x) is the same for every z and therefore left
    out.

    Args:
        source: float64 [n, D], the whole mapped vocabulary.
        target: float64 [m, D], the whole vocabulary.
        queries: [q] row numbers in `source`; the result is [q] row numbers in `target`.
        k: number of neighbours.
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
