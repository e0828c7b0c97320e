"""Read sets for entity linking: names of concepts, and mentions with the concepts they mean."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from mirror_rt.errors import DataError
from mirror_rt.evaluation.readers.tables import find_column, numbered_lines
from mirror_rt.io.rows import read_table
from mirror_rt.tokens.validity import check_texts

_SEPARATOR = "||"
_NO_CONCEPT = "cui-less"


@dataclass(frozen=True, slots=True)
class Names:
    """A list of n names, with the ids of the concepts that each may mean."""

    texts: list[str]
    concepts: list[frozenset[str]]

    def __add__(self, other: Names) -> Names:
        return Names(self.texts + other.texts, self.concepts + other.concepts)


def split_ids(cell: str) -> frozenset[str]:
    """Split a composite id: `D1|D2` and `D1+D2` are both D1 and D2."""
    return frozenset(part.strip() for part in re.split(r"[|+]", cell) if part.strip())


def split_mention(text: str, ids: frozenset[str]) -> list[str]:
    """Return the mentions of a composite one (`breast|ovarian cancer`), as SapBERT's code does.

    That code also splits at every `+`; here one counts only where the mention has several ids, so
    that `Na+ channel` stays whole.
    """
    parts = re.split(r"[|+]" if len(ids) > 1 else r"[|]", text)
    return [part.strip() for part in parts if part.strip()]


def read_dictionary(path: Path, *, split: bool = True) -> Names:
    """Read one `ID||name` per line, as in BioSyn and SapBERT, which lower-case names.

    With `split`, the line `ID||name|name` has several names. Lines without a concept are left out.
    """
    texts: list[str] = []
    concepts: list[frozenset[str]] = []
    for number, line in numbered_lines(path):
        cell, separator, names = line.partition(_SEPARATOR)
        parts = names.split("|") if split else [names]
        found = [name.strip() for name in parts if name.strip()]
        if not separator or not split_ids(cell) or not found:
            raise DataError(f"{path}, line {number}: expected ID||name, got {line[:60]!r}")
        if not _has_none(split_ids(cell)):
            texts += [name.lower() for name in found] if split else found
            concepts += [split_ids(cell)] * len(found)
    return _checked(path, texts, concepts)


def read_mentions(path: Path) -> Names:
    """Read mentions: a TSV with columns mention and concept_id, or one `ID||mention` per line.

    Those without a concept are left out.
    """
    if path.suffix != ".tsv":
        return read_dictionary(path, split=False)
    table = read_table(path)
    mention = find_column(table, ("mention", "text", "query"), "mentions")
    concept = find_column(table, ("concept_id", "concept", "id", "cui"), "concepts")
    concepts = [split_ids(cell) for cell in table.column(concept)]
    if empty := [line for line, ids in zip(table.lines, concepts, strict=True) if not ids]:
        raise DataError(f"{path}, line {empty[0]}: no concept id")
    pairs = zip(table.column(mention), concepts, strict=True)
    kept = [(text, ids) for text, ids in pairs if not _has_none(ids)]
    return _checked(path, [text for text, _ in kept], [ids for _, ids in kept])


def _has_none(ids: frozenset[str]) -> bool:
    """Return whether a line says that its text means no concept."""
    return {one.lower() for one in ids} == {_NO_CONCEPT}


def read_concept_folder(folder: Path) -> Names:
    """Read a folder of `.concept` files, as in BioSyn: one ...||mention||ID per line.

    Mentions are lower-cased, and those without a concept left out, as in SapBERT.
    """
    texts: list[str] = []
    concepts: list[frozenset[str]] = []
    for path in sorted(folder.glob("*.concept")):
        for number, line in numbered_lines(path):
            fields = line.split(_SEPARATOR)
            if len(fields) < 5 or not split_ids(fields[-1]):
                raise DataError(f"{path}, line {number}: expected ...||mention||ID")
            if not _has_none(split_ids(fields[-1])):
                texts.append(fields[-2].strip().lower())
                concepts.append(split_ids(fields[-1]))
    return _checked(folder, texts, concepts)


def _checked(path: Path, texts: list[str], concepts: list[frozenset[str]]) -> Names:
    if not texts:
        raise DataError(f"{path} has no names")
    for text in texts:
        check_texts(f"{path}, name {text!r}", text)
    return Names(texts, concepts)
