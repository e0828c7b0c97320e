"""Read the strings to tune on: text files, pairs, triplets, synonyms and word lists."""

from __future__ import annotations

import dataclasses
import logging
from pathlib import Path
from typing import Literal

from mirror_rt.errors import ConfigError, DataError, require
from mirror_rt.io.text import iter_lines
from mirror_rt.languages.tags import listed_language, normalize_tag
from mirror_train.data.synonyms import read_synonyms
from mirror_train.data.training_data import TrainingData
from mirror_train.data.triplets import read_nli, read_triplets

DataFormat = Literal["auto", "text", "pairs", "tsv", "triplets", "nli", "synonyms"]

logger = logging.getLogger("mirror_train")

TOP = 10_000  # words of a list


def load_training_data(
    path: str | Path, *, data_format: DataFormat = "auto", language: str | None = None
) -> TrainingData:
    """Read one string a line, supervised pairs (`text1||text2` or two-column TSV), or triplets.

    `auto` takes a `.tsv` file as TSV, a file in which every line holds one `||` as pairs, and
    anything else as text. Blank lines and repetitions are dropped and counted. `triplets` and
    `nli` are read by `mirror_train.data.triplets`, `synonyms` by `mirror_train.data.synonyms`.

    Raises:
        ConfigError: `language` is not a language tag.
        DataError: the file is missing, empty, binary or not UTF-8, or a line is not of the format.
    """
    path, language = Path(path), None if language is None else normalize_tag(language)
    if data_format in ("triplets", "nli", "synonyms"):
        read = {"triplets": read_triplets, "nli": read_nli, "synonyms": read_synonyms}[data_format]
        return read(path, language=language)
    lines = [(number, line.strip()) for number, line in enumerate(iter_lines(path), 1)]
    filled = [(number, line) for number, line in lines if line]
    if not filled:
        raise DataError(f"{path} is empty: expected one string a line")
    kept: dict[str, int] = {}
    for number, line in filled:
        kept.setdefault(line, number)
    blank, duplicates = len(lines) - len(filled), len(filled) - len(kept)
    separator = _separator(path, list(kept), data_format)
    if separator is None:
        strings = list(kept)
        return TrainingData(strings, strings, None, path.name, language, blank, duplicates)
    pairs = [_split(path, number, line, separator) for line, number in kept.items()]
    counted = {"blank": blank, "duplicates": duplicates}
    return TrainingData.of_pairs(pairs, path.name, language=language, **counted)


def longer_than(data: TrainingData, words: int) -> TrainingData:
    """Return the strings of more than `words` words, which white space separates.

    BERT-CF removes "all sentences length 5 or less" (section 5.1), which are mostly headings.
    Pairs, and strings none of which is longer, are refused.
    """
    if data.first is not data.second:
        raise ConfigError(f"--longer-than is for plain strings, and {data.source} has pairs")
    strings = [text for text in data.first if len(text.split()) > words]
    if not strings:
        raise DataError(f"{data.source}: no string has more than {words} words")
    source = f"{data.source}, strings of more than {words} words"
    return dataclasses.replace(data, first=strings, second=strings, source=source)


def word_list(language: str, *, top: int = TOP) -> TrainingData:
    """Return the `top` most frequent words of a language from `wordfreq` (no download).

    Raises:
        ConfigError: wordfreq has no words of the language, or `top` is not positive.
        MissingDependencyError: wordfreq is not installed.
    """
    if top < 1:
        raise ConfigError(field="top", expected="at least 1", value=top)
    wordfreq = require("wordfreq", extra="demo", purpose="--words")
    words = wordfreq.top_n_list(listed_language(wordfreq, language), top)
    return TrainingData(
        words, words, None, f"wordfreq {language} top {top}", normalize_tag(language)
    )


def has_word_list(language: str) -> bool:
    """Return whether `word_list` has words of a language.

    Raises:
        MissingDependencyError: wordfreq is not installed.
    """
    try:
        listed_language(require("wordfreq", extra="demo", purpose="--words"), language)
    except ConfigError:
        return False
    return True


def listed_languages() -> list[str]:
    """Return the languages that wordfreq has words for, in alphabetical order."""
    wordfreq = require("wordfreq", extra="demo", purpose="--lang all")
    return sorted(wordfreq.available_languages())


def _separator(path: Path, lines: list[str], data_format: DataFormat) -> str | None:
    if data_format != "auto":
        return {"text": None, "pairs": "||", "tsv": "\t"}[data_format]
    if path.suffix == ".tsv":
        return "\t"
    with_bars = sum(line.count("||") == 1 for line in lines)
    if 0 < with_bars < len(lines):
        logger.warning(
            "%s: %d of %d lines hold '||'; read as plain text (say --data-format pairs otherwise)",
            path,
            with_bars,
            len(lines),
        )
    return "||" if with_bars == len(lines) else None


def _split(path: Path, number: int, line: str, separator: str) -> tuple[str, str]:
    cells = [cell.strip() for cell in line.split(separator)]
    if len(cells) != 2 or not all(cells):
        raise DataError(
            f"{path}, line {number}: expected two texts separated by {separator!r}, "
            f"got {len(cells)}: {line[:60]!r}"
        )
    return cells[0], cells[1]
