"""Turn lists of names and concept ids into pairs of synonyms to tune on (SapBERT, NAACL 2021)."""

from __future__ import annotations

import itertools
import logging
from pathlib import Path

import numpy as np

from mirror_rt.errors import DataError
from mirror_rt.evaluation.readers.concepts import Names, read_dictionary, read_mentions
from mirror_rt.evaluation.readers.tables import read_rows
from mirror_rt.io.text import iter_lines
from mirror_train.data.training_data import TrainingData

logger = logging.getLogger("mirror_train")

# The most pairs of one concept, as in SapBERT: without a limit, most pairs would come from the few
# concepts with hundreds of names.
MOST_PAIRS = 50

_ID_COLUMNS = frozenset({"concept_id", "concept", "id", "cui"})


def read_synonyms(path: Path, *, language: str | None = None) -> TrainingData:
    """Read names with the ids of their concepts, and make pairs of the names of each concept.

    A line is `ID<TAB>name`, or `ID||name` as in BioSyn and SapBERT; or the file is a TSV with a
    header and the columns `concept_id` and `mention`. Names of several concepts at once (an id such
    as `D1|D2`) and concepts with only one name are left out; a log line counts both.
    """
    names = _read(path)
    pairs = [
        (concept, name)
        for name, concepts in zip(names.texts, names.concepts, strict=True)
        if len(concepts) == 1
        for concept in concepts
    ]
    composite = len(names.texts) - len(pairs)
    kept = list(dict.fromkeys(pairs))
    concepts: dict[str, list[str]] = {}
    for concept, name in kept:
        concepts.setdefault(concept, []).append(name)
    alone = sum(len(found) == 1 for found in concepts.values())
    synonyms = synonym_pairs(concepts)
    if not synonyms:
        raise DataError(f"{path}: no concept has two different names, so there are no synonyms")
    logger.info(
        "%s: %d pairs of %d concepts; left out: %d concepts with one name, %d names of several "
        "concepts at once",
        path,
        len(synonyms),
        len(concepts) - alone,
        alone,
        composite,
    )
    # Two concepts that share a name become one group, since a name is no negative of itself.
    duplicates = len(pairs) - len(kept)
    return TrainingData.of_pairs(synonyms, path.name, language=language, duplicates=duplicates)


def synonym_pairs(concepts: dict[str, list[str]]) -> list[tuple[str, str]]:
    """Return all pairs of names of each concept, or 50 random ones, the same on every call."""
    rng = np.random.default_rng(0)
    pairs = []
    for names in concepts.values():
        found = list(itertools.combinations(names, 2))
        if len(found) > MOST_PAIRS:
            chosen = np.sort(rng.choice(len(found), MOST_PAIRS, replace=False))
            found = [found[i] for i in chosen]
        pairs += found
    return pairs


def _read(path: Path) -> Names:
    first = next(iter_lines(path), "")
    if "||" in first:
        return read_dictionary(path)
    if _ID_COLUMNS & {cell.strip().lower() for cell in first.split("\t")}:
        return read_mentions(path)
    rows = read_rows(path, cells=2)
    for number, cells in rows:
        if len(cells) != 2 or not all(cell.strip() for cell in cells):
            raise DataError(f"{path}, line {number}: expected a concept id, a tab and a name")
    names = [cells[1].strip() for _, cells in rows]
    return Names(names, [frozenset({cells[0].strip()}) for _, cells in rows])
