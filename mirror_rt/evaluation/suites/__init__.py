"""Define the suites: which sets each finds in a folder of data, and how it measures them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from mirror_rt.errors import ConfigError, DataError
from mirror_rt.evaluation.suites import geometry, induction, linking, sentences, words
from mirror_rt.evaluation.suites.base import EvaluationSet, Found, Measured, Outcome, SuiteOptions

__all__ = ["SUITES", "EvaluationSet", "Found", "Measured", "Outcome", "SuiteOptions", "find_sets"]

SUITES: dict[str, Callable[[Path, SuiteOptions], Found]] = {
    "words": words.find_words,
    "sentences": sentences.find_sentences,
    "linking": linking.find_linking,
    "qnli": sentences.find_labelled,
    "clws": words.find_cross_lingual,
    "bli": induction.find_lexicons,
    "geometry": geometry.find_texts,
}


def find_sets(data: Path, suites: list[str], options: SuiteOptions) -> Found:
    """Find the sets of suites, or single ones (SUITE/SET), and say which known ones are missing."""
    if unknown := [name for name in suites if name.partition("/")[0] not in SUITES]:
        raise ConfigError(f"unknown suite {unknown[0]!r}: expected {', '.join(SUITES)} or all")
    if not data.is_dir():
        raise DataError(f"{data} is no folder: --data takes a folder of evaluation sets")
    found = Found([], [])
    for entry in suites:
        name, _, only = entry.partition("/")
        own = SUITES[name](data, options)
        if only:
            every = [*own.sets, *own.left_out]
            there = [one.name for one in every]
            own = Found([one for one in every if one.name == only], [])
            if not own.sets:
                raise DataError(f"{data} has no set {entry}; of {name} it has {', '.join(there)}")
        found = found + own
    if not found.sets:
        raise DataError(
            f"{data} has no set of {', '.join(suites)}: the page 'Evaluate' of the documentation "
            "says under which names they are looked for"
        )
    return found
