"""Read triplets of an anchor, a positive and a hard negative, or make them from inference data."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from mirror_rt.errors import DataError
from mirror_rt.evaluation.readers.tables import find_column
from mirror_rt.io.rows import read_table
from mirror_rt.tokens.validity import check_texts
from mirror_train.data.labelled_readers import read_nli as read_pairs
from mirror_train.data.training_data import TrainingData

_ANCHORS = ("sent0", "anchor", "premise")
_POSITIVES = ("sent1", "positive", "entailment")
_NEGATIVES = ("hard_neg", "negative", "contradiction")

Triplet = tuple[str, str, str]


def read_triplets(path: Path, *, language: str | None = None) -> TrainingData:
    """Read a table with a header and columns of anchors, positives and hard negatives.

    The columns are called `sent0`, `sent1` and `hard_neg`, as in SimCSE's own file, or `anchor`,
    `positive` and `negative`. A `.csv` file has commas and quotes; any other has tabs and no
    quotes.
    """
    table = read_table(path)
    names = [
        find_column(table, _ANCHORS, "anchors"),
        find_column(table, _POSITIVES, "positives"),
        find_column(table, _NEGATIVES, "hard negatives"),
    ]
    if not table.rows:
        raise DataError(f"{path} has no triplets: expected rows below its header")
    for name in names:
        for number, text in zip(table.lines, table.column(name), strict=True):
            check_texts(f"{path}, line {number}, column {name}", text)
    rows = list(zip(*(table.column(name) for name in names), strict=True))
    return _data(path, [(a.strip(), b.strip(), c.strip()) for a, b, c in rows], language)


def read_nli(path: Path, *, language: str | None = None) -> TrainingData:
    """Read SNLI or MultiNLI (JSON lines or TSV) and make triplets of it by `nli_triplets`."""
    pairs = read_pairs(path)
    labels = [pairs.labels[target] for target in pairs.targets]
    triplets = nli_triplets(zip(pairs.first, pairs.second or [], labels, strict=True))
    if not triplets:
        raise DataError(
            f"{path}: no premise has both an entailed and a contradicting sentence, so there are "
            "no triplets"
        )
    return _data(path, triplets, language)


def nli_triplets(rows: Iterable[tuple[str, str, str]]) -> list[Triplet]:
    """Turn rows of (premise, hypothesis, label) into (premise, entailed, contradicting) triplets.

    The entailed hypotheses of a premise are matched with its contradicting ones in order; those
    without a match are left out (Gao et al. 2021, section 4.2).
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


def _data(path: Path, triplets: list[Triplet], language: str | None) -> TrainingData:
    kept = list(dict.fromkeys(triplets))
    return TrainingData.of_pairs(
        [(anchor, positive) for anchor, positive, _ in kept],
        path.name,
        language=language,
        duplicates=len(triplets) - len(kept),
        hard_negatives=[negative for *_, negative in kept],
    )
