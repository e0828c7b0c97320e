"""Read the Paraphrase Database, PPDB 2.0: phrases, their paraphrases and the relation of the two.

A line has six fields with ` ||| ` between them: syntactic category, phrase, paraphrase, features
(`NAME=VALUE`), alignment, and the label of the entailment relation.
"""

from __future__ import annotations

import logging
import math
import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from mirror_rt.errors import DataError
from mirror_rt.evaluation import ScoredPairs
from mirror_rt.io.text import iter_lines
from mirror_rt.tokens.validity import why_invalid
from mirror_train.data.labelled_examples import Examples

logger = logging.getLogger("mirror_train")

RELATIONS = ("equivalence", "entailment", "independent")
# BURT, section 3.1: the model is symmetric, so both directions count as entailment.
_RELATION = {
    "Equivalence": "equivalence",
    "ForwardEntailment": "entailment",
    "ReverseEntailment": "entailment",
    "Independent": "independent",
}
_DROPPED = ("Exclusion", "OtherRelated")
_NONTERMINAL = re.compile(r"\[[^\]\s]+\]")  # [NP,1], in syntactic paraphrases
_SCORE = re.compile(r"(?:^|\s)Equivalence=(\S+)")
_FORM = "LHS ||| PHRASE ||| PARAPHRASE ||| FEATURES ||| ALIGNMENT ||| ENTAILMENT"


@dataclass(frozen=True, slots=True)
class Ppdb:
    """n pairs of the Paraphrase Database, as BURT (Li and Zhao 2020, section 3.1) filters them."""

    # The pairs and their relation: equivalence, entailment (in either direction) or independent.
    pairs: Examples
    # float64 [n], the probability that the two are equivalent; NaN where a line does not give it.
    equivalence: npt.NDArray[np.float64]

    def phrase_similarity(self) -> ScoredPairs:
        """Return pairs with their probability of equivalence as similarity (BURT, section 4.2).

        Pairs of two single words and pairs without that probability are left out.
        """
        pairs = self.pairs
        kept = [
            i
            for i, (a, b) in enumerate(pairs.items())
            if (" " in a or " " in b) and not math.isnan(self.equivalence[i])
        ]
        if len(kept) < 2:
            raise DataError(f"{pairs.source} has no phrases with a probability of equivalence")
        chosen = pairs.take(kept)
        return ScoredPairs(chosen.first, chosen.second or [], self.equivalence[kept])


def balanced(pairs: Examples, *, seed: int, per_relation: int | None = None) -> Examples:
    """Draw equally many pairs of each relation at random, in their old order.

    `per_relation` is their number; None takes all of the rarest relation.
    """
    pairs.check_classes()
    counts = np.bincount(pairs.targets, minlength=len(RELATIONS))
    count = int(counts.min()) if per_relation is None else per_relation
    rarest = RELATIONS[int(counts.argmin())]
    if count < 1 or counts.min() < count:
        raise DataError(
            f"{pairs.source} has {counts.min()} pairs of the relation {rarest!r}, {count} of each "
            "were asked for"
        )
    rng = np.random.default_rng([seed, 4])
    rows = [
        rng.choice(np.flatnonzero(pairs.targets == relation), count, replace=False)
        for relation in range(len(RELATIONS))
    ]
    return pairs.take(np.sort(np.concatenate(rows)))


def read_ppdb(path: Path) -> Ppdb:
    """Read a file of PPDB 2.0, plain or `.gz`, with the filters of BURT (section 3.1).

    Pairs of the relations Exclusion and OtherRelated are dropped, and so are repetitions and lines
    with missing fields, an unknown relation, a nonterminal (of syntactic paraphrases) or a blank
    phrase. All are counted and reported.
    """
    skipped: Counter[str] = Counter()
    found: dict[tuple[str, str], tuple[int, float]] = {}
    example = ""
    for line in iter_lines(path):
        if not line.strip():
            continue
        fields = [cell.strip() for cell in line.split("|||")]
        reason = _why_skipped(fields)
        if reason is None and (fields[1], fields[2]) in found:
            reason = "repeated"
        if reason is not None:
            skipped[reason] += 1
            example = example or line[:80]
            continue
        relation = RELATIONS.index(_RELATION[fields[5]])
        found[fields[1], fields[2]] = relation, _equivalence(fields[3])
    if not found:
        raise DataError(
            f"{path} has no pairs (lines left out: {_counts(skipped) or 'none'}); expected lines "
            f"{_FORM}, found {example!r}"
        )
    if skipped:
        logger.warning("%s: %d pairs; left out: %s", path, len(found), _counts(skipped))
    relations = np.array([relation for relation, _ in found.values()], dtype=np.int64)
    pairs = Examples(
        [a for a, _ in found],
        [b for _, b in found],
        relations,
        RELATIONS,
        path.name,
        skipped.total(),
    )
    return Ppdb(pairs, np.array([score for _, score in found.values()]))


def _why_skipped(fields: list[str]) -> str | None:
    """Return why BURT leaves a line out; None for a line that it takes."""
    if len(fields) != 6:
        return "missing fields" if len(fields) < 6 else "too many fields"
    if fields[5] in _DROPPED:
        return fields[5]
    if fields[5] not in _RELATION:
        return "unknown relation"
    phrases = fields[1:3]
    if any(why_invalid(phrase) for phrase in phrases):
        return "blank or invalid phrase"
    if any(_NONTERMINAL.search(phrase) for phrase in phrases):
        return "nonterminal"
    return None


def _equivalence(features: str) -> float:
    match = _SCORE.search(features)
    try:
        value = float(match[1]) if match else math.nan
    except ValueError:
        return math.nan
    return value if math.isfinite(value) else math.nan


def _counts(skipped: Counter[str]) -> str:
    return ", ".join(f"{n} {reason}" for reason, n in sorted(skipped.items()))
