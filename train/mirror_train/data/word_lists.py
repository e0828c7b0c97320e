"""The most frequent words of a language, as the package wordfreq has them."""

from __future__ import annotations

from typing import Any

from mirror_rt.errors import ConfigError, require
from mirror_train.data.training_data import TrainingData

__all__ = ["has_word_list", "word_list"]

# Distances of languages, by CLDR: up to 10 for what is written alike, 60 for what is related.
_SAME, _RELATED = 10, 60


def word_list(language: str, *, top: int = 10_000) -> TrainingData:
    """Return the most frequent words of a language, from `wordfreq` (no download).

    Raises:
        ConfigError: wordfreq has no words of that language, or `top` is not positive.
        MissingDependencyError: wordfreq is not installed.
    """
    if top < 1:
        raise ConfigError(f"top must be at least 1, got {top}")
    wordfreq = require("wordfreq", extra="demo", purpose="--words")
    words = wordfreq.top_n_list(_listed(wordfreq, language), top)
    return TrainingData(words, words, None, f"wordfreq {language} top {top}", language)


def has_word_list(language: str) -> bool:
    """Whether `word_list` has words of a language.

    Raises:
        MissingDependencyError: wordfreq is not installed.
    """
    try:
        _listed(require("wordfreq", extra="demo", purpose="--words"), language)
    except ConfigError:
        return False
    return True


def _listed(wordfreq: Any, language: str) -> str:
    """The language of wordfreq that a tag means: `pt` for `pt-BR`, `sh` for `hr`.

    wordfreq itself would give English words for Albanian.
    """
    from langcodes import closest_match  # a dependency of wordfreq

    known = sorted(wordfreq.available_languages())
    try:
        nearest, distance = closest_match(language, known, _RELATED)
    except ValueError:  # not a tag
        nearest, distance = "und", _RELATED
    if distance <= _SAME or nearest == language.replace("_", "-").split("-")[0].lower():
        return str(nearest)
    if nearest == "und":
        where = f"there are {', '.join(known)}"
    else:
        where = f"the nearest that has one is {nearest!r}"
    raise ConfigError(f"no word list for language {language!r}; {where}")
