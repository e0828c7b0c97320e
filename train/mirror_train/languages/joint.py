"""Join the strings of many languages, and their dictionaries, for one encoder of all of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from mirror_rt.errors import ConfigError
from mirror_train.data.training_data import TrainingData

Entries = Sequence[tuple[str, str]]


def joint_data(
    by_source: Mapping[str, TrainingData | Entries],
    *,
    temperature: float,
    seed: int,
    pairs: int | None = None,
) -> TrainingData:
    """Return the strings of all languages and the entries of all dictionaries as one set of pairs.

    The share of each source is the power 1 / temperature of its size, so that a temperature of 1
    keeps the sizes and a high one makes them equal (Devlin 2018, multilingual BERT). Of a large
    source some pairs are left out at random, and those of a small one are repeated. The order of a
    run's batches is random, so each has all sources in these shares. Pairs that share a string,
    also of two languages, are no negatives of each other. An epoch has about `pairs` pairs, or as
    many as there are; the seed decides which are taken.
    """
    if not temperature >= 1:
        raise ConfigError(f"the temperature of the shares must be at least 1, got {temperature}")
    if not by_source:
        raise ConfigError("there are no strings to join: name two languages")
    by_name = {
        name: list(zip(found.first, found.second, strict=True))
        if isinstance(found, TrainingData)
        else list(found)
        for name, found in by_source.items()
    }
    sizes = np.array([len(found) for found in by_name.values()])
    shares = sizes ** (1 / temperature) / (sizes ** (1 / temperature)).sum()
    total = sizes.sum() if pairs is None else pairs
    wanted = np.maximum(1, np.round(shares * total)).astype(int)
    rng = np.random.default_rng(seed)
    chosen: list[tuple[str, str]] = []
    for found, count in zip(by_name.values(), wanted, strict=True):
        times, rest = divmod(int(count), len(found))
        rows = [*list(range(len(found))) * times, *rng.permutation(len(found))[:rest].tolist()]
        chosen += [found[row] for row in rows]
    source = ", ".join(f"{name} {n}" for name, n in zip(by_name, wanted, strict=True))
    return TrainingData.of_pairs(chosen, source)
