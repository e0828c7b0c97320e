"""Read labelled texts and pairs in the formats in which they are published."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import numpy as np

from mirror_rt.errors import DataError
from mirror_rt.evaluation.readers.pairs import (
    LABELS,
    NO_LABEL,
    SCORES,
    LabelledCells,
    check_labels,
    find_text_columns,
    labelled_cells,
)
from mirror_rt.evaluation.readers.tables import find_column, read_rows
from mirror_rt.heads.predictor import class_of
from mirror_rt.io.rows import RowFormat, Table, read_table, row_format, row_suffix
from mirror_rt.io.text import iter_lines
from mirror_train.data.labelled_examples import Examples

Parse = Callable[[str], float | int | None]  # a class or a value of a cell; None for neither
Labels = tuple[str, ...]
SENTIMENT_LABELS = ("very negative", "negative", "neutral", "positive", "very positive")
PARAPHRASE_LABELS = ("not duplicate", "duplicate")
NLI_LABELS = ("entailment", "neutral", "contradiction")


def read_sentiment(path: Path) -> Examples:
    """Read a table of sentence (or text) and sentiment (or label), 0 .. 4 as in SST-5."""
    table = read_table(path)
    text = find_column(table, ("sentence", "text"), "texts")
    label = find_column(table, ("sentiment", "label"), "labels")
    cells = zip(table.lines, zip(table.column(text), strict=True), table.column(label), strict=True)
    return _classes(path, cells, SENTIMENT_LABELS)


def read_paraphrases(path: Path) -> Examples:
    """Read a table with two text columns and is_duplicate (or label), 1 or 0, as of Quora."""
    return _classes(path, labelled_cells(path, ("is_duplicate", "label")), PARAPHRASE_LABELS)


def read_nli(path: Path) -> Examples:
    """Read SNLI or MultiNLI as JSON lines or TSV, or a table of premise, hypothesis and label.

    The published files have the label in gold_label. Rows where it is `-` (no agreement) or a text
    is blank are left out and counted.
    """
    suffix, found = row_suffix(path), row_format(path)
    if suffix == ".csv":
        cells: Iterable[LabelledCells] = labelled_cells(path, ("gold_label", "label"))
    elif suffix == ".tsv" or not found.has_fields:
        cells = _nli_rows(path)
    else:
        cells = _nli_records(path, found)

    def parse(cell: str) -> int | None:  # numbers are refused, as files differ in them
        name = cell.strip().lower()
        return NLI_LABELS.index(name) if name in NLI_LABELS else None

    return _examples(path, cells, parse, f"one of {', '.join(NLI_LABELS)}", NLI_LABELS)


def read_similarity(path: Path) -> Examples:
    """Read a table with two text columns and similarity (or score), 0 .. 5."""

    def parse(cell: str) -> float | None:
        value = _finite(cell)
        return value if value is not None and 0 <= value <= 5 else None

    cells = labelled_cells(path, ("similarity", "score"))
    return _examples(path, cells, parse, "a number in 0 .. 5")


def read_labelled(
    path: Path,
    *,
    layer: str = "softmax",
    fields: Sequence[str] = (),
    label_field: str | None = None,
    labels: Sequence[str] = (),
) -> Examples:
    """Read a table of texts, or of pairs, with classes or values; see `pairs.TaskFiles`."""
    label, cells = _labelled_cells(path, layer, fields, label_field)
    values = layer == "regression" or (layer == "cosine" and label.lower() in SCORES)
    if values:
        return _examples(path, cells, _finite, "a finite number")
    rows = list(cells)
    found = {cell.strip() for _, _, cell in rows} - set(NO_LABEL)
    known = tuple(labels) or tuple(sorted(found, key=lambda name: (_finite(name) or 0, name)))
    number = {name: i for i, name in enumerate(known)}
    expected = f"one of {', '.join(known)}"
    return _examples(path, rows, lambda cell: number.get(cell.strip()), expected, known)


def _labelled_cells(
    path: Path, layer: str, fields: Sequence[str], label: str | None
) -> tuple[str, Iterable[LabelledCells]]:
    """Return the name of the column of labels, and the rows of a table with or without a header."""
    if fields and label and all(name.isdecimal() for name in (*fields, label)):
        numbers = [int(name) - 1 for name in (*fields, label)]
        # The STS benchmark's files are called .csv, and have tabs.
        quoted = row_suffix(path) == ".csv" and "\t" not in next(iter_lines(path), "")
        delimiter = "," if quoted else "\t"
        rows = read_rows(path, cells=max(numbers) + 1, delimiter=delimiter, quoted=quoted)
        picked = ((n, [row[i] for i in numbers]) for n, row in rows)
        return label, ((n, tuple(texts), cell) for n, (*texts, cell) in picked)
    table = read_table(path)
    known = {"softmax": (*LABELS, "sentiment"), "regression": SCORES}.get(layer, (*SCORES, *LABELS))
    label = label or find_column(table, known, "labels (see --label-field)")
    if not fields:
        # QNLI has pairs of a question and a sentence.
        alone = [name for name in ("text", "sentence") if name in table.header]
        pair = "question" in table.header
        fields = alone[:1] if alone and not pair else find_text_columns(table, label)
    texts = zip(*map(table.column, fields), strict=True)
    return label, zip(table.lines, texts, table.column(label), strict=True)


def _finite(cell: str) -> float | None:
    try:
        value = float(cell)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def _nli_records(path: Path, found: RowFormat) -> Iterable[LabelledCells]:
    for number, record in found.numbered(path, "sentence1", "sentence2", "gold_label"):
        if wrong := [value for value in record if not isinstance(value, str)]:
            raise DataError(f"{path}, record {number}: expected strings, got {wrong[0]!r:.60}")
        yield number, record[:2], record[2]


def _nli_rows(path: Path) -> Iterable[LabelledCells]:
    """Yield the rows of a TSV; published files have up to 15 columns, often without the last."""
    rows = [(n, line.split("\t")) for n, line in enumerate(iter_lines(path), 1) if line]
    header = Table(path, rows[0][1] if rows else [], [], [])
    label = find_column(header, ("gold_label", "label"), "labels")
    names = (*find_text_columns(header, label), label)
    columns = [header.header.index(name) for name in names]
    for number, row in rows[1:]:
        if not max(columns) < len(row) <= len(header.header):
            raise DataError(
                f"{path}, line {number}: {len(row)} cells, the header has {len(header.header)}"
            )
        yield number, (row[columns[0]], row[columns[1]]), row[columns[2]]


def _classes(path: Path, cells: Iterable[LabelledCells], labels: tuple[str, ...]) -> Examples:
    expected = "one of " + ", ".join(f"{label} ({i})" for i, label in enumerate(labels))
    return _examples(path, cells, lambda cell: class_of(cell, labels), expected, labels)


def _examples(
    path: Path, cells: Iterable[LabelledCells], parse: Parse, expected: str, labels: Labels = ()
) -> Examples:
    """Make examples of classes, or where there are no labels of values."""
    texts, targets, left_out = check_labels(path, cells, parse, expected)
    if not texts:
        raise DataError(f"{path} has no rows with a text and a label")
    sides = [list(map(str.strip, side)) for side in zip(*texts, strict=True)]
    second = sides[1] if len(sides) > 1 else None
    numbers = np.array(targets, np.int64 if labels else np.float64)
    return Examples(sides[0], second, numbers, labels, path.name, left_out)
