"""The positive pairs to tune on."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mirror_rt.errors import DataError
from mirror_rt.tokens.validity import check_texts


@dataclass(frozen=True, slots=True)
class TrainingData:
    """n positive pairs; for raw strings both sides are the same string.

    Attributes:
        first: n strings.
        second: n strings, the positives of `first` (the same list for raw strings).
        group_ids: n numbers, equal for pairs that share a string or a concept, directly or through
            others; such pairs are not negatives of each other. None where all strings differ.
        source: name of the file or list that the strings came from.
        language: tag of their language; None where it is not known.
        blank: number of blank lines dropped.
        duplicates: number of repeated lines dropped.
        hard_negatives: n strings, each similar to a string of `first` but not its positive; None
            where there are none.
        origin: the further record of the source in mirror.json, such as its licence, or None.
        tiers: n numbers; in an epoch, pairs with a lower number come before those with a higher
            one. None for any order.
        languages: n pairs of tags, of both strings; a tag is None where it is not known, and all
            are where this is None. Most batches have pairs of one language (see
            `mirror_train.data.by_language`), and a teacher reads the strings in languages that it
            knows.
    """

    first: list[str]
    second: list[str]
    group_ids: list[int] | None
    source: str
    language: str | None = None
    blank: int = 0
    duplicates: int = 0
    hard_negatives: list[str] | None = None
    origin: dict[str, Any] | None = None
    tiers: list[int] | None = None
    languages: list[tuple[str | None, str | None]] | None = None

    @classmethod
    def of_pairs(cls, pairs: Sequence[tuple[str, str]], source: str, **others: Any) -> TrainingData:
        """Return pairs as training data; `others` are further fields."""
        first, second = [a for a, _ in pairs], [b for _, b in pairs]
        return cls(first, second, connected_groups(pairs), source, **others)

    @classmethod
    def of_strings(cls, strings: Sequence[str], source: str = "list of strings") -> TrainingData:
        """Return strings as training data; blank ones and repetitions are dropped and counted."""
        if isinstance(strings, str | Path):
            raise DataError(f"{strings} is no list of strings; load_training_data reads a file")
        for place, text in enumerate(strings):
            if not isinstance(text, str) or text.strip():
                check_texts(f"{source}, item {place}", text)
        filled = [stripped for text in strings if (stripped := text.strip())]
        kept = list(dict.fromkeys(filled))
        blank, duplicates = len(strings) - len(filled), len(filled) - len(kept)
        return cls(kept, kept, None, source, blank=blank, duplicates=duplicates)

    def __len__(self) -> int:
        return len(self.first)

    def sha256(self) -> str:
        """Return a hash of strings and languages in order, which does not depend on the file."""
        digest = hashlib.sha256()
        columns = [self.first, self.second]
        if self.hard_negatives is not None:
            columns.append(self.hard_negatives)
        if self.languages is not None:
            columns.append([f"{a} {b}" for a, b in self.languages])
        for row in zip(*columns, strict=True):
            digest.update("\t".join(row).encode() + b"\n")
        return digest.hexdigest()

    def summary(self) -> dict[str, Any]:
        """Return the record of the data in mirror.json."""
        return {
            "source": self.source,
            "sha256": self.sha256(),
            "strings": len(self),
            "blank_dropped": self.blank,
            "duplicates_dropped": self.duplicates,
            "supervised_pairs": self.first is not self.second,
            "hard_negatives": self.hard_negatives is not None,
        } | ({} if self.origin is None else {"origin": self.origin})


def is_of(tag: str | None, languages: Collection[str]) -> bool:
    """Tell whether a tag, such as `en-GB`, is known to be of one of some languages (`en`)."""
    return tag is not None and tag.partition("-")[0] in languages


def connected_groups(pairs: Sequence[tuple[str, str]]) -> list[int]:
    """Return for each pair the number of its connected component, with pairs as edges."""
    parent: dict[str, str] = {}

    def root(text: str) -> str:
        parent.setdefault(text, text)
        while parent[text] != text:
            parent[text] = parent[parent[text]]
            text = parent[text]
        return text

    for a, b in pairs:
        parent[root(a)] = root(b)
    numbers: dict[str, int] = {}
    return [numbers.setdefault(root(a), len(numbers)) for a, _ in pairs]
