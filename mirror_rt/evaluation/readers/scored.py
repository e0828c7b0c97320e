"""Read published sets of pairs with human scores: Multi-SimLex, STS, SICK."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from mirror_rt.errors import DataError
from mirror_rt.evaluation.readers.pairs import ScoredPairs, make_pairs
from mirror_rt.evaluation.readers.tables import Rows, find_column, read_any_table, read_rows
from mirror_rt.io.text import iter_lines

Reader = Callable[[Path], ScoredPairs]

_SENTEVAL = ("STS.input.", "STS.gs.")


def read_multisimlex(folder: Path, language: str) -> tuple[list[str], ScoredPairs]:
    """Read one language (as the columns name it: ENG, FRA ...) of translation.csv and scores.csv.

    Returns the ids of the pairs, and the pairs.
    """
    words = read_any_table(folder / "translation.csv")
    scores = read_any_table(folder / "scores.csv")
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


def read_sts_year(path: Path) -> ScoredPairs:
    """Read score TAB sentence TAB sentence without a header, as in Mirror-BERT's STS_data."""
    return _columns(path, read_rows(path, cells=3), 1, 2, 0)


def read_sts_benchmark(path: Path) -> ScoredPairs:
    """Read sts-test.csv of the STS benchmark, which has tabs, but no quotes and no header.

    Cells 5, 6 and 7 are the score and the two sentences; the others say where the pair is from.
    """
    return _columns(path, read_rows(path, cells=7), 5, 6, 4)


def read_stsb_multi(path: Path) -> ScoredPairs:
    """Read a file of stsb-multi-mt: CSV without a header, with sentence, sentence, score."""
    return _columns(path, read_rows(path, cells=3, delimiter=",", quoted=True), 0, 1, 2)


def read_sick(path: Path) -> ScoredPairs:
    """Read SICK as published (sentence_A, sentence_B, relatedness_score).

    If the file has the column SemEval_set, only the rows of TEST are read.
    """
    table = read_any_table(path)
    score = find_column(table, ("relatedness_score", "score"), "scores")
    first = find_column(table, ("sentence_A", "sentence1"), "first sentences")
    second = find_column(table, ("sentence_B", "sentence2"), "second sentences")
    columns = [table.column(name) for name in (first, second, score)]
    rows = list(zip(table.lines, *columns, strict=True))
    if "SemEval_set" in table.header:
        parts = table.column("SemEval_set")
        rows = [row for row, part in zip(rows, parts, strict=True) if part == "TEST"]
    return make_pairs(path, rows)


def _columns(path: Path, rows: Rows, first: int, second: int, score: int) -> ScoredPairs:
    return make_pairs(path, [(line, row[first], row[second], row[score]) for line, row in rows])
