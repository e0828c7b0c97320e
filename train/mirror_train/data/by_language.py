"""Fill the batches of an epoch with pairs of one language each.

In a batch of many languages, translations of a string are among its negatives, and most others
differ from it by their language alone, which the encoder knew before.
"""

from __future__ import annotations

from collections import Counter

import numpy as np
import numpy.typing as npt

from mirror_train.data.training_data import TrainingData

Rows = npt.NDArray[np.int64]

_ANY = -1  # in place of a language, of pairs that go with all others


def numbered_languages(data: TrainingData, batch: int) -> Rows | None:
    """Return a number for each pair's language, or for its two; int64 [n], None if unknown.

    It is -1 where the epoch has a pair more than once, and too few different ones of the language
    for a batch: copies are no negatives of each other.
    """
    if data.languages is None:
        return None
    languages = [frozenset(pair) for pair in data.languages]
    pairs = Counter(languages)
    different = Counter(one for one, *_ in {*zip(languages, data.first, data.second, strict=True)})
    numbers = {
        one: number if different[one] >= min(pairs[one], batch) else _ANY
        for number, one in enumerate(pairs)
    }
    return np.array([numbers[one] for one in languages], dtype=np.int64)


def by_language(order: Rows, languages: Rows, batch: int, rng: np.random.Generator) -> Rows:
    """Return the order in which most batches have one language, and follow each other at random.

    Only batches in which one language ends and others begin have several, and those that take in
    pairs of `_ANY` language, which are spread at random.

    Args:
        order: int64 [n], a permutation; the pairs of a language keep theirs.
        languages: int64 [n], of `numbered_languages`.
        batch: number of pairs of a batch; the last one may be smaller.
        rng: chooses which languages meet, and the order of the batches.
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
