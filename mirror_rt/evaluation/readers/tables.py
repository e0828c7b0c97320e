"""Read published tables: with tabs or commas, with or without quotes and a header."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence
from pathlib import Path

from mirror_rt.errors import DataError
from mirror_rt.io.text import Source, Table, csv_reader, iter_lines, make_table, read_table

Rows = list[tuple[int, list[str]]]


def read_rows(path: Path, *, cells: int, delimiter: str = "\t", quoted: bool = False) -> Rows:
    """Read a table without a header; return line numbers and cells, without empty lines.

    Raises:
        DataError: as in `iter_lines`, or a row has fewer than `cells` cells, or there are no rows.
    """
    if quoted:
        text = io.StringIO("\n".join(iter_lines(path)) + "\n", newline="")
        reader = csv_reader(text, delimiter)
        try:
            rows = [(reader.line_num, row) for row in reader if row]
        except csv.Error as error:  # such as a quote that is never closed
            raise DataError(f"{path}, line {reader.line_num}: not CSV: {error}") from error
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


def read_any_table(path: Path) -> Table:
    """Read a table with a header: `.csv` with quotes (comma or tab), anything else as plain TSV.

    Raises:
        DataError: there is no header, a column name is repeated, or a row has too few or too many
            cells.
    """
    if path.suffix != ".csv":
        return read_table(path)
    first = next(iter_lines(path), "")
    rows = read_rows(path, cells=1, delimiter="\t" if "\t" in first else ",", quoted=True)
    return make_table(path, rows)


def find_column(table: Table, names: Sequence[str], what: str) -> str:
    """Return the first of `names` that the header has, in upper or lower case.

    Raises:
        DataError: the header has none of them.
    """
    lower = {name.lower(): name for name in table.header}
    for name in names:
        if name.lower() in lower:
            return lower[name.lower()]
    raise DataError(
        f"{table.path} has no {what}: expected a column {' or '.join(map(repr, names))}, its "
        f"columns are {', '.join(table.header)}"
    )
