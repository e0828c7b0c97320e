"""Run the forward pass over texts of different lengths with little padding."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from mirror_rt.bundle.families import takes_token_types
from mirror_rt.tokens.batching import plan_batches
from mirror_rt.tokens.padding import PaddedBatch, RaggedTokens
from mirror_train.compute.random_state import RandomState
from mirror_train.model.pooling_head import Head

Rows: TypeAlias = npt.NDArray[np.int64]

# The overhead of one more pass through the layers (kernel launches, small matrices), in tokens.
# CPU: for all-MiniLM-L6-v2 on words and two AMD EPYC cores, all values from 32 to 512 are as fast.
_PASS_COST = {"cpu": 128, "cuda": 8192}
_MOST_TOKENS = 1 << 18  # of a pass, for which another one costs hardly more


def embed_batch(
    model: torch.nn.Module, batch: PaddedBatch, *, head: Head, device: torch.device
) -> Tensor:
    """Return the pooled embeddings [rows, D] of one padded batch, not normalised."""
    ids = torch.from_numpy(batch.input_ids).to(device)
    mask = torch.from_numpy(batch.attention_mask).to(device)
    types = {}
    if batch.token_type_ids.any() and takes_token_types(model):
        types["token_type_ids"] = torch.from_numpy(batch.token_type_ids).to(device)
    return head.embed(model, input_ids=ids, attention_mask=mask, **types)[0]


@dataclass(frozen=True, slots=True)
class Forward:
    """The forward pass from token ids to embeddings, in chunks of rows that run together.

    Attributes:
        model: a transformers encoder on `device`.
        head: makes text vectors [rows, D] of its token vectors.
        pad_id: token id to pad with.
        device: where to compute.
        pad_to: pad every row to this many tokens; None for as few as its chunk needs.
        dtype: dtype of autocast; None for float32.
        same_dropout: whether the rows are n strings and then their n copies, and each copy gets the
            dropout of its string ("controlled dropout", EMNLP 2021, section 4.4 and Table 8). Both
            are padded to one length and run with the generators in the same state.
    """

    model: torch.nn.Module
    head: Head
    pad_id: int
    device: torch.device
    pad_to: int | None = None
    dtype: torch.dtype | None = None
    same_dropout: bool = False

    def chunks(self, tokens: RaggedTokens, *, max_rows: int | None = None) -> list[Rows]:
        """Split rows into chunks of similar length to run together, and return their row indices.

        Every row is in exactly one chunk. `max_rows` limits a chunk to the tokens of that many rows
        of average length (exceeded by less than one row); None takes the cheapest split.
        """
        copies = 2 if self.same_dropout else 1
        n = len(tokens) // copies
        lengths = self._lengths(tokens)[:n]
        if self.pad_to is None:
            pass_cost = _PASS_COST.get(self.device.type, 8192)
            groups = plan_batches(lengths, token_budget=_MOST_TOKENS, run_cost=pass_cost)
        else:
            groups = [np.arange(n)]
        if max_rows is not None:
            groups = _split(groups, lengths, max_rows * lengths.mean() / copies)
        return [np.concatenate([rows + i * n for i in range(copies)]) for rows in groups]

    def embed_chunk(self, tokens: RaggedTokens, rows: Rows) -> Tensor:
        """Return the embeddings [len(rows), D] of a chunk's rows in their order, under autocast."""
        if not self.same_dropout:
            return self._embed_rows(tokens, rows, self.pad_to)
        length = int(self._lengths(tokens)[rows].max())
        strings, copies = np.split(rows, 2)
        random = RandomState.now(self.device)
        first = self._embed_rows(tokens, strings, length)
        random.restore(self.device)
        return torch.cat([first, self._embed_rows(tokens, copies, length)])

    def embed(self, tokens: RaggedTokens, chunks: list[Rows]) -> Tensor:
        """Return the embeddings [n, D] of all rows in their order, from one differentiable pass."""
        with self.autocast():  # around all chunks: each weight is cast to 16 bits once
            return in_order([self.embed_chunk(tokens, rows) for rows in chunks], chunks)

    def autocast(self) -> torch.autocast:
        """Return an autocast context for the model in `dtype`; disabled for float32."""
        return torch.autocast(self.device.type, self.dtype, enabled=self.dtype is not None)

    def padded_tokens(self, tokens: RaggedTokens, chunks: list[Rows]) -> int:
        """Return the number of tokens computed for `chunks`, including padding."""
        lengths = self._lengths(tokens)
        return sum(len(rows) * int(lengths[rows].max()) for rows in chunks)

    def _embed_rows(self, tokens: RaggedTokens, rows: Rows, length: int | None) -> Tensor:
        batch = tokens.pad(rows, pad_id=self.pad_id, length=length)
        with self.autocast():
            return embed_batch(self.model, batch, head=self.head, device=self.device)

    def _lengths(self, tokens: RaggedTokens) -> Rows:
        if self.pad_to is not None:
            return np.full(len(tokens), self.pad_to)
        if self.same_dropout:
            return np.tile(np.maximum(*np.split(tokens.lengths, 2)), 2)
        return tokens.lengths


def _split(groups: list[Rows], lengths: Rows, budget: float) -> list[Rows]:
    """Split groups into parts of at most `budget` tokens, or up to a row more."""
    parts: list[Rows] = []
    for rows in groups:
        count = math.ceil(len(rows) * lengths[rows].max() / budget)
        parts += np.array_split(rows, min(count, len(rows)))
    return parts


def in_order(parts: list[Tensor], chunks: list[Rows]) -> Tensor:
    """Join the embeddings of chunks so that row i of the result belongs to row i of the tokens."""
    inverse = torch.from_numpy(np.argsort(np.concatenate(chunks)))
    return torch.cat(parts)[inverse.to(parts[0].device)]
