"""Read published tables without a header, dictionaries and word lists; find columns by name."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from mirror_rt.errors import DataError
from mirror_rt.io.rows import Table, read_texts
from mirror_rt.io.text import Source, iter_lines, numbered_csv
from mirror_rt.tokens.validity import check_texts

Rows = list[tuple[int, list[str]]]


def read_rows(path: Path, *, cells: int, delimiter: str = "\t", quoted: bool = False) -> Rows:
    """Read a table without a header; return line numbers and cells, without empty lines."""
    if quoted:
        rows = list(numbered_csv(path, delimiter))
    else:
        rows = [(number, line.split(delimiter)) for number, line in numbered_lines(path)]
    if not rows:
        raise DataError(f"{path} is empty")
    for number, row in rows:
        if len(row) < cells:
            raise DataError(f"{path}, line {number}: {len(row)} cells, expected at least {cells}")
    return rows


def numbered_lines(path: Source) -> Iterator[tuple[int, str]]:
    """Yield the numbers (from 1) and the lines of a file that are not blank."""
    return ((number, line) for number, line in enumerate(iter_lines(path), 1) if line.strip())


def find_column(table: Table, names: Sequence[str], what: str) -> str:
    """Return the first of `names` that the header has, in upper or lower case."""
    lower = {name.lower(): name for name in table.header}
    for name in names:
        if name.lower() in lower:
            return lower[name.lower()]
    expected = f"expected a column {' or '.join(map(repr, names))}"
    if len(table.header) == 1:
        found = f"the only one is {table.header[0]!r}; tabs separate cells, in a .csv commas do"
    else:
        found = f"its columns are {', '.join(table.header)}"
    raise DataError(f"{table.path} has no {what}: {expected}, {found}")


def read_lexicon(path: Path) -> list[tuple[str, str]]:
    """Read one word TAB translation per line (or with a space, as in MUSE), without a header.

    A word may occur on several lines, each with another translation.
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
    """Read one text per line; blank lines and repetitions are left out."""
    words = list(dict.fromkeys(read_texts(path)))
    for word in words:
        check_texts(f"{path}, {word!r}", word)
    return words
