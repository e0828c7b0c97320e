"""Random span masking: the input augmentation of Mirror-BERT (EMNLP 2021, section 2.2)."""

from __future__ import annotations

from typing import Literal, get_args

import numpy as np

from mirror_rt.errors import ConfigError

SpanMask = Literal["mask-token", "half", "reference", "words", "reorder"]


def mask_span(
    text: str,
    *,
    length: int,
    mask_token: str,
    rng: np.random.Generator,
    method: SpanMask = "mask-token",
) -> str:
    """Replace one random span of `length` characters by a mask token.

    `mask-token` replaces the span by `mask_token`, the tokenizer's own, "a consecutive string of
    length k" as the paper has it; of a text that is not longer than the span, which the paper says
    nothing of, half is masked. `half` never masks more than half of any text. Both mask every text
    of two characters or more. `reference` follows the authors' code: it inserts the literal
    `[MASK]` between spaces, whatever the tokenizer, and leaves texts of fewer than 30 characters
    alone. Two take the place of a span (footnote 13): `words` masks whole words at random places,
    half of them at most, and `reorder` changes the order of as many words.

    Args:
        text: any string.
        length: characters of the span (k in the paper), or number of words; 0 changes nothing.
        mask_token: the tokenizer's mask token.
        rng: random generator for the position of the span.
        method: see above; a ConfigError for another.
    """
    if method not in get_args(SpanMask):
        raise ConfigError(
            field="method", expected=f"one of {', '.join(get_args(SpanMask))}", value=method
        )
    if method == "words" or method == "reorder":
        words = text.split()
        count = min(length, len(words) // 2 if method == "words" else len(words))
        places = rng.choice(len(words), count, replace=False)
        new = [words[i] for i in np.sort(places)] if method == "reorder" else [mask_token] * count
        for place, word in zip(places, new, strict=True):
            words[place] = word
        return " ".join(words) if count else text
    if method == "reference":
        if length == 0 or len(text) <= length or len(text) < 30:
            return text
        start = int(rng.integers(len(text) - length))
        # Like the authors' code, this replaces the first occurrence of the drawn span's text, which
        # need not be at the drawn position.
        left, _, right = text.partition(text[start : start + length])
        return f"{left} [MASK] {right}"
    if method == "half" or length >= len(text):
        length = min(length, len(text) // 2)
    if length == 0:
        return text
    start = int(rng.integers(len(text) - length + 1))
    return text[:start] + mask_token + text[start + length :]
