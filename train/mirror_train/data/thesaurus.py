"""Turn a thesaurus into pairs of synonyms to tune on: only those that it is surest of."""

from __future__ import annotations

import itertools
import logging
import re
from collections import Counter
from pathlib import Path

from mirror_rt.errors import ConfigError, DataError, MissingDependencyError
from mirror_rt.languages.tags import normalize_tag
from mirror_train.data.installed_thesauri import find_thesaurus, thesaurus_license
from mirror_train.data.strings import word_list
from mirror_train.data.thesaurus_files import Senses, read_thesaurus
from mirror_train.data.training_data import TrainingData

logger = logging.getLogger("mirror_train")

FREQUENT = 50_000
# Pairs of more frequent words come first (docs/decisions/2026-11-26-frequent-synonyms-first.md).
TOPS = (10_000, 20_000, FREQUENT)
MOST_PAIRS = 2  # of a word
# A pair's senses have nearly the same list in a thesaurus that is precise; a small one has too few
# such pairs to do without the others.
LEAST_OVERLAP, FEWEST = 0.85, 2000
_LANGUAGE = re.compile(r"th(?:es)?_([a-z]{2,3})(?:_.*)?")


def load_thesaurus(
    source: str | Path, *, language: str | None = None, top: int | None = None
) -> TrainingData:
    """Read pairs of synonyms from a thesaurus: see `mutual_pairs`.

    Args:
        source: a file or folder that `read_thesaurus` reads, or the tag of a language whose
            thesaurus is installed (see `find_thesaurus`).
        language: language of a file; None for the one that its name says (`th_fr_FR_v2.dat`), and
            English for WordNet.
        top: number of the most frequent words of the language that pairs are made of. None for
            50,000, in tiers: first the pairs of the 10,000 most frequent words, then the others of
            20,000, then the rest; a thesaurus that is not precise ends with the tier that gives
            `FEWEST` pairs. Where the language is not known, or wordfreq is not installed or does
            not have it, a warning says that all words are taken.

    Raises:
        ConfigError: no thesaurus of the language is installed.
        DataError: the file cannot be read, or no two words of it list each other.
    """
    path = Path(source)
    if not path.exists() and path.parent == Path() and not path.suffix:
        language = normalize_tag(str(source))
        path = find_thesaurus(language)
        logger.info("thesaurus of %s: %s", language, path)
    thesaurus = read_thesaurus(path)
    language = language or _language_of(path)
    frequent = _frequent_words(path, language, FREQUENT if top is None else top)
    tiers: dict[tuple[str, str], int] = {}
    for tier in TOPS if top is None and frequent is not None else (top,):
        found = mutual_pairs(thesaurus.senses, frequent=frequent and frequent[:tier])
        tiers = dict.fromkeys(found, tier or 0) | tiers
        if len(found) == FEWEST:
            break
    if not tiers:
        raise DataError(f"{path}: no two frequent words list each other as synonyms")
    origin = {
        "format": thesaurus.form,
        "sha256": thesaurus.sha256,
        "license": thesaurus_license(path, language) or "unknown",
    }
    pairs = sorted(tiers, key=tiers.__getitem__)
    return TrainingData.of_pairs(
        pairs, path.name, language=language, tiers=sorted(tiers.values()), origin=origin
    )


def mutual_pairs(
    senses: Senses, *, frequent: list[str] | None = None, most: int = MOST_PAIRS
) -> list[tuple[str, str]]:
    """Return pairs of words that list each other, the surest first.

    Lists are compared by their Jaccard overlap, where its own word belongs to each. First come
    pairs whose lists of all senses overlap most, then the more frequent words; and a word is in at
    most `most` pairs. Of these are kept the pairs of which a sense of one word and a sense of the
    other overlap by `LEAST_OVERLAP`; or, where they are fewer than `FEWEST`, the first `FEWEST` of
    all. All pairs of a thesaurus, unfiltered, make an encoder worse. Pairs have only words of
    `frequent`, the most frequent first; None for all.
    """
    rank = {word: i for i, word in enumerate(sorted(senses) if frequent is None else frequent)}
    merged = {word: {word}.union(*lists) for word, lists in senses.items() if word in rank}
    found = [
        (-_overlap(listed, merged[other]), rank[word] + rank[other], word, other)
        for word, listed in merged.items()
        for other in listed
        if other in merged and rank[word] < rank[other] and word in merged[other]
    ]
    taken: Counter[str] = Counter()
    pairs = []
    for _, _, word, other in sorted(found):
        if max(taken[word], taken[other]) < most:
            taken.update((word, other))
            pairs.append((word, other))
    alike = [pair for pair in pairs if _most_alike(*pair, senses) >= LEAST_OVERLAP]
    return alike if len(alike) >= FEWEST else pairs[:FEWEST]


def _most_alike(word: str, other: str, senses: Senses) -> float:
    """Return the overlap of the two most similar senses that list the other word; 0 without any."""
    own = [sense | {word} for sense in senses[word] if other in sense]
    others = [sense | {other} for sense in senses[other] if word in sense]
    return max((_overlap(a, b) for a, b in itertools.product(own, others)), default=0.0)


def _overlap(one: set[str], two: set[str]) -> float:
    return len(one & two) / len(one | two)


def _language_of(path: Path) -> str | None:
    if path.is_dir():
        return "en"
    match = _LANGUAGE.fullmatch(path.stem)
    return None if match is None else match[1]


def _frequent_words(path: Path, language: str | None, top: int) -> list[str] | None:
    """Return the most frequent words, or None and a warning where they are not known."""
    reason = "its language is not known (--lang says it)"
    if language is not None:
        try:
            return word_list(language, top=top).first
        except MissingDependencyError:
            reason = "wordfreq is not installed"
        except ConfigError as error:
            if top < 1:
                raise
            reason = str(error)
    logger.warning("%s: rare words are taken, too, because %s", path, reason)
    return None
