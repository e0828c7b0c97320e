"""Link biomedical mentions to the nearest names of a dictionary (EMNLP 2021, section 4.1)."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from mirror_rt.encoding.batch_encoder import EmbeddingModel
from mirror_rt.errors import DataError
from mirror_rt.evaluation.models import EvaluatedModel
from mirror_rt.evaluation.readers.concepts import (
    Names,
    read_concept_folder,
    read_dictionary,
    read_mentions,
    split_mention,
)
from mirror_rt.evaluation.suites.base import EvaluationSet, Found, Measured, SuiteOptions, accuracy
from mirror_rt.vectors.search import search

# The sets of table 2 of the paper.
_REPORTED = ("ncbi-disease", "bc5cdr-disease", "bc5cdr-chemical", "askapatient", "cometa")
_DICTIONARIES = ("-dictionary.txt", "/test_dictionary.txt", "/dictionary.txt", "/TERMINOLOGY.txt")
_MENTIONS = ("-test.tsv", "-test.txt", "/test.tsv", "/test.txt", "/processed_test")


@dataclass(frozen=True, slots=True)
class Linking:
    """The result of linking n mentions."""

    # Maps k to float64 [n], 1 where one of the k nearest names shares an id with the mention; of a
    # composite mention, with each of its parts.
    hits: dict[int, npt.NDArray[np.float64]]
    # Number of mentions whose concept has a name in the dictionary; no other can be a hit.
    known: int


def link(
    model: EmbeddingModel, mentions: Names, dictionary: Names, *, ks: tuple[int, ...] = (1, 5)
) -> Linking:
    """Find the k nearest names of every mention, by cosine and with exact search.

    As in BioSyn and SapBERT, k counts the rows of the dictionary, in which a name has a row for
    each concept that it may mean. A row or a mention may have several ids; the row is right if they
    share one. The parts of a composite mention are looked up one by
    one, and the mention is a hit only where every part is.
    """
    named = frozenset().union(*dictionary.concepts)
    known = sum(bool(ids & named) for ids in mentions.concepts)
    if known == 0:
        example = ", ".join(sorted(mentions.concepts[0]))
        raise DataError(
            "the dictionary has no name for any concept of the mentions (the first is "
            f"{example}): are the ids of both of one kind?"
        )
    names = list(dict.fromkeys(dictionary.texts))
    place = {name: i for i, name in enumerate(names)}
    vectors = model.encode(names)[[place[name] for name in dictionary.texts]]
    pairs = zip(mentions.texts, mentions.concepts, strict=True)
    parts = [(split_mention(text, ids), ids) for text, ids in pairs]
    queries = list(dict.fromkeys(part for mention, _ in parts for part in mention))
    found = search(model.encode(queries), vectors, max(ks)).indices
    nearest = dict(zip(queries, found.tolist(), strict=True))

    def rank(text: str, ids: frozenset[str]) -> int:
        rows = enumerate(nearest[text])
        return next((i for i, row in rows if dictionary.concepts[row] & ids), max(ks))

    ranks = np.array([max(rank(part, ids) for part in mention) for mention, ids in parts])
    return Linking({k: (ranks < k).astype(np.float64) for k in ks}, known)


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
    where = f"{folder}/{{0}}-test.tsv, or BioSyn's {folder}/{{0}}/processed_test"
    return Found.of("linking", sets, {name: where.format(name) for name in _REPORTED})


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
