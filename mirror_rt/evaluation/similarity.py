"""Compare with human similarity scores: word similarity and STS (EMNLP 2021, section 3)."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from mirror_rt.encoding.batch_encoder import EmbeddingModel
from mirror_rt.errors import DataError
from mirror_rt.evaluation.statistics import spearman
from mirror_rt.io.text import Table, read_table
from mirror_rt.tokens.tokenization import check_texts

_TEXT_COLUMNS = [
    ("text1", "text2"),
    ("sentence1", "sentence2"),
    ("word1", "word2"),
    ("question1", "question2"),
    ("question", "sentence"),
    ("premise", "hypothesis"),
]


@dataclass(frozen=True, slots=True)
class ScoredPairs:
    """A list of n pairs of texts, with their human scores (float64 [n])."""

    first: list[str]
    second: list[str]
    scores: npt.NDArray[np.float64]


def read_scored_pairs(path: Path) -> ScoredPairs:
    """Read a TSV with a header: two text columns and `score`.

    The text columns are text1/text2 or another pair of `_TEXT_COLUMNS`, or else the only two
    columns besides `score`.

    Raises:
        DataError: a column is missing, a text is empty, a score is not a finite number (the message
            names the line), or there are no rows.
    """
    return table_pairs(read_table(path), "score")


def table_pairs(table: Table, score: str) -> ScoredPairs:
    """Read the pairs of texts of a table, with the scores in the column `score`."""
    names = find_text_columns(table, score)
    columns = map(table.column, (*names, score))
    return make_pairs(table.path, zip(table.lines, *columns, strict=True), names)


def make_pairs(
    path: Path,
    rows: Iterable[tuple[int, str, str, str]],
    names: tuple[str, str] = ("first text", "second text"),
) -> ScoredPairs:
    """Check the rows of a file: line number, two texts, and the cell of their score."""
    first, second, scores = list[str](), list[str](), list[float]()
    for line, a, b, cell in rows:
        if not math.isfinite(score := _score(cell)):
            raise DataError(f"{path}, line {line}: the score {cell!r} is not a finite number")
        for name, text in zip(names, (a, b), strict=True):
            check_texts(f"{path}, line {line}, column {name!r}", text)
        first.append(a)
        second.append(b)
        scores.append(score)
    if not scores:
        raise DataError(f"{path} has a header but no pairs")
    return ScoredPairs(first, second, np.array(scores))


def evaluate_similarity(model: EmbeddingModel, pairs: ScoredPairs) -> float:
    """Return Spearman's rho between the cosines of the pairs and their human scores."""
    return spearman(cosines(model, pairs.first, pairs.second), pairs.scores)


def cosines(
    model: EmbeddingModel,
    first: list[str],
    second: list[str],
    second_model: EmbeddingModel | None = None,
) -> npt.NDArray[np.float64]:
    """Return the cosine of each pair of texts, float64 [n]; each distinct text is encoded once.

    The second texts may have an encoder of their own, such as another language's.
    """
    if second_model is None:
        texts = list(dict.fromkeys(first + second))
        vectors = _unit(model, texts)
        row = {text: i for i, text in enumerate(texts)}
        left = vectors[[row[text] for text in first]]
        right = vectors[[row[text] for text in second]]
    else:
        left, right = _unit(model, first), _unit(second_model, second)
    if left.shape[1] != right.shape[1]:
        raise DataError(
            f"vectors of {left.shape[1]} and of {right.shape[1]} dimensions have no cosine"
        )
    return np.asarray(np.einsum("nd,nd->n", left, right))


def find_text_columns(table: Table, score: str) -> tuple[str, str]:
    """Return the columns of texts: a known pair of names, or else the only two besides `score`."""
    for pair in _TEXT_COLUMNS:
        if set(pair) <= set(table.header):
            return pair
    others = [name for name in table.header if name != score]
    if len(others) != 2:
        raise DataError(
            f"{table.path} has the columns {', '.join(table.header)}: expected {score!r} and two "
            "text columns (text1 and text2, sentence1 and sentence2, or word1 and word2)"
        )
    return others[0], others[1]


def _unit(model: EmbeddingModel, texts: list[str]) -> npt.NDArray[np.float64]:
    return model.encode(texts, normalize_embeddings=True).astype(np.float64)


def _score(cell: str) -> float:
    try:
        return float(cell)
    except ValueError:
        return math.nan
