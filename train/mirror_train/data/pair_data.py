"""Read the pairs of texts that a cross-encoder learns from, with labels or without."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from mirror_rt.errors import ConfigError, DataError
from mirror_rt.evaluation.readers.pairs import TEXT_COLUMNS, find_text_columns
from mirror_rt.io.rows import read_table, row_suffix
from mirror_rt.io.text import iter_lines
from mirror_rt.tokens.validity import check_texts
from mirror_train.data.labelled_examples import Examples
from mirror_train.data.labelled_readers import read_labelled
from mirror_train.data.strings import load_training_data


def read_labelled_pairs(
    path: Path,
    *,
    fields: Sequence[str] = (),
    label_field: str | None = None,
    labels: Sequence[str] = (),
) -> Examples:
    """Read a table of pairs with labels. Numbers are scores, unless `labels` names them as classes.

    Raises:
        ConfigError: the fields are those of single texts.
        DataError: the file is missing, has no labels, or cannot be used.
    """
    found = read_labelled(
        path,
        layer="softmax" if labels else "cosine",
        fields=fields,
        label_field=label_field,
        labels=labels,
    )
    if found.second is None:
        raise ConfigError(f"{path} has single texts, expected pairs (--fields A,B)")
    if labels or not found.labels:
        return found
    try:
        numbers = np.array(list(map(float, found.labels)))
    except ValueError:
        return found
    if not all(map(math.isfinite, numbers)):
        raise DataError(f"{path}: the labels {', '.join(found.labels)} are not all finite numbers")
    return dataclasses.replace(found, targets=numbers[found.targets], labels=())


def read_unlabelled_pairs(path: Path, *, fields: Sequence[str] = ()) -> Examples:
    """Read pairs without labels: two-column TSV, `text1||text2`, or two columns of a table.

    These are `fields`, or have usual names in the header; labels beside them are not read.
    Repeated pairs and rows that lack a text are left out and counted. All targets are 0.

    Raises:
        DataError: the file is missing, has single texts, or cannot be used.
    """
    header = {*next(iter_lines(path), "").split("\t")}
    if fields or row_suffix(path) == ".csv" or any({*names} <= header for names in TEXT_COLUMNS):
        table = read_table(path)
        names = fields or find_text_columns(table, "")
        rows = list(zip(*map(table.column, names), strict=True))
        pairs = list(dict.fromkeys(row for row in rows if all(text.strip() for text in row)))
        left_out = len(rows) - len(pairs)
    else:
        data = load_training_data(path)
        if data.first is data.second:
            raise DataError(f"{path} has single texts, expected pairs: text1 TAB text2 in a .tsv")
        pairs, left_out = list(zip(data.first, data.second, strict=True)), data.duplicates
    if not pairs or len(pairs[0]) != 2:
        raise DataError(f"{path} has no pairs of texts: expected two columns of texts and rows")
    for row, pair in enumerate(pairs, 1):
        check_texts(f"{path}, pair {row}", *pair)
    first, second = [a for a, _ in pairs], [b for _, b in pairs]
    return Examples(first, second, np.zeros(len(pairs)), (), path.name, left_out)
