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

__all__ = ["mask_token_spans"]


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
