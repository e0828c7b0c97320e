"""Similarity against human scores: word similarity and STS (EMNLP 2021, section 3)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from mirror_rt.encoding import EmbeddingModel
from mirror_rt.errors import DataError
from mirror_rt.evaluation.statistics import spearman
from mirror_rt.textio import Table, read_table
from mirror_rt.tokenization import why_invalid

__all__ = ["ScoredPairs", "cosines", "evaluate_similarity", "read_scored_pairs"]

_TEXT_COLUMNS = [("text1", "text2"), ("sentence1", "sentence2"), ("word1", "word2")]


@dataclass(frozen=True, slots=True)
class ScoredPairs:
    """n pairs of texts and their human scores (float64 [n])."""

    first: list[str]
    second: list[str]
    scores: npt.NDArray[np.float64]


def read_scored_pairs(path: Path) -> ScoredPairs:
    """Read a TSV with a header: two text columns and `score`.

    The text columns are text1/text2, sentence1/sentence2 or word1/word2, else the only two
    columns beside `score`.

    Raises:
        DataError: a column is missing, a text is empty, a score is not a finite number (the line
            is named), or there are no rows.
    """
    table = read_table(path)
    first, second = _text_columns(table)
    scores = list(map(_score, table.column("score")))
    if not scores:
        raise DataError(f"{path} has a header but no pairs")
    for line, score, *texts in zip(
        table.lines, scores, table.column(first), table.column(second), strict=True
    ):
        if not math.isfinite(score):
            raise DataError(f"{path}, line {line}: the score is not a finite number")
        for name, text in zip((first, second), texts, strict=True):
            if reason := why_invalid(text):
                raise DataError(f"{path}, line {line}, column {name!r}: {reason}")
    return ScoredPairs(table.column(first), table.column(second), np.array(scores))


def evaluate_similarity(model: EmbeddingModel, pairs: ScoredPairs) -> float:
    """Spearman's rho between the cosines of the pairs and their human scores."""
    return spearman(cosines(model, pairs.first, pairs.second), pairs.scores)


def cosines(model: EmbeddingModel, first: list[str], second: list[str]) -> npt.NDArray[np.float64]:
    """Cosine of each pair of texts, float64 [n]; every distinct text is encoded once."""
    texts = list(dict.fromkeys(first + second))
    row = {text: i for i, text in enumerate(texts)}
    vectors = model.encode(texts, normalize_embeddings=True).astype(np.float64)
    left = vectors[[row[text] for text in first]]
    right = vectors[[row[text] for text in second]]
    return np.asarray(np.einsum("nd,nd->n", left, right))


def _text_columns(table: Table) -> tuple[str, str]:
    for pair in _TEXT_COLUMNS:
        if set(pair) <= set(table.header):
            return pair
    others = [name for name in table.header if name != "score"]
    if len(others) != 2:
        raise DataError(
            f"{table.path} has the columns {', '.join(table.header)}: expected 'score' and two "
            "text columns (text1 and text2, sentence1 and sentence2, or word1 and word2)"
        )
    return others[0], others[1]


def _score(cell: str) -> float:
    try:
        return float(cell)
    except ValueError:
        return math.nan
