"""Evaluate bilingual lexicon induction on pairs of dictionaries."""

from __future__ import annotations

import functools
import re
from pathlib import Path

from mirror_rt.errors import DataError
from mirror_rt.evaluation.induction import Lexicon, induce
from mirror_rt.evaluation.models import EvaluatedModel
from mirror_rt.evaluation.readers.tables import read_lexicon, read_words
from mirror_rt.evaluation.suites.base import EvaluationSet, Found, Measured, SuiteOptions, accuracy

# The pairs of table 6 of the paper.
_REPORTED = ("en-fr", "en-it", "en-ru", "en-tr", "it-fr", "ru-fr")
_DESCRIBED = {
    "procrustes": "orthogonal Procrustes",
    "vecmap": "VecMap: whitened, re-weighted, de-whitened",
}


def find_lexicons(data: Path, options: SuiteOptions) -> Found:
    """Find dictionaries in bli/: A-B.train.tsv and A-B.test.tsv, or with xling-eval's names."""
    folder = data / "bli"
    sets = []
    for test in sorted(folder.rglob("*.tsv")):
        match = re.fullmatch(r"(?:yacle\.test\.freq\.2k\.)?([a-z]+)-([a-z]+)(?:\.test)?", test.stem)
        if match is None or ("yacle" in test.name) == test.stem.endswith(".test"):
            continue
        train = test.with_name(
            test.name.replace("test.freq.2k", "train.freq.5k").replace(".test.", ".train.")
        )
        source, target = match.groups()
        measure = functools.partial(_measure, data, train, test, source, target)
        name = f"{source}-{target}"
        sets.append(EvaluationSet("bli", name, test, (source, target), measure))
    where = f"{folder}/{{0}}.train.tsv and .test.tsv, or xling-eval's {folder}/{{0}}/"
    return Found.of("bli", sets, {name: where.format(name) for name in _REPORTED})


def _measure(
    data: Path, train: Path, test: Path, source: str, target: str, model: EvaluatedModel
) -> Measured:
    learned, asked = read_lexicon(train), read_lexicon(test)
    lexicon = Lexicon.make(
        learned,
        asked,
        source=_vocabulary(data, source, [a for a, _ in learned]),
        target=_vocabulary(data, target, [b for _, b in learned]),
    )
    found = induce(model.of(source), model.of(target), lexicon)
    note = (
        f"CSLS; {len(set(learned))} entries learned from; {len(lexicon.source)} {source} and "
        f"{len(lexicon.target)} {target} words"
    )
    return Measured([
        accuracy(f"accuracy @1, {name}", hits, f"{_DESCRIBED[name]}; {note}")
        for name, hits in found.items()
    ])  # fmt: skip


def _vocabulary(data: Path, language: str, known: list[str]) -> list[str]:
    """Return a language's word list, if there is one, checking that it shares dictionary words."""
    path = data / "words" / f"{language}.txt"
    if not path.is_file():
        return []
    words = read_words(path)
    if set(words).isdisjoint(known):
        raise DataError(
            f"no word of the dictionary (the first is {known[0]!r}) is in {path}: is it of "
            f"the language {language}?"
        )
    return words
