"""Measure the geometry of the space of a language's words and sentences."""

from __future__ import annotations

import dataclasses
from functools import partial
from pathlib import Path

import numpy as np

from mirror_rt.evaluation.geometry import Geometry, measure_geometry
from mirror_rt.evaluation.models import EvaluatedModel
from mirror_rt.evaluation.readers.tables import read_words
from mirror_rt.evaluation.suites.base import (
    CosineSamples,
    EvaluationSet,
    Found,
    Measured,
    Outcome,
    SuiteOptions,
)

_FOLDERS = ("words", "phrases", "sentences")
# The better direction as far as geometry tells; none of these measures ranks models.
_BETTER = {
    "alignment": "lower",
    "uniformity": "lower",
    "mean_vector_norm": "lower",
    "mean_cosine": "nearer to 0",
}


def find_texts(data: Path, options: SuiteOptions) -> Found:
    """Find files LANG.txt in `_FOLDERS`: the texts on which models are tuned."""
    sets = [
        EvaluationSet(
            "geometry", f"{place}-{path.stem}", path, (path.stem,), partial(_measure, path, options)
        )
        for place in _FOLDERS
        for path in sorted((data / place).glob("*.txt"))
    ]
    missing = [
        f"geometry/{place}: {data}/{place}/LANG.txt"
        for place in ("words", "sentences")
        if not any(one.name.startswith(place) for one in sets)
    ]
    return Found(sets, missing)


def geometry_set(name: str, path: Path, language: str, texts: list[str]) -> EvaluationSet:
    """Return the set of texts that were read from a file."""
    measure = partial(_measure_texts, texts, language, SuiteOptions(geometry_texts=0))
    return EvaluationSet("geometry", name, path, (language,), measure)


def _measure(path: Path, options: SuiteOptions, model: EvaluatedModel) -> Measured:
    return _measure_texts(read_words(path), path.stem, options, model)


def _measure_texts(
    texts: list[str], language: str, options: SuiteOptions, model: EvaluatedModel
) -> Measured:
    of, rng = len(texts), np.random.default_rng(options.seed)
    if 0 < options.geometry_texts < of:
        rows = np.sort(rng.choice(of, options.geometry_texts, replace=False))
        texts = [texts[i] for i in rows]
    geometry, positives, negatives = measure_geometry(model.of(language), texts, options.seed)
    note = f"a sample of {len(texts)} of {of} texts" if len(texts) < of else ""
    outcomes = [
        Outcome(
            field.name.replace("_", " "),
            geometry.n,
            value,
            ranked=False,
            note=note,
            better=_BETTER.get(field.name, "higher"),
        )
        for field in dataclasses.fields(Geometry)[1:]
        if (value := getattr(geometry, field.name)) is not None
    ]
    if positives is None:
        return Measured(outcomes)
    samples = CosineSamples(positives, negatives, "text and masked copy", "random pairs")
    return Measured(outcomes, samples)
