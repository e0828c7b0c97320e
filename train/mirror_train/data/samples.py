"""Sample raw strings from corpora as they are published, as the papers do for their training data.

EMNLP 2021, section 3: names of UMLS, sentences of the STS benchmark, QNLI and WikiMatrix; section
4.4: SNLI and MultiNLI. BERT-CF, section 5.1: SimCSE's sentences of Wikipedia, the longer ones.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from pathlib import Path

import numpy as np

from mirror_rt.errors import ConfigError, DataError
from mirror_rt.evaluation.readers.tables import numbered_lines, read_rows
from mirror_rt.io.rows import read_table
from mirror_rt.io.text import iter_lines
from mirror_train.data.labelled_readers import read_nli
from mirror_train.data.training_data import TrainingData

# The fields of MRCONSO.RRF, each of which a bar ends.
_CONCEPT_FIELDS, _LANGUAGE, _NAME = 18, 1, 14


def read_corpus(form: str, paths: Sequence[Path], *, language: str) -> TrainingData:
    """Return the different strings of some files; `form` is one of `FORMS`."""
    found = (" ".join(text.split()) for path in paths for text in FORMS[form](path, language))
    strings = list(dict.fromkeys(text for text in found if text))
    source = ", ".join(path.name for path in paths)
    if not strings:
        raise DataError(f"{source}: no string in {language}")
    return TrainingData(strings, strings, None, source, language)


def sample(strings: list[str], size: int, *, seed: int) -> list[str]:
    """Return a random sample in the order of the strings; too few strings are a DataError."""
    if size > len(strings):
        raise DataError(f"{size} strings to draw, of {len(strings)}: pass --size {len(strings)}")
    chosen = np.random.default_rng(seed).choice(len(strings), size, replace=False)
    return [strings[row] for row in np.sort(chosen)]


def _nli(path: Path, language: str) -> Iterator[str]:
    """Yield premises and hypotheses of SNLI or MultiNLI, JSON lines or TSV."""
    pairs = read_nli(path)
    return chain(pairs.first, pairs.second or [])


def _qnli(path: Path, language: str) -> Iterator[str]:
    """Yield questions and sentences of GLUE's train.tsv."""
    table = read_table(path)
    return chain(table.column("question"), table.column("sentence"))


def _sts(path: Path, language: str) -> Iterator[str]:
    """Yield both sentences of sts-train.csv of the STS benchmark, without their scores."""
    rows = read_rows(path, cells=7)
    return (row[side] for side in (5, 6) for _, row in rows)


def _umls(path: Path, language: str) -> Iterator[str]:
    """Yield the names in MRCONSO.RRF of a language: ENG for en."""
    from langcodes import Language  # a dependency of wordfreq

    code = Language.get(language).to_alpha3(variant="B").upper()
    for number, line in numbered_lines(path):
        fields = line.split("|")
        if len(fields) < _CONCEPT_FIELDS:
            raise DataError(f"{path}, line {number}: {len(fields)} fields, expected MRCONSO.RRF")
        if fields[_LANGUAGE] == code:
            yield fields[_NAME]


def _wikimatrix(path: Path, language: str) -> Iterator[str]:
    """Yield the sentences of a language in WikiMatrix.A-B.tsv: margin, sentence of A, of B."""
    match = re.search(r"WikiMatrix\.([a-z_]+)-([a-z_]+)\.tsv", path.name)
    if match is None or language not in match.groups():
        raise ConfigError(f"{path}: expected WikiMatrix.A-B.tsv, with {language} as A or B")
    place = 1 + match.groups().index(language)
    for number, line in numbered_lines(path):
        cells = line.split("\t")
        if len(cells) != 3:
            raise DataError(f"{path}, line {number}: {len(cells)} cells, expected three")
        yield cells[place]


# Read the strings of a file, those of a language where it has several.
FORMS: dict[str, Callable[[Path, str], Iterator[str]]] = {
    "nli": _nli,
    "qnli": _qnli,
    "sts": _sts,
    "umls": _umls,
    "wikimatrix": _wikimatrix,
    "lines": lambda path, language: iter_lines(path),
}
