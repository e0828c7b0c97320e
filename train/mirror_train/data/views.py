"""Make the two views of each string (EMNLP 2021, sections 2.1 and 2.2)."""

from __future__ import annotations

import math
from collections.abc import Collection
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from mirror_rt.errors import ConfigError
from mirror_rt.masking import mask_span
from mirror_rt.tokens.padding import RaggedTokens
from mirror_train.data.training_data import TrainingData
from mirror_train.recipes.recipe import Recipe

_FEWEST_WORDS = 2  # that a crop leaves
_UNSPACED = 15  # letters of a "word" on average, where a script has no spaces


@lru_cache(maxsize=1)  # needed at every step
def epoch_order(n: int, *, seed: int, epoch: int) -> npt.NDArray[np.int64]:
    """Return the order of n strings in an epoch, which depends only on n, seed and epoch."""
    order = np.random.default_rng([seed, 0, epoch]).permutation(n)
    order.flags.writeable = False
    return order


def step_rng(*, seed: int, step: int) -> np.random.Generator:
    """Return a new generator for one step, so that a resumed run draws the same numbers."""
    return np.random.default_rng([seed, 1, step])


def dropout_seed(rng: np.random.Generator, *, rank: int) -> int:
    """Draw a step's seed for torch's generators, a different one for every process."""
    seed = int(rng.integers(2**63))
    return seed if rank == 0 else int(np.random.default_rng([seed, rank]).integers(2**63))


def make_views(
    data: TrainingData,
    rows: npt.NDArray[np.int64],
    recipe: Recipe,
    *,
    mask_token: str | None,
    rng: np.random.Generator,
) -> list[str]:
    """Return N chosen strings, their positives with a random span masked, and any hard negatives.

    Strings and positives are cropped before, if the recipe says so. Spans of tokens are masked
    later, after tokenisation. Without a mask token, which decoders rarely have, the characters or
    the words are left out. Dropout makes the views differ further inside the model.
    """
    first = [data.first[row] for row in rows]
    second = [data.second[row] for row in rows]
    hard = [] if data.hard_negatives is None else [data.hard_negatives[row] for row in rows]
    if (share := recipe.crop) is not None:
        first, second = (
            [crop_words(text, share, rng) for text in side] for side in (first, second)
        )
    if recipe.span_length == 0:
        return first + second + hard
    if recipe.span_mask == "tokens" or recipe.span_mask == "random-tokens":
        if mask_token is None:
            raise ConfigError(
                "this tokenizer has no mask token: pass --span-length 0, or --span-mask "
                "mask-token, which leaves the characters out"
            )
        return first + second + hard
    masked = [
        mask_span(
            text,
            length=recipe.span_length,
            mask_token=mask_token or "",
            rng=rng,
            method=recipe.span_mask,
        )
        for text in second
    ]
    return first + masked + hard


def crop_words(text: str, share: float, rng: np.random.Generator) -> str:
    """Return a random run of a text's words, of this share of their number, two at least.

    Two of them make a positive pair (Gonzalez-Marquez et al. 2025, arXiv 2508.03453). Characters
    take the place of words where a script has no spaces between them.
    """
    units, between = text.split(), " "
    if units and len(text) > _UNSPACED * len(units):
        units, between = list(text), ""
    count = max(_FEWEST_WORDS, round(share * len(units)))
    if count >= len(units):
        return text
    start = int(rng.integers(len(units) - count + 1))
    return between.join(units[start : start + count])


def mask_token_spans(
    tokens: RaggedTokens,
    draws: npt.NDArray[np.float64],
    *,
    probability: float,
    most: int,
    mask_id: int,
    special_ids: Collection[int],
    first: int | None = None,
    scattered: bool = False,
) -> RaggedTokens:
    """Mask a random span of tokens in each of m sequences, after their tokenisation.

    Each token of a span is replaced by one mask token, so the characters of a token are never
    separated (BERT-CF, sections 4.1 and 5.3; after SpanBERT, Joshi et al. 2019). The span's length
    is drawn from a geometric distribution and capped at `most` and at half of the sequence's
    tokens, so that a word of one token is never masked.

    The m sequences begin with the sequence `first`; None for the last m. `draws`, float64 [m, 2]
    in [0, 1), decide the length and place of each span, which has 1 / `probability` tokens on
    average before it is capped. Tokens of `special_ids` are never masked and not counted.

    `scattered` masks `most` tokens at random places in the place of a span, half of the sequence at
    most (footnote 13 of EMNLP 2021, "random token masking").
    """
    ids = tokens.ids.copy()
    special = np.array(sorted(special_ids), dtype=ids.dtype)
    start = len(tokens) - len(draws) if first is None else first
    spans = tokens.spans()[start : start + len(draws)]
    for (begin, end), (length_draw, place_draw) in zip(spans, draws.tolist(), strict=True):
        own = begin + np.flatnonzero(~np.isin(ids[begin:end], special))
        drawn = 1 + int(math.log1p(-length_draw) / math.log1p(-probability))
        length = min(most if scattered else drawn, most, len(own) // 2)
        place = int(place_draw * (len(own) - length + 1))
        if scattered:
            own = np.random.default_rng(int(place_draw * 2**53)).permutation(own)
        ids[own[place : place + length]] = mask_id
    return RaggedTokens(ids, tokens.offsets)
