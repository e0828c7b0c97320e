"""Evaluate biomedical entity linking: mentions against a dictionary of names."""

from __future__ import annotations

import functools
from pathlib import Path

from mirror_rt.errors import DataError
from mirror_rt.evaluation.linking import link
from mirror_rt.evaluation.models import EvaluatedModel
from mirror_rt.evaluation.readers.concepts import (
    Names,
    read_concept_folder,
    read_dictionary,
    read_mentions,
)
from mirror_rt.evaluation.suites.base import EvaluationSet, Found, Measured, SuiteOptions, accuracy

# The sets of table 2 of the paper.
_REPORTED = ("ncbi-disease", "bc5cdr-disease", "bc5cdr-chemical", "askapatient", "cometa")
_DICTIONARIES = ("-dictionary.txt", "/test_dictionary.txt", "/dictionary.txt", "/TERMINOLOGY.txt")
_MENTIONS = ("-test.tsv", "-test.txt", "/test.tsv", "/test.txt", "/processed_test")


def find_linking(data: Path, options: SuiteOptions) -> Found:
    """Find sets in bel/: NAME-test.tsv or BioSyn's NAME/, with a dictionary if there is one."""
    folder = data / "bel"
    names = [path.name for path in sorted(folder.glob("*/"))]
    names += [path.stem.removesuffix("-test") for path in sorted(folder.glob("*-test.t[sx][vt]"))]
    sets = []
    for name in dict.fromkeys(names):
        mentions = next(
            (p for end in _MENTIONS if (p := Path(f"{folder / name}{end}")).exists()), None
        )
        if mentions is not None:
            measure = functools.partial(_measure, folder / name, mentions)
            sets.append(EvaluationSet("linking", name, mentions, ("en",), measure))
    missing = [
        f"linking/{name}: {folder}/{name}-test.tsv, or BioSyn's {folder}/{name}/processed_test"
        for name in _REPORTED
        if name not in {one.name for one in sets}
    ]
    return Found(sets, missing)


def _measure(base: Path, path: Path, model: EvaluatedModel) -> Measured:
    mentions = read_concept_folder(path) if path.is_dir() else read_mentions(path)
    dictionary, source = _dictionary(base)
    linked = link(model.of("en"), mentions, dictionary)
    note = (
        f"{len(set(dictionary.texts))} names from {source}; "
        f"{linked.known} of {len(mentions.texts)} mentions have a concept among them"
    )
    return Measured([accuracy(f"accuracy @{k}", hits, note) for k, hits in linked.hits.items()])


def _dictionary(base: Path) -> tuple[Names, str]:
    """Return the dictionary of a set or, failing that, the mentions of its train and dev files."""
    for end in _DICTIONARIES:
        path = Path(f"{base}{end}")
        if path.is_file():
            return read_dictionary(path), path.name
    parts = [path for split in ("train", "dev") if (path := Path(f"{base}-{split}.tsv")).is_file()]
    if not parts:
        raise DataError(
            f"{base.parent} has no dictionary for {base.name}: expected {base.name}-dictionary.txt "
            f"with lines ID||name, or {base.name}-train.tsv, whose mentions are names then"
        )
    names = Names([], [])
    for path in parts:
        names = names + read_mentions(path)
    return names, "the mentions of " + " and ".join(path.name for path in parts)
