"""Join the strings and dictionaries of many languages for one encoder, and hold out some words.

The words held out measure an encoder without human scores: how near it finds their translations.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from mirror_rt.encoding.batch_encoder import EmbeddingModel
from mirror_rt.errors import ConfigError
from mirror_train.data.training_data import TrainingData, is_of

Entries = Sequence[tuple[str, str]]

_SHARE, _MOST_WORDS = 20, 50  # one word of 20 is held out, at most 50
_MOST_OTHERS = 150  # words to choose among, beside the right ones


def joint_data(
    by_source: Mapping[str, TrainingData | Entries],
    *,
    temperature: float,
    seed: int,
    pairs: int | None = None,
    known: Collection[str] = (),
) -> TrainingData:
    """Return the strings of all languages and the entries of all dictionaries as one set of pairs.

    The share of each source is the power 1 / temperature of its size, so that a temperature of 1
    keeps the sizes and a high one makes them equal (Devlin 2018, multilingual BERT). Of a large
    source some pairs are left out at random, and those of a small one are repeated. The order of a
    run's batches is random, so each has all sources in these shares. Pairs that share a string,
    also of two languages, are no negatives of each other. An epoch has about `pairs` pairs, or as
    many as there are; the seed decides which are taken.

    Sources with a language that a teacher has `known` get half of an epoch, the others the other
    half, and by default an epoch has as many pairs of others as there are of these.
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
    languages = {name: _languages_of(name, found) for name, found in by_source.items()}
    taught = np.array([any(is_of(tag, known) for tag in languages[name]) for name in by_name])
    shares, total = sizes ** (1 / temperature), sizes.sum()
    if taught.any() and not taught.all():
        shares[taught] *= shares[~taught].sum() / shares[taught].sum()
        total = 2 * sizes[taught].sum()
    total = total if pairs is None else pairs
    wanted = np.maximum(1, np.round(shares / shares.sum() * total)).astype(int)
    rng = np.random.default_rng(seed)
    chosen: list[tuple[str, str]] = []
    of: list[tuple[str | None, str | None]] = []
    for (name, found), count in zip(by_name.items(), wanted, strict=True):
        times, rest = divmod(int(count), len(found))
        rows = [*list(range(len(found))) * times, *rng.permutation(len(found))[:rest].tolist()]
        chosen += [found[row] for row in rows]
        of += [languages[name]] * len(rows)
    source = ", ".join(f"{name} {n}" for name, n in zip(by_name, wanted, strict=True))
    return TrainingData.of_pairs(chosen, source, languages=of)


def _languages_of(name: str, found: TrainingData | Entries) -> tuple[str | None, str | None]:
    """Return the languages of both strings of a source's pairs, by the name of a dictionary."""
    if isinstance(found, TrainingData):
        return found.language, found.language
    named = re.match(r"([a-z]{2,3})-([a-z]{2,3})(?![a-z])", name)
    return (named[1], named[2]) if named else (None, None)


@dataclass(frozen=True, slots=True)
class HeldOut:
    """Entries of a thesaurus or dictionary that no encoder was tuned on."""

    name: str  # name of the source
    entries: list[tuple[str, str]]  # pairs (word, synonym or translation)
    candidates: list[str]  # the words among which that of each word is looked for

    def reciprocal_rank(self, model: EmbeddingModel) -> float:
        """Return the mean of 1 / rank of each word's nearest right answer, by cosine; 0 .. 1."""
        right: dict[str, set[str]] = {}
        for word, answer in self.entries:
            right.setdefault(word, set()).add(answer)
        x = np.asarray(model.encode(list(right), normalize_embeddings=True))
        z = np.asarray(model.encode(self.candidates, normalize_embeddings=True))
        ranks = []
        for word, cosines in zip(right, x @ z.T, strict=True):
            wanted = np.array([one in right[word] for one in self.candidates])
            own = np.array([one == word for one in self.candidates])
            ranks.append(1 + int((cosines[~own] > cosines[wanted].max()).sum()))
        return float(np.mean(1 / np.array(ranks)))


def hold_out(name: str, entries: Entries, *, seed: int) -> tuple[list[tuple[str, str]], HeldOut]:
    """Split the entries of a source into those to tune on and those to measure with.

    One in 20 of the words that are translated, at most 50, is held out, with all entries that it
    is in, so that no encoder sees it in a pair of this source.
    """
    words = list(dict.fromkeys(word for word, _ in entries))
    rng = np.random.default_rng(seed)
    count = min(_MOST_WORDS, max(1, len(words) // _SHARE))
    chosen = {words[row] for row in rng.permutation(len(words))[:count]}
    held = [pair for pair in entries if pair[0] in chosen]
    kept = [pair for pair in entries if not chosen & {*pair}]
    others = list(dict.fromkeys(answer for _, answer in kept))[:_MOST_OTHERS]
    return kept, HeldOut(name, held, list(dict.fromkeys([*(b for _, b in held), *others])))
