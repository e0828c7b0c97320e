"""Measure the geometry of the space of a language's words and sentences."""

from __future__ import annotations

import dataclasses
import functools
from pathlib import Path

import numpy as np

from mirror_rt.evaluation.geometry import (
    RANDOM_PAIRS,
    Geometry,
    cosine_pairs,
    evaluate_geometry,
    masked_cosines,
)
from mirror_rt.evaluation.models import EvaluatedModel
from mirror_rt.evaluation.readers.lexicon import read_words
from mirror_rt.evaluation.suites.base import (
    CosineSamples,
    EvaluationSet,
    Found,
    Measured,
    Outcome,
    SuiteOptions,
)

__all__ = ["find_texts"]

_FOLDERS = ("words", "sentences")


def find_texts(data: Path, options: SuiteOptions) -> Found:
    """Find files LANG.txt in words/ and sentences/: the texts on which models are tuned."""
    sets = [
        EvaluationSet(
            "geometry",
            f"{place}-{path.stem}",
            path,
            (path.stem,),
            functools.partial(_measure, path, path.stem, options),
        )
        for place in _FOLDERS
        for path in sorted((data / place).glob("*.txt"))
    ]
    missing = [
        f"geometry/{place}: {data}/{place}/LANG.txt"
        for place in _FOLDERS
        if not any(one.name.startswith(place) for one in sets)
    ]
    return Found(sets, missing)


def _measure(path: Path, language: str, options: SuiteOptions, model: EvaluatedModel) -> Measured:
    texts = read_words(path)
    of, rng = len(texts), np.random.default_rng(options.seed)
    if 0 < options.geometry_texts < of:
        rows = np.sort(rng.choice(of, options.geometry_texts, replace=False))
        texts = [texts[i] for i in rows]
    view = model.of(language)
    geometry = evaluate_geometry(view, texts, seed=options.seed)
    note = f"a sample of {len(texts)} of {of} texts" if len(texts) < of else ""
    outcomes = [
        Outcome(field.name.replace("_", " "), geometry.n, value, ranked=False, note=note)
        for field in dataclasses.fields(Geometry)[1:]
        if (value := getattr(geometry, field.name)) is not None
    ]
    positives = masked_cosines(view, texts, seed=options.seed)
    if positives is None:
        return Measured(outcomes)
    negatives = cosine_pairs(
        view.encode(texts).astype(np.float64), pairs=RANDOM_PAIRS, seed=options.seed
    )
    samples = CosineSamples(positives, negatives, "text and masked copy", "random pairs")
    return Measured(outcomes, samples)
