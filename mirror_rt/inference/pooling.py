"""Pool the vectors of tokens as sentence-transformers does."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from mirror_rt.inference.pooled_model import Vectors


def pool(tokens: Vectors, mask: npt.NDArray[np.int64], modes: Sequence[str]) -> Vectors:
    """Pool a right-padded batch as sentence-transformers' Pooling does.

    Args:
        tokens: float32 [rows, L, H], a vector for each token.
        mask: int64 [rows, L], 1 for tokens and 0 for padding.
        modes: names of `PoolingMode`; the results of several are joined in this order.

    Returns:
        float32 [rows, H * len(modes)].
    """
    return np.concatenate([POOLINGS[mode](tokens, mask) for mode in modes], axis=1)


def _weighted(tokens: Vectors, weights: npt.NDArray[np.int64], power: float = 1) -> Vectors:
    """Sum the vectors [rows, L, H] with weights [rows, L], and divide by their sum ** `power`."""
    row = weights.astype(np.float32)
    total = (row[:, None, :] @ tokens)[:, 0]
    scaled: Vectors = total / np.maximum(row.sum(axis=1, keepdims=True), 1e-9) ** power
    return scaled.astype(np.float32, copy=False)


def _inner(mask: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    return np.pad(mask[:, 2:], ((0, 0), (1, 1)))[:, : mask.shape[1]]


def _last(tokens: Vectors, mask: npt.NDArray[np.int64]) -> Vectors:
    last: Vectors = tokens[np.arange(len(tokens)), mask.sum(axis=1) - 1]
    return last


def _largest(tokens: Vectors, mask: npt.NDArray[np.int64]) -> Vectors:
    lowest = np.where(mask[:, :, None] == 1, tokens, np.float32(-np.inf))
    largest: Vectors = lowest.max(axis=1)
    return largest


POOLINGS: dict[str, Callable[[Vectors, npt.NDArray[np.int64]], Vectors]] = {
    "cls": lambda tokens, mask: tokens[:, 0],
    "mean": _weighted,
    "mean-without-special": lambda tokens, mask: _weighted(tokens, _inner(mask)),
    "mean_sqrt_len_tokens": lambda tokens, mask: _weighted(tokens, mask, 0.5),
    "weightedmean": lambda tokens, mask: _weighted(tokens, mask * (1 + np.arange(mask.shape[1]))),
    "max": _largest,
    "lasttoken": _last,
}
