"""Random span masking of tokens (BERT-CF, sections 4.1 and 5.3; after SpanBERT, Joshi et al. 2019).

The characters of a word are never cut: the span's tokens become mask tokens, one for one, after
tokenisation.
"""

from __future__ import annotations

import math
from collections.abc import Collection

import numpy as np
import numpy.typing as npt

from mirror_rt.tokens.padding import RaggedTokens
from mirror_train.data.batches import StepBatch
from mirror_train.model.pretrained import Pretrained
from mirror_train.recipes.recipe import Recipe

__all__ = ["ViewTokenizer", "mask_token_spans"]


class ViewTokenizer:
    """A step's strings to token ids, with a span of each positive masked where that is asked for.

    Args:
        pretrained: the model whose tokenizer it is.
        recipe: its limit of tokens and its masking.
    """

    def __init__(self, pretrained: Pretrained, recipe: Recipe) -> None:
        self._tokenize = pretrained.text_tokenizer(recipe.max_length)
        self._recipe = recipe
        tokenizer = pretrained.hf_tokenizer
        self._mask_id = tokenizer.mask_token_id
        frame = ("cls", "sep", "bos", "eos", "pad")
        found = [getattr(tokenizer, f"{name}_token_id") for name in frame]
        self._special_ids = {id for id in found if id is not None}

    def __call__(self, batch: StepBatch) -> RaggedTokens:
        """Tokens of the strings of a batch."""
        tokens = self._tokenize(batch.texts).tokens
        if batch.span_draws is None:
            return tokens
        return mask_token_spans(
            tokens,
            batch.span_draws,
            probability=self._recipe.span_probability,
            most=self._recipe.span_length,
            mask_id=self._mask_id,
            special_ids=self._special_ids,
            first=len(tokens) // batch.views,
        )


def mask_token_spans(
    tokens: RaggedTokens,
    draws: npt.NDArray[np.float64],
    *,
    probability: float,
    most: int,
    mask_id: int,
    special_ids: Collection[int],
    first: int | None = None,
) -> RaggedTokens:
    """Mask a random span of tokens in each of m sequences.

    The span's length is drawn from a geometric distribution and capped; it is never over half of
    the sequence's tokens, so that a word of one token stays.

    Args:
        tokens: n sequences, special tokens included.
        draws: float64 [m, 2], uniform in [0, 1): what length and place of each span follow from.
        probability: of success in the geometric distribution, above 0 and below 1; a span has
            1 / `probability` tokens on average before it is capped.
        most: tokens of the longest span.
        mask_id: what takes the place of each token of the span.
        special_ids: tokens that are never masked and do not count.
        first: the first of the m sequences; None for the last m.
    """
    ids = tokens.ids.copy()
    special = np.array(sorted(special_ids), dtype=ids.dtype)
    start = len(tokens) - len(draws) if first is None else first
    spans = tokens.spans()[start : start + len(draws)]
    for (begin, end), (length_draw, place_draw) in zip(spans, draws.tolist(), strict=True):
        own = begin + np.flatnonzero(~np.isin(ids[begin:end], special))
        drawn = 1 + int(math.log1p(-length_draw) / math.log1p(-probability))
        length = min(drawn, most, len(own) // 2)
        place = int(place_draw * (len(own) - length + 1))
        ids[own[place : place + length]] = mask_id
    return RaggedTokens(ids, tokens.offsets)
