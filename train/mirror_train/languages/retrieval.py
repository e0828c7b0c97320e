"""Measure an encoder without human scores: how near it finds held-out synonyms and translations."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from mirror_rt.encoding.batch_encoder import EmbeddingModel
from mirror_train.languages.joint import Entries

_SHARE, _MOST_WORDS = 20, 50  # one word of 20 is held out, at most 50
_MOST_OTHERS = 150  # words to choose among, beside the right ones


@dataclass(frozen=True, slots=True)
class HeldOut:
    """Entries of a thesaurus or dictionary that no encoder was tuned on.

    Attributes:
        name: name of the source.
        entries: pairs (word, synonym or translation).
        candidates: the words among which that of each word is looked for.
    """

    name: str
    entries: list[tuple[str, str]]
    candidates: list[str]

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
