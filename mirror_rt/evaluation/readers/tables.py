"""Read published tables: with tabs or commas, with or without quotes and a header."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from pathlib import Path

from mirror_rt.errors import DataError
from mirror_rt.io.text import Table, csv_reader, iter_lines, read_table

__all__ = ["Rows", "find_column", "read_any_table", "read_rows"]

Rows = list[tuple[int, list[str]]]


def read_rows(path: Path, *, cells: int, delimiter: str = "\t", quoted: bool = False) -> Rows:
    """Read a table without a header; return line numbers and cells, without empty lines.

    Args:
        path: file of UTF-8 text.
        cells: least number of cells of a row.
        delimiter: text between two cells.
        quoted: whether cells may be in double quotes.

    Raises:
        DataError: as in `iter_lines`, or a row has fewer cells, or there are no rows.
    """
    if quoted:
        text = io.StringIO("\n".join(iter_lines(path)) + "\n", newline="")
        reader = csv_reader(text, delimiter)
        try:
            rows = [(reader.line_num, row) for row in reader if row]
        except csv.Error as error:  # such as a quote that is never closed
            raise DataError(f"{path}, line {reader.line_num}: not CSV: {error}") from error
    else:
        lines = enumerate(iter_lines(path), 1)
        rows = [(number, line.split(delimiter)) for number, line in lines if line.strip()]
    if not rows:
        raise DataError(f"{path} is empty")
    for number, row in rows:
        if len(row) < cells:
            raise DataError(f"{path}, line {number}: {len(row)} cells, expected at least {cells}")
    return rows


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
    header = rows[0][1]
    if repeated := {name for name in header if header.count(name) > 1}:
        raise DataError(f"{path} has the column {min(repeated)!r} more than once")
    for number, row in rows[1:]:
        if len(row) != len(header):
            raise DataError(
                f"{path}, line {number}: {len(row)} cells, the header has {len(header)}"
            )
    return Table(path, header, [row for _, row in rows[1:]], [number for number, _ in rows[1:]])


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
