"""Link entities to the nearest names of a dictionary (EMNLP 2021, section 4.1)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from mirror_rt.encoding.batch_encoder import EmbeddingModel
from mirror_rt.errors import DataError
from mirror_rt.evaluation.readers.concepts import Names
from mirror_rt.vectors.search import search


@dataclass(frozen=True, slots=True)
class Linking:
    """The result of linking n mentions.

    Attributes:
        hits: maps k to float64 [n], 1 where one of the k nearest names shares an id with the
            mention.
        known: number of mentions whose concept has a name in the dictionary; no other can be a hit.
    """

    hits: dict[int, npt.NDArray[np.float64]]
    known: int


def link(
    model: EmbeddingModel, mentions: Names, dictionary: Names, *, ks: tuple[int, ...] = (1, 5)
) -> Linking:
    """Find the k nearest names of every mention, by cosine and with exact search.

    As in BioSyn and SapBERT, k counts names, not concepts. A name or a mention may have several
    ids; the name is right if they share one.

    Raises:
        DataError: no mention has a concept that the dictionary names.
    """
    named = frozenset().union(*dictionary.concepts)
    known = sum(bool(ids & named) for ids in mentions.concepts)
    if known == 0:
        example = ", ".join(sorted(mentions.concepts[0]))
        raise DataError(
            "the dictionary has no name for any concept of the mentions (the first is "
            f"{example}): are the ids of both of one kind?"
        )
    names = list(dict.fromkeys(dictionary.texts))
    row = {name: i for i, name in enumerate(names)}
    concepts: list[set[str]] = [set() for _ in names]
    for name, ids in zip(dictionary.texts, dictionary.concepts, strict=True):
        concepts[row[name]] |= ids
    queries = list(dict.fromkeys(mentions.texts))
    found = search(model.encode(queries), model.encode(names), max(ks)).indices
    nearest = dict(zip(queries, found.tolist(), strict=True))
    ranks = np.array(
        [
            next((i for i, name in enumerate(nearest[text]) if concepts[name] & ids), max(ks))
            for text, ids in zip(mentions.texts, mentions.concepts, strict=True)
        ]
    )
    return Linking({k: (ranks < k).astype(np.float64) for k in ks}, known)
