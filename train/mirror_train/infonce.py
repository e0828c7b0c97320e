"""InfoNCE over cosines: the loss of Mirror-BERT (EMNLP 2021, Eq. 1).

With N strings there are M = 2N rows: row i < N is view 1 of string i, row N + i its view 2.
s_ij is the cosine of rows i and j over the temperature, p(i) the row of the same string's other
view, Neg(i) every row but i and p(i); n_i is the logsumexp of s_ij over Neg(i), and
u_i = n_i - s_i,p(i).

`ntxent`     mean of softplus(u_i): the positive is in the denominator. What the authors' code
             computes (NT-Xent, Chen et al. 2020).
`decoupled`  mean of u_i: negatives alone in the denominator, Eq. 1 as printed.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional

__all__ = ["infonce"]

_VARIANTS = ("ntxent", "decoupled")


def infonce(
    z1: Tensor,
    z2: Tensor,
    *,
    temperature: float,
    variant: Literal["ntxent", "decoupled"] = "ntxent",
    group_ids: Tensor | None = None,
    impl: Literal["auto", "torch"] = "auto",
) -> Tensor:
    """Contrast N positive pairs against all other rows of both views.

    Args:
        z1: [N, D] embeddings of one view, any scale, floating point.
        z2: [N, D] embeddings of the other view; row i belongs to row i of `z1`.
        temperature: tau, greater than 0.
        variant: see the module's docstring.
        group_ids: int64 [N]; pairs with equal ids are no negatives of each other.
        impl: `"torch"`, or `"auto"` for the best there is.

    Returns:
        A scalar in float32 (float64 for float64 input), differentiable in `z1` and `z2`.

    Raises:
        ValueError: shapes, dtypes, devices, temperature, variant or ids cannot be used, N = 1, or
            a row is left without negatives; the message names what it got.
    """
    _check_embeddings(z1, z2)
    _check_options(temperature, variant, impl)
    if group_ids is not None:
        _check_group_ids(group_ids, z1)
    return _infonce_torch(z1, z2, temperature, variant, group_ids)


def _infonce_torch(
    z1: Tensor, z2: Tensor, temperature: float, variant: str, group_ids: Tensor | None
) -> Tensor:
    n = len(z1)
    rows = torch.cat([z1, z2])
    rows = rows.to(torch.promote_types(rows.dtype, torch.float32))
    with torch.autocast(rows.device.type, enabled=False):
        unit = functional.normalize(rows, dim=1)
        similarities = unit @ unit.T / temperature
        positives = torch.cat([similarities.diagonal(n), similarities.diagonal(-n)])
        masked = similarities.masked_fill(_not_negative(n, group_ids, rows.device), -math.inf)
        margins = torch.logsumexp(masked, dim=1) - positives
    return (functional.softplus(margins) if variant == "ntxent" else margins).mean()


def _not_negative(n: int, group_ids: Tensor | None, device: torch.device) -> Tensor:
    """Bool [2N, 2N]: pairs of rows of one string, or of one group."""
    groups = torch.arange(n, device=device) if group_ids is None else group_ids
    groups = torch.cat([groups, groups])
    return groups[:, None] == groups[None, :]


def _check_embeddings(z1: Tensor, z2: Tensor) -> None:
    if z1.shape != z2.shape or z1.ndim != 2:
        raise ValueError(
            f"z1 and z2 must both be [N, D], got {tuple(z1.shape)} and {tuple(z2.shape)}"
        )
    if z1.device != z2.device:
        raise ValueError(f"z1 is on {z1.device} but z2 is on {z2.device}")
    if z1.dtype != z2.dtype or not z1.is_floating_point():
        raise ValueError(f"z1 and z2 must share a floating-point dtype, got {z1.dtype}, {z2.dtype}")
    if z1.shape[0] < 2:
        raise ValueError(f"InfoNCE needs at least 2 pairs for negatives, got N = {z1.shape[0]}")
    if z1.shape[1] < 1:
        raise ValueError("embeddings have D = 0 dimensions")


def _check_options(temperature: float, variant: str, impl: str) -> None:
    # exp(2 / tau) spans the range of two cosines; past 1e-30 even its logarithm loses them.
    if not (math.isfinite(temperature) and temperature > 1e-30):
        raise ValueError(f"temperature must be a finite number above 1e-30, got {temperature}")
    if variant not in _VARIANTS:
        raise ValueError(f"variant must be one of {', '.join(_VARIANTS)}, got {variant!r}")
    if impl not in ("auto", "torch"):
        raise ValueError(f"impl must be 'auto' or 'torch', got {impl!r}")


def _check_group_ids(group_ids: Tensor, z1: Tensor) -> None:
    if group_ids.shape != z1.shape[:1] or group_ids.dtype != torch.int64:
        raise ValueError(
            f"group_ids must be int64 [{len(z1)}], got {group_ids.dtype} {list(group_ids.shape)}"
        )
    if group_ids.device != z1.device:
        raise ValueError(f"group_ids is on {group_ids.device} but z1 is on {z1.device}")
    if bool((group_ids == group_ids[0]).all()):
        raise ValueError("all pairs have one group id, which leaves no negatives")
