"""Encode one short text in as few steps as possible.

A run of the model leaves little of Python's code and data in the caches of the processor, so every
function that runs after it costs some microseconds. `Pipeline.encode` takes about fifty.
"""

from __future__ import annotations

import logging
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from mirror_rt.errors import NonFiniteError
from mirror_rt.pipeline.options import EncodePlan
from mirror_rt.tokens.padding import PaddedBatch
from mirror_rt.tokens.tokenization import why_invalid
from mirror_rt.vectors.quantization import Embeddings

if TYPE_CHECKING:
    from mirror_rt.pipeline.pipeline import Pipeline

logger = logging.getLogger("mirror_rt")


def encode_short(
    pipeline: Pipeline, text: str, plan: EncodePlan, show_progress_bar: bool | None
) -> Embeddings | None:
    """Encode a text like `Pipeline.encode`, to [D].

    Returns:
        None if the text is long, is to be padded, cannot be encoded, or wants a progress bar; then
        nothing has happened, and `Pipeline.encode` encodes or refuses it.

    Raises:
        NonFiniteError: the vector is not finite, and `plan.errors` is `"raise"`.
    """
    if show_progress_bar or (show_progress_bar is None and logger.isEnabledFor(logging.INFO)):
        return None
    if pipeline.pad_to is not None or why_invalid(text) is not None:
        return None
    ids = pipeline.tokenizer.short_ids(plan.prompt + text)
    if ids is None:
        return None
    batch = PaddedBatch(np.array([ids], dtype=np.int64), *_mask_and_types(len(ids)))
    vectors = pipeline.model.run_batch(batch, normalize=plan.normalize)
    bad = pipeline.replace_non_finite(batch, vectors, normalize=plan.normalize)
    if bad and plan.errors == "raise":
        raise NonFiniteError(np.array(bad))
    embedding: Embeddings = pipeline.embeddings(vectors, plan)[0]
    return embedding


@lru_cache(maxsize=64)
def _mask_and_types(length: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return the attention mask and the token types, int64 [1, length], of a row by itself."""
    mask, types = np.ones((1, length), np.int64), np.zeros((1, length), np.int64)
    mask.flags.writeable = types.flags.writeable = False
    return mask, types
