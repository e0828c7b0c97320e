"""Random span masking: the input augmentation of Mirror-BERT (EMNLP 2021, section 2.2)."""

from __future__ import annotations

from typing import Literal

import numpy as np

__all__ = ["SpanMask", "mask_span"]

SpanMask = Literal["mask-token", "reference"]


def mask_span(
    text: str,
    *,
    length: int,
    mask_token: str,
    rng: np.random.Generator,
    method: SpanMask = "mask-token",
) -> str:
    """Replace one random span of `length` characters by a mask token.

    `mask-token` puts `mask_token` (the tokenizer's own) in the span's place and masks every
    text of two characters or more, never over half of it. `reference` is what the authors' code
    does: the literal `[MASK]` between spaces, whatever the tokenizer, and texts under 30
    characters left alone.

    Args:
        text: any string.
        length: characters of the span (k in the paper); 0 masks nothing.
        mask_token: the tokenizer's mask token.
        rng: source of the position.
        method: see above.
    """
    if method == "reference":
        if length == 0 or len(text) <= length or len(text) < 30:
            return text
        start = int(rng.integers(len(text) - length))
        # The first occurrence of the drawn span goes, which need not be the drawn one.
        left, _, right = text.partition(text[start : start + length])
        return f"{left} [MASK] {right}"
    length = min(length, len(text) // 2)
    if length == 0:
        return text
    start = int(rng.integers(len(text) - length + 1))
    return text[:start] + mask_token + text[start + length :]
