"""Pooling: reduce the token vectors of a text to one vector."""

from __future__ import annotations

from typing import get_args

import torch
from torch import Tensor
from torch.nn import functional

from mirror_rt.bundle.manifest import PoolingMode

POOLING_MODES: tuple[PoolingMode, ...] = tuple(
    mode for group in get_args(PoolingMode) for mode in get_args(group)
)


def pool(hidden: Tensor, mask: Tensor, pooling: PoolingMode) -> Tensor:
    """Pool token vectors [B, L, H] with a mask [B, L] (padding on the right) to vectors [B, H].

    `cls` takes the first token and `lasttoken` the last real one; `max` takes the maximum of each
    component; `mean` averages the real tokens; `mean-without-special` averages those between the
    first and the last, which are [CLS] and [SEP] (see `Pretrained.check_special_tokens`);
    `mean_sqrt_len_tokens` divides the sum of the real tokens by the root of their number;
    `weightedmean` weighs them by their position, counted from 1 (arXiv 2202.08904, section 4.1);
    and `mean-with-padding` averages all tokens, including padding (EMNLP 2021, caption of Table 3).
    """
    if pooling == "cls":
        return hidden[:, 0]
    if pooling == "lasttoken":
        last = mask.sum(dim=1) - 1
        return hidden.gather(1, last[:, None, None].expand(-1, 1, hidden.shape[2])).squeeze(1)
    if pooling == "mean-with-padding":
        return hidden.mean(dim=1)
    if pooling == "max":
        return hidden.masked_fill(mask.unsqueeze(-1) == 0, float("-inf")).amax(dim=1)
    weights = _positions(mask, pooling).unsqueeze(-1).to(hidden.dtype)
    total = weights.sum(dim=1)
    if pooling == "mean_sqrt_len_tokens":
        total = torch.sqrt(total)
    return (hidden * weights).sum(dim=1) / total


def _positions(mask: Tensor, pooling: PoolingMode) -> Tensor:
    """Return the weight of each token [B, L]."""
    if pooling == "weightedmean":
        return mask * mask.cumsum(dim=1)
    if pooling == "mean-without-special":
        # A token is inside if it is not the first and has a real token on its right.
        return functional.pad(mask[:, 2:], (1, 1))
    return mask
