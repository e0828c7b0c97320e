"""Read tables of pairs of texts: with human scores, or with labels (QNLI, entailment and such)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from mirror_rt.errors import DataError
from mirror_rt.evaluation.readers.tables import find_column
from mirror_rt.io.rows import Table, read_table
from mirror_rt.tokens.validity import check_texts

T = TypeVar("T")

SCORES = ("score", "similarity", "relatedness_score", "relatedness", "simlex999")
LABELS = ("label", "is_duplicate", "gold_label")
_RELATED = dict.fromkeys(("1", "1.0", "entailment", "true", "duplicate"), True) | dict.fromkeys(
    ("0", "0.0", "not_entailment", "neutral", "contradiction", "false", "not_duplicate"), False
)
# An empty cell, and SNLI's label for pairs on which its annotators did not agree.
NO_LABEL = ("", "-")
TEXT_COLUMNS = [
    ("text1", "text2"),
    ("sentence1", "sentence2"),
    ("sentence_A", "sentence_B"),  # SICK
    ("word1", "word2"),
    ("question1", "question2"),
    ("question", "sentence"),
    ("premise", "hypothesis"),
]


# The line's number in the file, the texts, and the cell of the label.
LabelledCells = tuple[int, tuple[str, ...], str]


@dataclass(frozen=True, slots=True)
class ScoredPairs:
    """A list of n pairs of texts, with their human scores (float64 [n])."""

    first: list[str]
    second: list[str]
    scores: npt.NDArray[np.float64]


def read_scored_pairs(path: str | Path) -> ScoredPairs:
    """Read a table with a header: two text columns, and one of scores, such as `score`.

    The text columns are text1/text2 or another pair of `TEXT_COLUMNS`, or else the only two
    columns besides the scores. A `.csv` has quotes, anything else is a plain TSV.

    Raises:
        DataError: a column is missing, a text is empty, a score is not a finite number (the message
            names the line), or there are no rows.
    """
    path = Path(path)
    table = read_table(path)
    score = find_column(table, SCORES, "scores")
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
        try:
            score = float(cell)
        except ValueError:
            score = math.nan
        if not math.isfinite(score):
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
    for pair in TEXT_COLUMNS:
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
    """A list of n pairs of texts, each of which is related or not."""

    first: list[str]
    second: list[str]
    positive: npt.NDArray[np.bool_]  # bool [n], whether the texts are related
    left_out: int  # number of rows of the file without a label or without a text
    sampled_from: int = 0  # number of the other rows, if these pairs are a sample of them; else 0


def read_labelled_pairs(path: Path, most: int = 0, seed: int = 0) -> LabelledPairs:
    """Read a table with a header, two text columns and a label: a sample of `most` rows, 0 for all.

    Labels are those of GLUE (entailment, not_entailment), of SNLI (entailment against neutral and
    contradiction), or 1 and 0. Rows whose label is blank or `-`, or whose text is blank, are left
    out and counted, because published files contain such rows.
    """
    expected, cells = "1 and 0, or entailment and not_entailment", labelled_cells(path, LABELS)
    texts, related, left_out = check_labels(
        path, cells, lambda cell: _RELATED.get(cell.strip().lower()), expected
    )
    rows = np.arange(len(texts))
    if sampled := 0 < most < len(rows):
        rows = np.sort(np.random.default_rng(seed).choice(rows, most, replace=False))
    positive = np.array(related, dtype=bool)[rows]
    if len(set(positive)) < 2:
        raise DataError(f"{path} has pairs of one label alone: the ROC curve needs both")
    first, second = ([texts[row][side] for row in rows] for side in (0, 1))
    return LabelledPairs(first, second, positive, left_out, len(texts) if sampled else 0)


def labelled_cells(path: Path, labels: Sequence[str]) -> Iterable[LabelledCells]:
    """Yield the rows of a table with two text columns and one of the columns `labels`."""
    table = read_table(path)
    label = find_column(table, labels, "labels")
    texts = zip(*map(table.column, find_text_columns(table, label)), strict=True)
    return zip(table.lines, texts, table.column(label), strict=True)


def check_labels(
    path: Path,
    cells: Iterable[LabelledCells],
    parse: Callable[[str], T | None],
    expected: str,
) -> tuple[list[tuple[str, ...]], list[T], int]:
    """Return the texts and the targets of rows, and how many lack a label or a text.

    `parse` makes a target of a label, and None of a wrong one, which is a DataError that says what
    is `expected`.
    """
    texts, targets, left_out = list[tuple[str, ...]](), list[T](), 0
    for line, row, cell in cells:
        if cell.strip() in NO_LABEL or any(not text.strip() for text in row):
            left_out += 1
            continue
        if (target := parse(cell)) is None:
            raise DataError(f"{path}, line {line}: the label {cell!r:.60}, expected {expected}")
        check_texts(f"{path}, line {line}", *row)
        texts.append(row)
        targets.append(target)
    return texts, targets, left_out
