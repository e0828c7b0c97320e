"""Find the places of a padded batch's tokens in one sequence without padding.

A padding-free graph takes this as inputs, so that it need not wait for the card to count tokens.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from mirror_rt.tokens.padding import PaddedBatch

POSITIONS = "position_ids"
Int64 = npt.NDArray[np.int64]


class JoinedTokens(NamedTuple):
    """The inputs of a padding-free graph beside those of every graph; each is int64.

    onnxruntime's `PackedMultiHeadAttention` takes the last two under these names.
    """

    token_indices: Int64  # [T], the places in the flattened batch of the tokens to compute
    # [rows, length], where each token is in the joined ones; 0 for the padding.
    token_positions: Int64
    token_offset: Int64  # [rows, length], the places of all tokens, and then those of the padding
    cumulative_sequence_length: Int64  # [rows + 1], where each text begins and the last one ends


def join_tokens(attention_mask: Int64, *, keep_padding: bool = False) -> JoinedTokens:
    """Return where the tokens of a right-padded batch are when they are joined.

    With `keep_padding`, `token_indices` goes on with the places of the padding, which belongs to no
    text: CUDA graphs take arrays whose sizes do not depend on the texts.
    """
    real = attention_mask.reshape(-1) != 0
    tokens = np.flatnonzero(real)
    places = np.concatenate([tokens, np.flatnonzero(~real)])
    positions = np.zeros(attention_mask.shape, dtype=np.int64)
    positions.reshape(-1)[tokens] = np.arange(len(tokens))
    starts = np.zeros(len(attention_mask) + 1, dtype=np.int64)
    np.cumsum(attention_mask.sum(axis=1), out=starts[1:])
    kept = places if keep_padding else tokens
    return JoinedTokens(kept, positions, places.reshape(attention_mask.shape), starts)


def graph_inputs(
    batch: PaddedBatch, names: Mapping[str, str], *, keep_padding: bool = False
) -> dict[str, npt.NDArray[np.integer]]:
    """Return the arrays that a graph with inputs of these names and types takes for a batch."""
    given: dict[str, npt.NDArray[np.integer]] = batch._asdict()
    if POSITIONS in names:
        given[POSITIONS] = np.maximum(batch.attention_mask.cumsum(axis=1) - 1, 0)
    if JoinedTokens._fields[0] in names:
        given |= join_tokens(batch.attention_mask, keep_padding=keep_padding)._asdict()
    return {
        name: given[name].astype(np.int32 if "32" in kind else np.int64, copy=False)
        for name, kind in names.items()
    }
