"""The forward pass over texts of different length, with little padding."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from mirror_rt.manifest import Pooling
from mirror_rt.tokens import PaddedBatch, RaggedTokens
from mirror_train.pooling import pool

__all__ = ["Embedded", "embed", "embed_batch", "length_groups"]

# What one more pass through the layers costs, in tokens: its kernel launches and small matrices.
# CPU: with all-MiniLM-L6-v2 on words and two AMD EPYC cores, anything from 32 to 512 is as fast.
_PASS_COST = {"cpu": 128, "cuda": 8192}


class Embedded(NamedTuple):
    """Embeddings [n, D] in input order, and how many tokens were computed for them."""

    embeddings: Tensor
    real_tokens: int
    padded_tokens: int


def length_groups(lengths: npt.NDArray[np.int64], *, pass_cost: int) -> list[npt.NDArray[np.int64]]:
    """Split rows, sorted by length, into the groups that are cheapest to run one by one.

    A group of r rows of at most L tokens costs r * L + `pass_cost`; the split with the least sum
    is found by dynamic programming over the distinct lengths.

    Args:
        lengths: int64 [n], tokens of each row.
        pass_cost: cost of one more group, in tokens.

    Returns:
        Row indices of each group; every row is in exactly one.
    """
    order = np.argsort(lengths, kind="stable")
    distinct, counts = np.unique(lengths, return_counts=True)
    ends = np.concatenate([[0], np.cumsum(counts)])
    best, cut = [0], [0]
    for j, length in enumerate(distinct, 1):
        costs = [best[i] + int(ends[j] - ends[i]) * int(length) + pass_cost for i in range(j)]
        cut.append(int(np.argmin(costs)))
        best.append(costs[cut[-1]])
    groups = []
    j = len(distinct)
    while j > 0:
        groups.append(order[ends[cut[j]] : ends[j]])
        j = cut[j]
    return groups


def embed_batch(
    model: torch.nn.Module, batch: PaddedBatch, *, pooling: Pooling, device: torch.device
) -> Tensor:
    """Pooled, not normalised embeddings [rows, D] of one padded batch."""
    ids = torch.from_numpy(batch.input_ids).to(device)
    mask = torch.from_numpy(batch.attention_mask).to(device)
    hidden = model(input_ids=ids, attention_mask=mask).last_hidden_state
    return pool(hidden, mask, pooling)


def embed(
    model: torch.nn.Module,
    tokens: RaggedTokens,
    *,
    pooling: Pooling,
    pad_id: int,
    pad_to: int | None,
    device: torch.device,
) -> Embedded:
    """Embed all of `tokens` in one differentiable pass, grouped by length.

    Args:
        model: a transformers encoder on `device`.
        tokens: n sequences.
        pooling: see `mirror_train.pooling.pool`.
        pad_id: token id to pad with.
        pad_to: pad every row to this many tokens instead of grouping; None to group.
        device: where to compute.
    """
    lengths = tokens.lengths
    if pad_to is None:
        groups = length_groups(lengths, pass_cost=_PASS_COST.get(device.type, 8192))
    else:
        groups = [np.arange(len(tokens))]
    batches = [tokens.pad(rows, pad_id=pad_id, length=pad_to) for rows in groups]
    parts = [embed_batch(model, batch, pooling=pooling, device=device) for batch in batches]
    inverse = torch.from_numpy(np.argsort(np.concatenate(groups))).to(device)
    padded = sum(batch.input_ids.size for batch in batches)
    return Embedded(torch.cat(parts)[inverse], int(lengths.sum()), padded)
