"""Multi-similarity loss on hard triplets, as in SapBERT (Liu et al., NAACL 2021, Eq. 1 and 2).

Rows and cosines s_ij are those of `mirror_train.infonce`, but not divided by a temperature. Rows of
one string, or of one group, are positives of each other; all other rows are negatives. With d_ij
the distance of the unit vectors, a triplet of an anchor a, a positive p and a negative n is hard if
d_an - d_ap <= margin. Let P(a) be the positives and N(a) the negatives in hard triplets of a. The
loss is the mean over all rows a of (Wang et al., CVPR 2019, Eq. 15)

    log(1 + sum over P(a) of exp(alpha (base - s_ap))) / alpha
    + log(1 + sum over N(a) of exp(beta (s_an - base))) / beta

The triplets need not be listed: p is in a hard triplet exactly if p and the nearest negative make
one, and n exactly if n and the farthest positive do. That takes O(rows^2) memory, where a list of
all triplets (pytorch-metric-learning's TripletMarginMiner) takes O(rows^3).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional

from mirror_train.loss.infonce import check_inputs


def multi_similarity(
    z1: Tensor,
    z2: Tensor,
    *,
    alpha: float = 1.0,
    beta: float = 60.0,
    base: float = 0.5,
    margin: float = 0.2,
    group_ids: Tensor | None = None,
    process_group: torch.distributed.ProcessGroup | None = None,
) -> Tensor:
    """Pull the hard positives of N pairs together, and push their hard negatives apart.

    The defaults are those of SapBERT's code.

    Args:
        z1: [N, D] embeddings of one view, any scale, floating point.
        z2: [N, D] embeddings of the other view; row i belongs to row i of `z1`.
        alpha: weight of a positive in the exponent, greater than 0.
        beta: weight of a negative in the exponent, greater than 0.
        base: cosine above which a negative, and below which a positive, has a large weight.
        margin: leave out triplets whose negative is farther away than the positive by more than
            this; infinity to leave out none.
        group_ids: int64 [N]; pairs with equal ids are positives of each other.
        process_group: contrast the rows of all processes of this group; see `infonce`.

    Returns:
        A scalar in float32 (float64 for float64 input), differentiable in `z1` and `z2`. It is 0
        where no triplet is hard.

    Raises:
        ValueError: shapes, dtypes, devices, an option or ids cannot be used, or there are no
            negatives; the message names the value.
    """
    check_inputs(z1, z2, None, group_ids, alone=process_group is None)
    _check_options(alpha=alpha, beta=beta, base=base, margin=margin)
    dtype = torch.float64 if z1.dtype == torch.float64 else torch.float32
    ids = torch.arange(len(z1), device=z1.device) if group_ids is None else group_ids
    with torch.autocast(z1.device.type, enabled=False):
        if process_group is None:
            return _loss(torch.cat([z1, z2]).to(dtype), ids, alpha, beta, base, margin)
        from mirror_train.loss.distributed import gather

        # Every process computes the loss of all rows, but the gradient of its own rows only.
        rank = torch.distributed.get_rank(process_group)
        others = gather(z1, z2, None, group_ids, process_group)
        rows = [_with_own(others.z1, z1, rank), _with_own(others.z2, z2, rank)]
        loss = _loss(torch.cat(rows).to(dtype), others.ids, alpha, beta, base, margin)
        # The gradient is multiplied, because DistributedDataParallel divides by world_size.
        return loss.detach() + others.world_size * (loss - loss.detach())


def _with_own(everyone: Tensor, own: Tensor, rank: int) -> Tensor:
    n = len(own)
    return torch.cat([everyone[: rank * n], own, everyone[(rank + 1) * n :]])


def _loss(
    rows: Tensor, ids: Tensor, alpha: float, beta: float, base: float, margin: float
) -> Tensor:
    """Return the loss of rows [2N, D]; both halves belong to the strings or groups `ids` [N]."""
    unit = functional.normalize(rows, dim=1)
    cosines = unit @ unit.T
    labels = torch.cat([ids, ids])
    same = labels[:, None] == labels
    positives, negatives = _hard(cosines.detach(), same, margin)
    return (
        _log1p_sum_exp(alpha * (base - cosines), positives) / alpha
        + _log1p_sum_exp(beta * (cosines - base), negatives) / beta
    ).mean()


@torch.no_grad()
def _hard(cosines: Tensor, same: Tensor, margin: float) -> tuple[Tensor, Tensor]:
    """Return masks of the positives and of the negatives that are in a hard triplet of each row."""
    distances = (2 - 2 * cosines).clamp_(min=0).sqrt_()
    positives = same.clone().fill_diagonal_(False)
    nearest = distances.masked_fill(same, math.inf).amin(dim=1, keepdim=True)
    farthest = distances.masked_fill(~positives, -math.inf).amax(dim=1, keepdim=True)
    return (
        positives & (nearest - distances <= margin) & nearest.isfinite(),
        ~same & (distances - farthest <= margin) & farthest.isfinite(),
    )


def _log1p_sum_exp(values: Tensor, chosen: Tensor) -> Tensor:
    """Return log(1 + sum of exp(values)) over the chosen columns of every row, [rows]."""
    kept = values.masked_fill(~chosen, -math.inf)
    return torch.logsumexp(functional.pad(kept, (0, 1)), dim=1)


def _check_options(**options: float) -> None:
    for name, value in options.items():
        if math.isnan(value) or (math.isinf(value) and name != "margin"):
            raise ValueError(f"{name} must be a finite number, got {value}")
        if name in ("alpha", "beta") and value <= 0:
            raise ValueError(f"{name} must be greater than 0, got {value}")
