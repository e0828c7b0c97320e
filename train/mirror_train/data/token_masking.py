"""Mask random spans of tokens (BERT-CF, sections 4.1 and 5.3; after SpanBERT, Joshi et al. 2019).

Masking happens after tokenisation: each token of a span is replaced by one mask token, so the
characters of a token are never separated.
"""

from __future__ import annotations

import math
from collections.abc import Collection

import numpy as np
import numpy.typing as npt

from mirror_rt.tokens.padding import RaggedTokens


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

    The span's length is drawn from a geometric distribution and capped at `most` and at half of the
    sequence's tokens, so that a word of one token is never masked.

    Args:
        tokens: n sequences, special tokens included.
        draws: float64 [m, 2], uniform in [0, 1), which decide the length and place of each span.
        probability: probability of success in the geometric distribution, above 0 and below 1; a
            span has 1 / `probability` tokens on average before it is capped.
        most: maximum number of tokens of a span.
        mask_id: id of the token that replaces each token of a span.
        special_ids: ids of tokens that are never masked and not counted.
        first: index of the first of the m sequences; None for the last m.
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
