"""Tokenise the texts of a request in steps, between which it can be ended."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np

from mirror_rt.errors import InvalidTextError
from mirror_rt.pipeline.options import EncodePlan
from mirror_rt.pipeline.pipeline import Pipeline
from mirror_rt.tokens.chunking import TokenRows
from mirror_rt.tokens.padding import RaggedTokens
from mirror_rt.tokens.tokenization import Stopped
from mirror_rt.tokens.windows import cut_ranges

# Limits of a call that is tokenised in the event loop itself, within a fraction of a millisecond:
# the number of texts, and the total number of characters or token ids.
_MOST_INLINE_TEXTS, _MOST_INLINE_SIZE = 8, 1024
# Texts that are tokenised in one step, which cannot be interrupted: their encodings are all in
# memory at once, at some hundred bytes a token.
_STEP_TEXTS, _STEP_CHARACTERS = 1024, 1 << 18


def is_short(texts: list[Any]) -> bool:
    """Return whether tokenising texts takes less time than handing them to another thread."""
    return len(texts) <= _MOST_INLINE_TEXTS and sum(map(_size, texts)) <= _MOST_INLINE_SIZE


def is_long(texts: list[Any]) -> bool:
    """Return whether texts take more than one step."""
    return len(texts) > _STEP_TEXTS or sum(map(_size, texts)) > _STEP_CHARACTERS


def tokenize(
    pipeline: Pipeline, texts: list[Any], plan: EncodePlan, stop: threading.Event
) -> TokenRows:
    """Check and tokenise texts, or check token ids, step by step; raise Stopped once `stop` is set.

    An InvalidTextError names all texts that cannot be encoded.
    """
    clip = pipeline.tokenizer.clip_characters
    steps = cut_ranges([min(_size(text), clip) for text in texts], _STEP_TEXTS, _STEP_CHARACTERS)
    if len(steps) == 1:
        return pipeline.tokenize(texts, plan, stop)
    parts, invalid = [], []
    for step in steps:
        if stop.is_set():
            raise Stopped
        try:
            parts.append(pipeline.tokenize(texts[step.start : step.stop], plan, stop))
        except InvalidTextError as error:
            invalid += [(step.start + i, reason) for i, reason in error.items]
    if invalid:
        raise InvalidTextError(invalid)
    return _joined(parts)


def _joined(parts: list[TokenRows]) -> TokenRows:
    """Join the rows of consecutive texts."""
    starts = np.cumsum([0, *(len(part.truncated) for part in parts)]).tolist()
    numbered = list(zip(starts, parts, strict=False))
    text = weights = None
    if any(part.text is not None for part in parts):
        text = np.concatenate([start + part.text_of_rows() for start, part in numbered])
    if any(part.weights is not None for part in parts):
        ones = [np.ones(len(part.tokens), np.float32) for part in parts]
        weights = np.concatenate([
            one if part.weights is None else part.weights
            for one, part in zip(ones, parts, strict=True)
        ])  # fmt: skip
    return TokenRows(
        0,
        RaggedTokens.from_arrays(
            [part.tokens.ids[begin:end] for part in parts for begin, end in part.tokens.spans()]
        ),
        np.concatenate([part.truncated for part in parts]),
        [(start + i, why) for start, part in numbered for i, why in part.invalid],
        text,
        weights,
    )


def _size(text: Any) -> int:
    return len(text) if isinstance(text, str | list) else 0
