"""Ragged token ids, which are right-padded to batches in C++ (csrc/tokens/padding.cpp)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from mirror_rt import _core


class PaddedBatch(NamedTuple):
    """A right-padded batch; each member is int64 [rows, length]."""

    input_ids: npt.NDArray[np.int64]
    attention_mask: npt.NDArray[np.int64]
    token_type_ids: npt.NDArray[np.int64]


@lru_cache(maxsize=64)
def mask_and_types(length: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return the attention mask and the token types, int64 [1, length], of a row by itself."""
    mask, types = np.ones((1, length), np.int64), np.zeros((1, length), np.int64)
    mask.flags.writeable = types.flags.writeable = False
    return mask, types


@dataclass(frozen=True)
class RaggedTokens:
    """Token ids of n sequences of different length, in one array."""

    # int32 [T], the sequences one after the other. A token of type 1, of the second text of a pair,
    # is stored as ~id, which is negative: so its type is wherever the row is, in queues and caches,
    # too.
    ids: npt.NDArray[np.int32]
    offsets: npt.NDArray[np.int64]  # int64 [n + 1]; sequence i is `ids[offsets[i]:offsets[i + 1]]`

    @classmethod
    def from_lists(cls, sequences: list[list[int]]) -> RaggedTokens:
        """Concatenate `sequences`; ValueError for an id outside 0 .. 2^31 - 1."""
        return cls(*_core.flatten(sequences))

    def without(self, left_out: int) -> RaggedTokens:
        """Return the sequences without one id; -1 for all of them."""
        if left_out < 0:
            return self
        kept = self.ids != left_out
        return RaggedTokens(self.ids[kept], np.append(0, np.cumsum(kept))[self.offsets])

    @classmethod
    def from_arrays(cls, sequences: Sequence[npt.NDArray[np.int32]]) -> RaggedTokens:
        """Concatenate int32 arrays; a single one is not copied."""
        if len(sequences) == 1:
            return cls(sequences[0], np.array([0, len(sequences[0])]))
        offsets = np.zeros(len(sequences) + 1, dtype=np.int64)
        np.cumsum([len(sequence) for sequence in sequences], out=offsets[1:])
        return cls(np.concatenate([np.empty(0, np.int32), *sequences]), offsets)

    def take(self, rows: npt.NDArray[np.int64]) -> RaggedTokens:
        """Return only the sequences `rows`, int64 [b], in that order."""
        spans = self.spans()
        return self.from_arrays([self.ids[slice(*spans[row])] for row in rows.tolist()])

    def spans(self) -> list[tuple[int, int]]:
        """Return begin and end of each sequence in `ids`."""
        return list(pairwise(self.offsets.tolist()))

    def key(self, row: int) -> bytes:
        """Return bytes that are equal for equal sequences alone."""
        return self.ids[self.offsets[row] : self.offsets[row + 1]].tobytes()

    def keys(self) -> list[bytes]:
        """Return the keys of all sequences."""
        data, size = self.ids.tobytes(), self.ids.itemsize
        return [data[begin:end] for begin, end in pairwise((size * self.offsets).tolist())]

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @cached_property
    def lengths(self) -> npt.NDArray[np.int64]:
        """The number of tokens of each sequence, int64 [n]."""
        return self.offsets[1:] - self.offsets[:-1]

    def pad(
        self, rows: npt.NDArray[np.int64] | None, *, pad_id: int, length: int | None = None
    ) -> PaddedBatch:
        """Right-pad the sequences `rows` (int64 [B]; None for all) to `length`, or the longest."""
        rows = np.arange(len(self)) if rows is None else rows
        arrays = _core.pad_rows(
            self.ids, self.offsets, rows, pad_id=pad_id, length=-1 if length is None else length
        )
        batch = PaddedBatch(*arrays)
        ids = batch.input_ids
        if ids.size and ids.min() < 0:
            second = ids >> 63  # -1 for the tokens of type 1, else 0
            np.bitwise_xor(ids, second, out=ids)
            np.negative(second, out=batch.token_type_ids)
        return batch
