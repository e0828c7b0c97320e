"""Read tables of pairs of texts: with human scores, or with labels (QNLI, entailment and such)."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from mirror_rt.errors import DataError
from mirror_rt.evaluation.readers.tables import find_column, read_any_table
from mirror_rt.io.text import Table
from mirror_rt.tokens.tokenization import check_texts

_SCORES = ("score", "similarity", "relatedness_score", "relatedness")
LABELS = ("label", "is_duplicate", "gold_label")
_POSITIVE = {"1", "1.0", "entailment", "true", "duplicate"}
_NEGATIVE = {"0", "0.0", "not_entailment", "neutral", "contradiction", "false", "not_duplicate"}
# SNLI's labels for pairs on which its annotators did not agree.
_NO_LABEL = {"", "-"}
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
    """Read a table with a header: two text columns, and one of scores, such as `score`.

    The text columns are text1/text2 or another pair of `_TEXT_COLUMNS`, or else the only two
    columns besides the scores. A `.csv` has quotes, anything else is a plain TSV.

    Raises:
        DataError: a column is missing, a text is empty, a score is not a finite number (the message
            names the line), or there are no rows.
    """
    table = read_any_table(path)
    score = find_column(table, _SCORES, "scores")
    names = find_text_columns(table, score)
    columns = map(table.column, (*names, score))
    return make_pairs(path, zip(table.lines, *columns, strict=True), names)


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


@dataclass(frozen=True, slots=True)
class LabelledPairs:
    """A list of n pairs of texts, each of which is related or not.

    Attributes:
        positive: bool [n], whether the texts are related.
        left_out: number of rows of the file without a label or without a text.
    """

    first: list[str]
    second: list[str]
    positive: npt.NDArray[np.bool_]
    left_out: int


def read_labelled_pairs(path: Path) -> LabelledPairs:
    """Read a table with a header, two text columns and a label.

    Labels are those of GLUE (entailment, not_entailment), of SNLI (entailment against neutral and
    contradiction), or 1 and 0. Rows whose label is blank or `-`, or whose text is blank, are left
    out and counted, because published files contain such rows.
    """
    table = read_any_table(path)
    label = find_column(table, LABELS, "labels")
    names = find_text_columns(table, label)
    rows = list(zip(table.lines, *map(table.column, names), table.column(label), strict=True))
    kept = [
        (line, a, b, cell.strip().lower())
        for line, a, b, cell in rows
        if cell.strip() not in _NO_LABEL and a.strip() and b.strip()
    ]
    for line, a, b, cell in kept:
        if cell not in _POSITIVE | _NEGATIVE:
            raise DataError(
                f"{path}, line {line}: the label {cell!r} is unknown; expected 1 and 0, or "
                "entailment and not_entailment"
            )
        check_texts(f"{path}, line {line}", a, b)
    positive = np.array([cell in _POSITIVE for *_, cell in kept], dtype=bool)
    if len(set(positive.tolist())) < 2:
        raise DataError(f"{path} has pairs of one label alone: the ROC curve needs both")
    return LabelledPairs(
        [a for _, a, _, _ in kept], [b for _, _, b, _ in kept], positive, len(rows) - len(kept)
    )


def _score(cell: str) -> float:
    try:
        return float(cell)
    except ValueError:
        return math.nan
