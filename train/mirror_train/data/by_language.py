"""Fill the batches of an epoch with pairs of one language each.

In a batch of many languages, translations of a string are among its negatives, and the others can
be told from it by their language, which an encoder may know without tuning.
"""

from __future__ import annotations

from collections import Counter

import numpy as np
import numpy.typing as npt

from mirror_train.data.training_data import TrainingData

Rows = npt.NDArray[np.int64]

_ANY = -1  # of pairs that go with those of all languages


def language_sets(data: TrainingData) -> list[frozenset[str | None]] | None:
    """Return the language of each pair's strings, or the two that they have; None if unknown."""
    return None if data.languages is None else [frozenset(pair) for pair in data.languages]


def numbered_languages(data: TrainingData, batch: int) -> Rows | None:
    """Return a number for the language of each pair, or for its two.

    The number is -1 for a language that cannot fill a batch without copies of a pair, because
    copies are no negatives of each other.

    Returns:
        int64 [n]; None where languages are unknown, or the same for all pairs.
    """
    languages = language_sets(data) or []
    pairs = Counter(languages)
    if len(pairs) < 2:
        return None
    different = Counter(one for one, *_ in {*zip(languages, data.first, data.second, strict=True)})
    numbers = {
        one: number if different[one] >= min(pairs[one], batch) else _ANY
        for number, one in enumerate(pairs)
    }
    return np.array([numbers[one] for one in languages], dtype=np.int64)


def by_language(order: Rows, languages: Rows, batch: int, rng: np.random.Generator) -> Rows:
    """Return an order whose batches have one language each, and follow each other at random.

    A batch in which one language ends also has the next one. Pairs of the number -1 are spread at
    random over the batches of all languages.

    Args:
        order: int64 [n], a permutation; within a language it is kept.
        languages: int64 [n], of `numbered_languages`.
        batch: number of pairs of a batch; the last one may be smaller.
        rng: chooses which languages meet, and the order of the batches.

    Returns:
        int64 [n], a permutation.
    """
    found = languages[order]
    spread, known = found == _ANY, found[found != _ANY]
    if not len(known):
        return order
    found[spread] = rng.choice(known, spread.sum())
    order = order[rng.permutation(known.max() + 1)[found].argsort(kind="stable")]
    whole = len(order) - len(order) % batch
    batches = rng.permutation(order[:whole].reshape(-1, batch))
    return np.concatenate([batches.ravel(), order[whole:]])
