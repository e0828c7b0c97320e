"""Evaluate word similarity, in one language and across two."""

from __future__ import annotations

import itertools
from functools import partial
from pathlib import Path

import numpy as np

from mirror_rt.errors import DataError
from mirror_rt.evaluation.models import EvaluatedModel
from mirror_rt.evaluation.readers import scored
from mirror_rt.evaluation.readers.pairs import ScoredPairs, read_scored_pairs
from mirror_rt.evaluation.readers.scored import Reader, read_multisimlex
from mirror_rt.evaluation.suites.base import (
    EvaluationSet,
    Found,
    Measured,
    Outcome,
    SuiteOptions,
    correlation,
    language_of,
    scored_set,
)
from mirror_rt.io.rows import read_table

# The columns of the published scores.csv, and their language tags.
_CODES = {
    "ARA": "ar", "CMN": "zh", "CYM": "cy", "ENG": "en", "EST": "et", "FIN": "fi", "FRA": "fr",
    "HEB": "he", "POL": "pl", "RUS": "ru", "SPA": "es", "SWA": "sw", "YUE": "yue",
}  # fmt: skip
# The languages of tables 1 and 5 of the paper.
_REPORTED = ("en", "fr", "et", "ar", "zh", "ru", "es", "pl")
_REPORTED_ACROSS = ("en-fr", "en-zh", "en-he", "fr-zh", "fr-he", "zh-he")
# English sets by the names of their published files (BURT, table 3).
_PUBLISHED: dict[str, tuple[tuple[str, ...], Reader]] = {
    "simlex-999": (("SimLex-999.txt",), read_scored_pairs),
    "ws-353-sim": (("wordsim_similarity_goldstandard.txt",), scored.read_word_pairs),
    "ws-353-rel": (("wordsim_relatedness_goldstandard.txt",), scored.read_word_pairs),
    "men": (("MEN_dataset_natural_form_full", "MEN_dataset_lemma_form_full"), scored.read_men),
    "scws": (("SCWS/ratings.txt",), scored.read_scws),
    "rg-65": (("EN-RG-65.txt",), scored.read_word_pairs),
}
# A fifth of Multi-SimLex's scale from 0 to 6; aligned pairs that differ by more differ in meaning.
_MOST_DIFFERENT = 1.2 + 1e-9


def find_words(data: Path, options: SuiteOptions) -> Found:
    """Find Multi-SimLex by language, every table in wordsim/, and published sets below it."""
    languages = _languages(data)
    sets = [
        scored_set("words", f"multisimlex-{tag}", path, (tag,), partial(_read_pairs, tag))
        for tag, path in languages.items()
    ]
    for path in sorted((data / "wordsim").glob("*.[ct]sv")):
        sets.append(scored_set("words", path.stem, path, (language_of(path),)))
    for name, (files, reader) in _PUBLISHED.items():
        there = [path for file in files for path in sorted((data / "wordsim").rglob(file))]
        sets += [scored_set("words", name, path, ("en",), reader) for path in there[:1]]
    where = f"{data}/multisimlex/{{}}.tsv, or translation.csv and scores.csv"
    expected = {f"multisimlex-{tag}": where.format(tag) for tag in _REPORTED}
    return Found.of("words", sets, expected)


def find_cross_lingual(data: Path, options: SuiteOptions) -> Found:
    """Find tables A-B.tsv in clws/, and align every two languages of Multi-SimLex by pair id."""
    languages = _languages(data)
    sets = []
    for path in sorted((data / "clws").glob("*.[ct]sv")):
        first, _, second = path.stem.partition("-")
        sets.append(scored_set("clws", path.stem, path, (first, second)))
    for pair in itertools.combinations(sorted(languages), 2):
        if any(one.languages == pair for one in sets):
            continue
        measure = partial(_across, languages, pair)
        name = f"multisimlex-{'-'.join(pair)}"
        sets.append(EvaluationSet("clws", name, languages[pair[0]], pair, measure))
    there = {frozenset(one.languages) for one in sets}
    missing = [
        f"clws/multisimlex-{pair}: both languages in {data}/multisimlex, or {data}/clws/{pair}.tsv"
        for pair in _REPORTED_ACROSS
        if frozenset(pair.split("-")) not in there
    ]
    return Found(sets, missing)


def align(
    first: tuple[list[str], ScoredPairs], second: tuple[list[str], ScoredPairs]
) -> ScoredPairs:
    """Make cross-lingual pairs from two languages of one set, aligned by pair id.

    Multi-SimLex's own pairs are made in the same way (after Camacho-Collados et al. 2015): from ids
    that both languages have and whose scores differ by at most a fifth of the scale, word 1 of each
    language is paired with word 2 of the other, with the mean score. Rows 2i and 2i + 1 come from
    one id.
    """
    (first_ids, a), (second_ids, b) = first, second
    row = {name: i for i, name in enumerate(second_ids)}
    rows = [
        (i, row[name])
        for i, name in enumerate(first_ids)
        if name in row and abs(a.scores[i] - b.scores[row[name]]) <= _MOST_DIFFERENT
    ]
    if not rows:
        raise DataError("the two languages share no pair ids of similar score")
    left = [word for i, _ in rows for word in (a.first[i], a.second[i])]
    right = [word for _, j in rows for word in (b.second[j], b.first[j])]
    means = np.array([(a.scores[i] + b.scores[j]) / 2 for i, j in rows])
    return ScoredPairs(left, right, np.repeat(means, 2))


def _languages(data: Path) -> dict[str, Path]:
    """Map language tags to files, for both published forms of Multi-SimLex."""
    folder = data / "multisimlex"
    found = {path.stem: path for path in sorted(folder.glob("*.tsv"))}
    scores = folder / "scores.csv"
    if scores.is_file():
        for code in read_table(scores).header:
            if code in _CODES:
                found.setdefault(_CODES[code], scores)
    return found


def _read(tag: str, path: Path) -> tuple[list[str], ScoredPairs]:
    """Return the pair ids (none if the file has none) and the pairs of one language."""
    if path.name == "scores.csv":
        code = next(code for code, known in _CODES.items() if known == tag)
        return read_multisimlex(path.parent, code)
    table = read_table(path)
    ids = table.column("pair_id") if "pair_id" in table.header else []
    return ids, read_scored_pairs(path)


def _read_pairs(tag: str, path: Path) -> ScoredPairs:
    return _read(tag, path)[1]


def _across(files: dict[str, Path], pair: tuple[str, str], model: EvaluatedModel) -> Measured:
    first, second = (_read(tag, files[tag]) for tag in pair)
    pairs = align(first, second)
    rho = correlation(model, pairs, pair)
    outcome = Outcome.of(
        "spearman",
        len(pairs.scores) // 2,
        # Both pairs of an id are drawn together, because they share a score.
        lambda weights: rho(np.repeat(weights, 2)),
        note="two pairs an id; spaces compared as they are, without a map",
    )
    return Measured([outcome])
