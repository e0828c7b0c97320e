"""Measure how well cosines tell pairs labelled as related from the others (QNLI and similar)."""

from __future__ import annotations

import functools
from pathlib import Path

from mirror_rt.evaluation.models import EvaluatedModel
from mirror_rt.evaluation.readers.labelled import LABELS, read_labelled_pairs
from mirror_rt.evaluation.readers.tables import read_any_table
from mirror_rt.evaluation.similarity import cosines
from mirror_rt.evaluation.statistics import RocAuc
from mirror_rt.evaluation.suites.base import (
    CosineSamples,
    EvaluationSet,
    Found,
    Measured,
    Outcome,
    SuiteOptions,
    evaluation_splits,
    language_of,
)

# The labels of GLUE's test set are not public, so papers use its development set.
_QNLI = ("qnli/dev.tsv", "QNLI/dev.tsv", "glue/QNLI/dev.tsv")


def find_labelled(data: Path, options: SuiteOptions) -> Found:
    """Find QNLI, and every table of labelled pairs in pairs/."""
    found = [data / name for name in _QNLI if (data / name).is_file()][:1]
    sets = [_set("qnli", path, "en") for path in found]
    for path in evaluation_splits((data / "pairs").glob("*.[ct]sv")):
        if set(LABELS) & set(read_any_table(path).header):
            sets.append(_set(path.stem, path, language_of(path)))
    return Found(sets, [] if found else [f"qnli/qnli: {data}/qnli/dev.tsv"])


def _set(name: str, path: Path, language: str | None) -> EvaluationSet:
    measure = functools.partial(_measure, path, language)
    return EvaluationSet("qnli", name, path, (language,), measure)


def _measure(path: Path, language: str | None, model: EvaluatedModel) -> Measured:
    pairs = read_labelled_pairs(path)
    found = cosines(model.of(language), pairs.first, pairs.second)
    note = f"{pairs.left_out} rows without a label or a text left out" if pairs.left_out else ""
    outcome = Outcome.of("ROC AUC", len(found), RocAuc(found, pairs.positive), note=note)
    samples = CosineSamples(
        found[pairs.positive], found[~pairs.positive], "labelled related", "labelled not"
    )
    return Measured([outcome], samples)
