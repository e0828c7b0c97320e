"""Turn a thesaurus into pairs of synonyms to tune on: only those that it is surest of."""

from __future__ import annotations

import logging
import re
from collections import Counter
from pathlib import Path

from mirror_rt.errors import ConfigError, DataError, MissingDependencyError
from mirror_rt.languages.tags import normalize_tag
from mirror_train.data.installed_thesauri import find_thesaurus, thesaurus_license
from mirror_train.data.strings import word_list
from mirror_train.data.thesaurus_files import Synonyms, read_thesaurus
from mirror_train.data.training_data import TrainingData

logger = logging.getLogger("mirror_train")

FREQUENT = 50_000
MOST_PAIRS = 2  # of a word
_LANGUAGE = re.compile(r"th(?:es)?_([a-z]{2,3})(?:_.*)?")


def load_thesaurus(
    source: str | Path, *, language: str | None = None, top: int = FREQUENT
) -> TrainingData:
    """Read pairs of synonyms from a thesaurus: see `mutual_pairs`.

    Args:
        source: a file or folder that `read_thesaurus` reads, or the tag of a language whose
            thesaurus is installed (see `find_thesaurus`).
        language: language of a file; None for the one that its name says (`th_fr_FR_v2.dat`), and
            English for WordNet.
        top: number of the most frequent words of the language that pairs are made of. Where the
            language is not known, or wordfreq is not installed or does not have it, a warning says
            that all words are taken.

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
    pairs = mutual_pairs(thesaurus.synonyms, frequent=_frequent_words(path, language, top))
    if not pairs:
        raise DataError(f"{path}: no two frequent words list each other as synonyms")
    origin = {
        "format": thesaurus.form,
        "sha256": thesaurus.sha256,
        "license": thesaurus_license(path, language) or "unknown",
    }
    return TrainingData.of_pairs(pairs, path.name, language=language, origin=origin)


def mutual_pairs(
    synonyms: Synonyms, *, frequent: list[str] | None = None, most: int = MOST_PAIRS
) -> list[tuple[str, str]]:
    """Return pairs of words that list each other, those with the most similar lists first.

    The similarity is the Jaccard overlap of the lists, to each of which its own word belongs. Pairs
    are taken in its order, the more frequent words first where it is equal, and at most `most` of a
    word. All pairs of a thesaurus, unfiltered, make an encoder worse.

    Args:
        synonyms: for each word the synonyms that it lists.
        frequent: the words that pairs may have, the most frequent first; None for all.
        most: the number of pairs of a word.
    """
    rank = {word: i for i, word in enumerate(sorted(synonyms) if frequent is None else frequent)}
    found = []
    for word, listed in synonyms.items():
        for other in listed:
            known = word in rank and other in rank and rank[word] < rank[other]
            if known and word in synonyms.get(other, ()):
                own, others = listed | {word}, synonyms[other] | {other}
                overlap = len(own & others) / len(own | others)
                found.append((-overlap, rank[word] + rank[other], word, other))
    taken: Counter[str] = Counter()
    pairs = []
    for _, _, word, other in sorted(found):
        if max(taken[word], taken[other]) < most:
            taken.update((word, other))
            pairs.append((word, other))
    return pairs


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
