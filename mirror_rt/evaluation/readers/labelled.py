"""Read pairs with a label: QNLI, question duplicates, entailment."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from mirror_rt.errors import DataError
from mirror_rt.evaluation.readers.tables import find_column, read_any_table
from mirror_rt.evaluation.similarity import find_text_columns
from mirror_rt.tokens.tokenization import check_texts

LABELS = ("label", "is_duplicate", "gold_label")
_POSITIVE = {"1", "1.0", "entailment", "true", "duplicate"}
_NEGATIVE = {"0", "0.0", "not_entailment", "neutral", "contradiction", "false", "not_duplicate"}
# SNLI's labels for pairs on which its annotators did not agree.
_NO_LABEL = {"", "-"}


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
