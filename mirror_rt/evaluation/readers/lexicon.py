"""Read bilingual dictionaries and word lists."""

from __future__ import annotations

from pathlib import Path

from mirror_rt.errors import DataError
from mirror_rt.evaluation.readers.tables import numbered_lines
from mirror_rt.io.text import read_texts
from mirror_rt.tokens.tokenization import check_texts


def read_lexicon(path: Path) -> list[tuple[str, str]]:
    """Read one word TAB translation per line (or with a space, as in MUSE), without a header.

    A word may occur on several lines, each with another translation.

    Raises:
        DataError: a line does not have two cells, a word is empty, or there are no entries.
    """
    entries = []
    for number, line in numbered_lines(path):
        cells = line.split("\t") if "\t" in line else line.split()
        if len(cells) != 2:
            raise DataError(f"{path}, line {number}: {len(cells)} cells, expected word TAB word")
        check_texts(f"{path}, line {number}", *cells)
        entries.append((cells[0].strip(), cells[1].strip()))
    if not entries:
        raise DataError(f"{path} has no entries")
    return entries


def read_words(path: Path) -> list[str]:
    """Read one text per line; blank lines and repetitions are left out.

    Raises:
        DataError: there are no texts, or one cannot be encoded.
    """
    words = list(dict.fromkeys(read_texts(path)))
    for word in words:
        check_texts(f"{path}, {word!r}", word)
    return words
