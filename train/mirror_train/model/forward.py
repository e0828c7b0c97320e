"""The forward pass over texts of different length, with little padding."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias, cast

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from mirror_rt.bundle.manifest import PoolingMode
from mirror_rt.tokens.padding import PaddedBatch, RaggedTokens
from mirror_train.compute.random_state import RandomState
from mirror_train.model.pooling import pool

__all__ = ["Forward", "Rows", "embed_batch", "in_order", "length_groups"]

Rows: TypeAlias = npt.NDArray[np.int64]

# What one more pass through the layers costs, in tokens: its kernel launches and small matrices.
# CPU: with all-MiniLM-L6-v2 on words and two AMD EPYC cores, anything from 32 to 512 is as fast.
_PASS_COST = {"cpu": 128, "cuda": 8192}


def length_groups(lengths: Rows, *, pass_cost: int) -> list[Rows]:
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
    model: torch.nn.Module,
    batch: PaddedBatch,
    *,
    head: Callable[[Tensor, Tensor], Tensor],
    device: torch.device,
) -> Tensor:
    """Pooled, not normalised embeddings [rows, D] of one padded batch.

    Args:
        model: a transformers encoder on `device`.
        batch: its input.
        head: from token vectors [rows, L, H] and mask [rows, L] to text vectors.
        device: where to compute.
    """
    ids = torch.from_numpy(batch.input_ids).to(device)
    mask = torch.from_numpy(batch.attention_mask).to(device)
    hidden = model(input_ids=ids, attention_mask=mask).last_hidden_state
    return head(hidden, mask)


@dataclass(frozen=True, slots=True)
class Forward:
    """From token ids to embeddings: which rows go through the model together, and how.

    Attributes:
        model: a transformers encoder on `device`.
        pooling: see `mirror_train.model.pooling.pool`.
        pad_id: token id to pad with.
        pad_to: pad every row to this many tokens; None for as few as its chunk needs.
        device: where to compute.
        dtype: of autocast, None for float32.
        same_dropout: the rows are n strings and then their n copies, and each copy gets the dropout
            of its string ("controlled dropout", EMNLP 2021, section 4.4 and Table 8): both are
            padded to one length and run with the generators in the same state.
        layer: what follows the pooling, [rows, H] to [rows, D]; None for nothing.
    """

    model: torch.nn.Module
    pooling: PoolingMode
    pad_id: int
    pad_to: int | None
    device: torch.device
    dtype: torch.dtype | None = None
    same_dropout: bool = False
    layer: nn.Module | None = None

    def chunks(self, tokens: RaggedTokens, *, max_rows: int | None = None) -> list[Rows]:
        """Rows to run together: those of similar length.

        Args:
            tokens: n sequences.
            max_rows: let no chunk hold more tokens than so many rows of average length do (a row
                less than a whole one over); None for as many as are cheapest.

        Returns:
            Row indices of each chunk, for `embed_chunk`; every row is in exactly one.
        """
        copies = 2 if self.same_dropout else 1
        n = len(tokens) // copies
        lengths = self._lengths(tokens)[:n]
        if self.pad_to is None:
            pass_cost = _PASS_COST.get(self.device.type, 8192)
            groups = length_groups(lengths, pass_cost=pass_cost)
        else:
            groups = [np.arange(n)]
        if max_rows is not None:
            groups = _split(groups, lengths, max_rows * lengths.mean() / copies)
        return [np.concatenate([rows + i * n for i in range(copies)]) for rows in groups]

    def embed_chunk(self, tokens: RaggedTokens, rows: Rows) -> Tensor:
        """Embeddings [len(rows), D] of the rows of a chunk, in their order, under autocast."""
        if not self.same_dropout:
            return self._embed_rows(tokens, rows, self.pad_to)
        length = int(self._lengths(tokens)[rows].max())
        strings, copies = np.split(rows, 2)
        random = RandomState.now(self.device)
        first = self._embed_rows(tokens, strings, length)
        random.restore(self.device)
        return torch.cat([first, self._embed_rows(tokens, copies, length)])

    def embed(self, tokens: RaggedTokens, chunks: list[Rows]) -> Tensor:
        """Embeddings [n, D] of all rows, in their order, in one differentiable pass."""
        with self.autocast():  # around all chunks: each weight is cast to 16 bits once
            return in_order([self.embed_chunk(tokens, rows) for rows in chunks], chunks)

    def autocast(self) -> torch.autocast:
        """A context for the model, in `dtype`."""
        return torch.autocast(self.device.type, self.dtype, enabled=self.dtype is not None)

    def padded_tokens(self, tokens: RaggedTokens, chunks: list[Rows]) -> int:
        """Tokens computed for `chunks`, padding included."""
        lengths = self._lengths(tokens)
        return sum(len(rows) * int(lengths[rows].max()) for rows in chunks)

    def _embed_rows(self, tokens: RaggedTokens, rows: Rows, length: int | None) -> Tensor:
        batch = tokens.pad(rows, pad_id=self.pad_id, length=length)
        with self.autocast():
            return embed_batch(self.model, batch, head=self._head, device=self.device)

    def _head(self, hidden: Tensor, mask: Tensor) -> Tensor:
        vectors = pool(hidden, mask, self.pooling)
        return vectors if self.layer is None else cast(Tensor, self.layer(vectors))

    def _lengths(self, tokens: RaggedTokens) -> Rows:
        if self.pad_to is not None:
            return np.full(len(tokens), self.pad_to)
        if self.same_dropout:
            return np.tile(np.maximum(*np.split(tokens.lengths, 2)), 2)
        return tokens.lengths


def _split(groups: list[Rows], lengths: Rows, budget: float) -> list[Rows]:
    """Groups in parts of at most `budget` tokens, or a row more."""
    parts: list[Rows] = []
    for rows in groups:
        count = math.ceil(len(rows) * lengths[rows].max() / budget)
        parts += np.array_split(rows, min(count, len(rows)))
    return parts


def in_order(parts: list[Tensor], chunks: list[Rows]) -> Tensor:
    """Join the embeddings of chunks: row i of the result is that of token row i."""
    inverse = torch.from_numpy(np.argsort(np.concatenate(chunks)))
    return torch.cat(parts)[inverse.to(parts[0].device)]
