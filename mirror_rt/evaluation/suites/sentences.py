"""Evaluate pairs of sentences: with scores (STS, SICK), or related or not (QNLI and similar)."""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from mirror_rt.evaluation.bootstrap import Statistic
from mirror_rt.evaluation.models import EvaluatedModel
from mirror_rt.evaluation.readers import scored
from mirror_rt.evaluation.readers.pairs import LABELS, read_labelled_pairs
from mirror_rt.evaluation.similarity import cosines
from mirror_rt.evaluation.statistics import RankCorrelation, RocAuc
from mirror_rt.evaluation.suites.base import (
    CosineSamples,
    EvaluationSet,
    Found,
    Measured,
    Outcome,
    SuiteOptions,
    in_training,
    language_of,
    scored_set,
)
from mirror_rt.io.rows import read_table

# The seven English sets whose average the papers report.
AVERAGED = ("sts12", "sts13", "sts14", "sts15", "sts16", "stsb-en", "sick-r")
_REPORTED = (*AVERAGED, "sts17-es", "sts17-ar", "stsb-ru")
# Folders in which SentEval, Mirror-BERT and the sets' own archives put the sets.
_FOLDERS = ("", "sts", "STS", "downstream/STS", "STS_data", "STS_data/en")
_BENCHMARK = ("STSBenchmark/sts-test.csv", "stsbenchmark/sts-test.csv", "sts-b-test.txt")
_SICK = (
    "SICK/SICK_test_annotated.txt",
    "SICK_test_annotated.txt",
    "SICK/SICK.txt",
    "SICK.txt",
    "SICK_annotated.txt",
    "sick-r-test.tsv",
    "sick-r-all.tsv",
)
# The labels of GLUE's test set are not public, so papers use its development set.
_QNLI = ("qnli/dev.tsv", "QNLI/dev.tsv", "glue/QNLI/dev.tsv")


def find_sentences(data: Path, options: SuiteOptions) -> Found:
    """Find every STS set in the folder, by the names of its published files."""
    sets: dict[str, EvaluationSet] = {}
    for one in (
        *_years(data),
        *_one_of(data, "stsb-en", _BENCHMARK, scored.read_sts_benchmark),
        *_one_of(data, "sick-r", _SICK, scored.read_sick),
        *_tracks(data),
        *_tables(data),
    ):
        sets.setdefault(one.name, one)
    expected = {name: _expected(data, name) for name in _REPORTED}
    return Found.of("sentences", list(sets.values()), expected)


def _years(data: Path) -> Iterator[EvaluationSet]:
    for year in range(12, 17):
        name = f"sts{year}"
        for folder in (data / place / f"STS{year}-en-test" for place in _FOLDERS):
            if folder.is_dir():
                yield year_set(name, folder)
        note = "all its subsets in one list"
        yield from _one_of(data, name, (f"20{year}.test.tsv",), scored.read_sts_year, note)


def _one_of(
    data: Path, name: str, names: tuple[str, ...], reader: scored.Reader, note: str = ""
) -> Iterator[EvaluationSet]:
    for path in (data / place / file for place in _FOLDERS for file in names):
        if path.is_file():
            yield scored_set("sentences", name, path, ("en",), reader, note)


def _tracks(data: Path) -> Iterator[EvaluationSet]:
    """Find SemEval 2017's sets (STS.input.track3.es-es.txt), in one language or across two."""
    for place in (*_FOLDERS, "sts17", "STS17", "sts2017", "STS2017"):
        for path in sorted((data / place).glob("STS.input.track*.txt")):
            match = re.search(r"\.([a-z]{2})-([a-z]{2})", path.stem)
            if match is not None:
                tags = tuple(dict.fromkeys(match.groups()))
                name = f"sts17-{'-'.join(tags)}"
                yield scored_set("sentences", name, path, tags, scored.read_senteval_file)


def _tables(data: Path) -> Iterator[EvaluationSet]:
    """Find tables with a header in sts/ and pairs/, and stsb-multi-mt's CSV files without one."""
    for path, training in in_training((data / "sts").glob("*.tsv")):
        if path.name not in _SICK and not re.fullmatch(r"20\d\d\.test", path.stem):
            name, tag = _name(path)
            yield scored_set("sentences", name, path, (tag,), training=training)
    for path, training in in_training(
        path for place in ("sts", "stsb-multi-mt") for path in (data / place).glob("stsb-??-*.csv")
    ):
        tag, read = language_of(path), scored.read_stsb_multi
        name = path.stem if training else f"stsb-{tag}"
        yield scored_set("sentences", name, path, (tag,), read, training=training)
    for path, training in in_training((data / "pairs").glob("*.[ct]sv")):
        if {"score", "similarity", "relatedness_score"} & set(read_table(path).header):
            name, tag = f"pairs-{path.stem}", language_of(path)
            yield scored_set("sentences", name, path, (tag,), training=training)


def _name(path: Path) -> tuple[str, str | None]:
    """Return the name and the language of a table: of an averaged set in any order of the parts."""
    tag = language_of(path)
    known = re.sub(r"[-._](test|en)(?=[-._]|$)", "", path.stem)
    if known in AVERAGED and tag in (None, "en"):
        return known, "en"
    return re.sub(r"[-._]test$", "", path.stem), tag


def _expected(data: Path, name: str) -> str:
    if name == "stsb-en":
        return f"{data}/sts/STSBenchmark/sts-test.csv or {data}/sts/stsb-en-test.tsv"
    if name == "sick-r":
        return f"{data}/SICK/SICK_test_annotated.txt or {data}/sts/sick-r-all.tsv"
    if name.startswith("sts17"):
        tag = name.partition("-")[2]
        return f"{data}/sts17/STS.input.track*.{tag}-{tag}.txt"
    if name.startswith("stsb"):
        return f"{data}/sts/{name}-test.tsv"
    return (
        f"{data}/STS/{name.upper()}-en-test (SentEval) or {data}/STS_data/en/20{name[3:]}.test.tsv"
    )


def year_set(name: str, folder: Path) -> EvaluationSet:
    """Return the set of a year of STS, a folder of STS.input.SUBSET.txt and STS.gs.SUBSET.txt."""
    measure = functools.partial(_subsets, folder)
    return EvaluationSet("sentences", name, folder, ("en",), measure)


def _subsets(folder: Path, model: EvaluatedModel) -> Measured:
    """Join a year's subsets in both usual ways: all pairs in one list, and the mean of the rhos."""
    subsets = list(scored.read_senteval(folder).values())
    found = [cosines(model.of("en"), pairs.first, pairs.second) for pairs in subsets]
    sizes = [len(some) for some in found]
    whole = RankCorrelation(np.concatenate(found), np.concatenate([p.scores for p in subsets]))
    mean = _mean(
        [RankCorrelation(some, p.scores) for some, p in zip(found, subsets, strict=True)], sizes
    )
    groups = np.repeat(np.arange(len(sizes)), sizes)
    count = f"{len(sizes)} subsets"
    joined = Outcome.of("spearman", sum(sizes), whole, note=f"all pairs of {count} in one list")
    note = f"unweighted mean of the rhos of {count}"
    name = "spearman, mean of subsets"
    return Measured([joined, Outcome.of(name, sum(sizes), mean, groups=groups, note=note)])


def _mean(parts: list[RankCorrelation], sizes: list[int]) -> Statistic:
    ends = np.cumsum(sizes)[:-1]
    return lambda weights: float(
        np.mean([rho(w) for rho, w in zip(parts, np.split(weights, ends), strict=True)])
    )


def find_labelled(data: Path, options: SuiteOptions) -> Found:
    """Find QNLI, and every table of labelled pairs in pairs/."""
    found = [data / name for name in _QNLI if (data / name).is_file()][:1]
    sets = [_labelled_set("qnli", path, "en", options) for path in found]
    for path, training in in_training((data / "pairs").glob("*.[ct]sv")):
        if set(LABELS) & set(read_table(path).header):
            one = _labelled_set(path.stem, path, language_of(path), options)
            sets.append(dataclasses.replace(one, training=training))
    return Found.of("qnli", sets, {"qnli": f"{data}/qnli/dev.tsv"})


def _labelled_set(
    name: str, path: Path, language: str | None, options: SuiteOptions
) -> EvaluationSet:
    measure = functools.partial(_measure_labelled, path, language, options)
    return EvaluationSet("qnli", name, path, (language,), measure)


def _measure_labelled(
    path: Path, language: str | None, options: SuiteOptions, model: EvaluatedModel
) -> Measured:
    pairs = read_labelled_pairs(path, options.labelled_pairs, options.seed)
    found = cosines(model.of(language), pairs.first, pairs.second)
    notes = []
    if pairs.sampled_from:
        notes.append(f"a random sample of {len(found)} of {pairs.sampled_from} pairs")
    if pairs.left_out:
        notes.append(f"{pairs.left_out} rows without a label or a text left out")
    note = "; ".join(notes)
    outcome = Outcome.of("ROC AUC", len(found), RocAuc(found, pairs.positive), note=note)
    # Of unit vectors |x - y|^2 is 2 - 2 cos(x, y); BERT-CF, section 6.3, on these pairs alone.
    distances, positive = 2 - 2 * found, pairs.positive.astype(np.float64)
    near = np.exp(-2 * distances)
    geometry: dict[str, Statistic] = {
        "alignment": lambda w: float((w * positive) @ distances / max(float(w @ positive), 1.0)),
        "uniformity": lambda w: float(np.log(w @ near / w.sum())),
    }
    ones = np.ones(len(found))
    shape = [
        Outcome(name, len(found), of(ones), of, ranked=False, better="lower", note="of the pairs")
        for name, of in geometry.items()
    ]
    samples = CosineSamples(
        found[pairs.positive], found[~pairs.positive], "labelled related", "labelled not"
    )
    return Measured([outcome, *shape], samples)
