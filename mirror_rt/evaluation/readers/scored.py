"""Read published sets of pairs with human scores: Multi-SimLex, STS, SICK."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from mirror_rt.errors import DataError
from mirror_rt.evaluation.readers.pairs import ScoredPairs, make_pairs, read_scored_pairs
from mirror_rt.evaluation.readers.tables import find_column, read_rows
from mirror_rt.io.rows import read_table
from mirror_rt.io.text import iter_lines

Reader = Callable[[Path], ScoredPairs]

_SENTEVAL = ("STS.input.", "STS.gs.")


def read_multisimlex(folder: Path, language: str) -> tuple[list[str], ScoredPairs]:
    """Read one language (as the columns name it: ENG, FRA ...) of translation.csv and scores.csv.

    Returns the ids of the pairs, and the pairs.
    """
    words = read_table(folder / "translation.csv")
    scores = read_table(folder / "scores.csv")
    ids, scored = (t.column(find_column(t, ("ID", "pair_id"), "ids")) for t in (words, scores))
    if ids != scored:
        raise DataError(f"{folder}: translation.csv and scores.csv do not have the same pairs")
    first, second = (words.column(f"{language} {i}") for i in (1, 2))
    rows = zip(words.lines, first, second, scores.column(language), strict=True)
    return ids, make_pairs(words.path, rows)


def read_senteval(folder: Path) -> dict[str, ScoredPairs]:
    """Read a folder of STS.input.NAME.txt (two sentences) and STS.gs.NAME.txt (scores).

    Pairs with a blank score were never scored, and are left out, as in SentEval. The result maps a
    subset to its pairs, in alphabetical order.
    """
    subsets = {}
    for path in sorted(folder.glob(f"{_SENTEVAL[0]}*.txt")):
        subsets[path.name[len(_SENTEVAL[0]) : -4]] = read_senteval_file(path)
    if not subsets:
        raise DataError(f"{folder} has no STS.input.*.txt")
    return subsets


def read_senteval_file(path: Path) -> ScoredPairs:
    """Read one STS.input.NAME.txt and its STS.gs.NAME.txt; see `read_senteval`."""
    gold = path.with_name(path.name.replace(*_SENTEVAL))
    rows = [(n, line.split("\t")) for n, line in enumerate(iter_lines(path), 1)]
    scores = [line.strip() for line in iter_lines(gold)]
    if len(rows) != len(scores):
        raise DataError(f"{path} has {len(rows)} pairs, {gold.name} has {len(scores)} scores")
    scored = [(n, row, s) for (n, row), s in zip(rows, scores, strict=True) if s]
    if short := [n for n, row, _ in scored if len(row) < 2]:
        raise DataError(f"{path}, line {short[0]}: expected two sentences with a tab between them")
    return make_pairs(path, [(n, row[0], row[1], score) for n, row, score in scored])


def read_sick(path: Path, part: str = "TEST") -> ScoredPairs:
    """Read SICK as published (sentence_A, sentence_B, relatedness_score).

    If the file has the column SemEval_set, only the rows of `part` are read: TRAIN, TRIAL or TEST.
    """
    pairs, table = read_scored_pairs(path), read_table(path)
    if "SemEval_set" not in table.header:
        return pairs
    rows = [row for row, of in enumerate(table.column("SemEval_set")) if of == part]
    if not rows:
        raise DataError(f"{path} has no rows of {part}")
    first, second = ([side[row] for row in rows] for side in (pairs.first, pairs.second))
    return ScoredPairs(first, second, pairs.scores[rows])


def _read_columns(places: tuple[int, int, int], path: Path, **options: Any) -> ScoredPairs:
    """Read a table without a header; `places` are those of the two sentences and the score."""
    rows = read_rows(path, cells=max(places) + 1, **options)
    first, second, score = places
    return make_pairs(path, [(line, row[first], row[second], row[score]) for line, row in rows])


def read_men(path: Path) -> ScoredPairs:
    """Read MEN: `sun sunlight 50.0` on each line, or with parts of speech, `sun-n sunlight-n 50.0`.

    The parts of speech are left out.
    """
    rows = read_rows(path, cells=3, delimiter=" ")
    found = []
    for line, row in rows:
        a, b = (re.sub(r"-[nvj]$", "", word) for word in row[:2])
        found.append((line, a, b, row[2]))
    return make_pairs(path, found)


# The years' sets of Mirror-BERT's STS_data: score TAB sentence TAB sentence.
read_sts_year = partial(_read_columns, (1, 2, 0))
# sts-test.csv of the STS benchmark, whose first cells say where a pair is from; it has tabs.
read_sts_benchmark = partial(_read_columns, (5, 6, 4))
# WS-353's halves and RG-65: word TAB word TAB score.
read_word_pairs = partial(_read_columns, (0, 1, 2))
# SCWS's ratings.txt: id, word, part of speech, word, part of speech, two contexts, mean rating and
# its ten ratings. The contexts are left out, as in BURT.
read_scws = partial(_read_columns, (1, 3, 7))
# stsb-multi-mt: CSV of sentence, sentence, score.
read_stsb_multi = partial(_read_columns, (0, 1, 2), delimiter=",", quoted=True)
