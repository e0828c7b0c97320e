"""Read FreeDict's bilingual dictionaries in dictd's format: Debian's packages dict-freedict-*."""

from __future__ import annotations

import gzip
import re
import unicodedata
import zlib
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import IO, cast

from mirror_rt.errors import ConfigError, DataError, require
from mirror_rt.io.limits import SHARED, unpacked
from mirror_rt.io.text import iter_lines
from mirror_train.data.installed_thesauri import own_folders
from mirror_train.data.strings import word_list
from mirror_train.data.thesaurus import FEWEST, TOPS

MOST_TRANSLATIONS = 2  # of a word

_DIGITS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
_NAME = re.compile(r"freedict-([a-z]{3})-([a-z]{3})\.index")
_HEAD = re.compile(r"\s+[/<\[(].*")  # pronunciation and part of speech behind a headword
_SENSE = re.compile(r"\d+\. ")
_REMARK = re.compile(r"\s*<[^>]*>|\s*\[[^\]]*\]$")
_ACCENT = "\N{COMBINING ACUTE ACCENT}"  # marks the stress of Cyrillic words


def installed_dictionaries(languages: Collection[str]) -> dict[str, Path]:
    """Return the installed dictionaries between two of the languages: `en-fr` -> its index file.

    $MIRROR_RT_DICTIONARIES, a folder, is looked through before the system's /usr/share/dictd.
    """
    langcodes = require("langcodes", extra="demo", purpose="the dictionaries of a system")
    folders = own_folders("MIRROR_RT_DICTIONARIES")
    found: dict[str, Path] = {}
    for folder in [*folders, Path("/usr/share/dictd")]:
        for path in sorted(folder.glob("freedict-*.index")):
            if match := _NAME.fullmatch(path.name):
                source, target = (langcodes.standardize_tag(code) for code in match.groups())
                if source in languages and target in languages:
                    found.setdefault(f"{source}-{target}", path)
    return found


def read_freedict(path: Path, languages: tuple[str, str]) -> list[tuple[str, str]]:
    """Return words of a dictionary with their translations, read strictly, in lower case.

    Both are among the 10,000 most frequent words of their languages (all words, where wordfreq has
    none), or among 20,000 or 50,000 where fewer give less than 2,000 entries: those of rarer words
    made an encoder of five languages worse. A word has its first two translations. Explanations,
    examples and cross-references are left out. `path` is the index, beside which the entries are,
    as .dict.dz or .dict.
    """
    source, target = (_frequent(language) for language in languages)
    listed = _listed(path, None if source is None else {*source})
    for top in TOPS:
        entries: dict[tuple[str, str], None] = {}
        words, others = ({*ranked[:top]} if ranked else None for ranked in (source, target))
        for word, translations in listed:
            if words is None or word in words:
                taken = [one for one in translations if others is None or one in others]
                entries.update({(word, one): None for one in taken[:MOST_TRANSLATIONS]})
        if len(entries) >= FEWEST:
            break
    if not entries:
        raise DataError(f"{path} translates no frequent word into a frequent word")
    return list(entries)


def _listed(path: Path, words: set[str] | None) -> list[tuple[str, list[str]]]:
    """Return the words that are asked for, each with all translations that are other words."""
    body, found = _body(path), []
    left = SHARED * len(body)
    for number, line in enumerate(iter_lines(path), 1):
        name, *place = line.split("\t")
        if name.startswith("00database") or (words is not None and _plain(name) not in words):
            continue
        try:
            start, size = map(_number, place[:2])
        except ValueError as error:
            raise DataError(f"{path}, line {number}: expected WORD, offset and length") from error
        left -= min(size, len(body))
        if left < 0:
            raise DataError(
                f"{path}, line {number}: the entries up to here have more than {SHARED} times the "
                "bytes of their file"
            )
        word, *rows = body[start : start + size].decode("utf-8", "replace").split("\n")
        word = _plain(_HEAD.sub("", word))
        found.append((word, [one for one in _translations(rows) if one != word]))
    return found


def _body(index: Path) -> bytes:
    packed = index.with_suffix(".dict.dz")
    try:
        if packed.is_file():
            with gzip.open(packed) as content:
                return unpacked(cast(IO[bytes], content), packed.stat().st_size, packed).read()
        return index.with_suffix(".dict").read_bytes()
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"the entries of {index} cannot be read: {error}") from error


def _frequent(language: str) -> list[str] | None:
    try:
        return word_list(language, top=TOPS[-1]).first
    except ConfigError:
        return None


def _number(digits: str) -> int:
    if len(digits) > 11:  # which 64 bits hold
        raise ValueError("a number that is too large")
    value = 0
    for digit in digits:
        value = value * 64 + _DIGITS.index(digit)
    return value


def _translations(rows: list[str]) -> Iterator[str]:
    """Yield the translations of the row after the headword and of all numbered rows."""
    for number, row in enumerate(rows):
        if number == 0 or _SENSE.match(row):
            for one in _SENSE.sub("", row, count=1).split(","):
                if word := _plain(_REMARK.sub("", one)):
                    yield word


def _plain(text: str) -> str:
    return unicodedata.normalize("NFC", text).replace(_ACCENT, "").strip().lower()
