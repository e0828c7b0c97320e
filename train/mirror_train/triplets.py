"""Triplets of an anchor, its positive and a hard negative: as such, or from labelled inference."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from mirror_rt.errors import DataError
from mirror_rt.evaluation.readers.tables import find_column, read_any_table
from mirror_rt.textio import Table, iter_jsonl
from mirror_rt.tokenization import why_invalid
from mirror_train.data import TrainingData, connected_groups

__all__ = ["nli_triplets", "read_nli", "read_triplets"]

_ANCHORS = ("sent0", "anchor", "premise")
_POSITIVES = ("sent1", "positive", "entailment")
_NEGATIVES = ("hard_neg", "negative", "contradiction")

_PREMISES = ("sentence1", "premise")
_HYPOTHESES = ("sentence2", "hypothesis")
_LABELS = ("gold_label", "label")
# "-" is SNLI's, where its annotators did not agree.
_KNOWN = ("entailment", "neutral", "contradiction", "-")

Triplet = tuple[str, str, str]


def read_triplets(path: Path, *, language: str | None = None) -> TrainingData:
    """Read a table with a header and a column each for anchors, positives and hard negatives.

    Columns are called `sent0`, `sent1` and `hard_neg`, as SimCSE's own file has them, or `anchor`,
    `positive` and `negative`. A `.csv` has commas and quotes, any other file tabs and none.

    Raises:
        DataError: missing, empty or not UTF-8; a column is missing, or a text is blank.
    """
    table = read_any_table(path)
    names = [
        find_column(table, _ANCHORS, "anchors"),
        find_column(table, _POSITIVES, "positives"),
        find_column(table, _NEGATIVES, "hard negatives"),
    ]
    _check_texts(table, names)
    rows = list(zip(*(table.column(name) for name in names), strict=True))
    return _data(path, [(a.strip(), b.strip(), c.strip()) for a, b, c in rows], language)


def read_nli(path: Path, *, language: str | None = None) -> TrainingData:
    """Read SNLI or MultiNLI (JSON lines or TSV) and make triplets of it, see `nli_triplets`.

    The columns are `sentence1`, `sentence2` and `gold_label`, as those sets are published, or
    `premise`, `hypothesis` and `label`. Pairs without a gold label (`-`) are left out.

    Raises:
        DataError: missing, empty or not UTF-8; a column is missing, a label unknown, a text of a
            triplet blank, or no premise has both an entailed and a contradicting sentence.
    """
    rows = _jsonl(path) if path.suffix == ".jsonl" else _table(path)
    for number, _, _, label in rows:
        if label not in _KNOWN:
            raise DataError(
                f"{path}, line {number}: label {label!r}, expected one of {', '.join(_KNOWN)}"
            )
    triplets = nli_triplets((premise, other, label) for _, premise, other, label in rows)
    if not triplets:
        raise DataError(
            f"{path}: no premise has both an entailed and a contradicting sentence, so there are "
            "no triplets"
        )
    for triplet in triplets:
        for text in triplet:
            if reason := why_invalid(text):
                raise DataError(f"{path}, text {text!r}: {reason}")
    return _data(path, triplets, language)


def nli_triplets(rows: Iterable[tuple[str, str, str]]) -> list[Triplet]:
    """Make triplets of (premise, hypothesis, label): premise, entailed, contradicting.

    The entailed hypotheses of a premise are matched with its contradicting ones in their order, and
    those that are left over are left out (Gao et al. 2021, section 4.2).
    """
    entailed: dict[str, list[str]] = {}
    contradicting: dict[str, list[str]] = {}
    for premise, hypothesis, label in rows:
        if label == "entailment":
            entailed.setdefault(premise, []).append(hypothesis)
        elif label == "contradiction":
            contradicting.setdefault(premise, []).append(hypothesis)
    return [
        (premise, positive, negative)
        for premise, positives in entailed.items()
        for positive, negative in zip(positives, contradicting.get(premise, []), strict=False)
    ]


def _jsonl(path: Path) -> list[tuple[int, str, str, str]]:
    fields = ("sentence1", "sentence2", "gold_label")
    rows = [
        (number, *map(str, values)) for number, values in enumerate(iter_jsonl(path, *fields), 1)
    ]
    if not rows:
        raise DataError(f"{path} is empty")
    return [(number, a.strip(), b.strip(), label) for number, a, b, label in rows]


def _table(path: Path) -> list[tuple[int, str, str, str]]:
    table = read_any_table(path)
    columns = [
        table.column(find_column(table, names, what))
        for names, what in (
            (_PREMISES, "premises"),
            (_HYPOTHESES, "hypotheses"),
            (_LABELS, "labels"),
        )
    ]
    rows = zip(table.lines, *columns, strict=True)
    return [(number, a.strip(), b.strip(), label.strip()) for number, a, b, label in rows]


def _check_texts(table: Table, names: list[str]) -> None:
    for name in names:
        for number, text in zip(table.lines, table.column(name), strict=True):
            if reason := why_invalid(text):
                raise DataError(f"{table.path}, line {number}, column {name}: {reason}")


def _data(path: Path, triplets: list[Triplet], language: str | None) -> TrainingData:
    kept = list(dict.fromkeys(triplets))
    first, second, hard = ([triplet[i] for triplet in kept] for i in range(3))
    return TrainingData(
        first,
        second,
        connected_groups(zip(first, second, strict=True)),
        path.name,
        language,
        duplicates=len(triplets) - len(kept),
        hard_negatives=hard,
    )
