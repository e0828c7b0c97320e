"""Check the arguments of `infonce`; each ValueError names the value that was refused."""

from __future__ import annotations

import math
from typing import get_args

import torch
from torch import Tensor

from mirror_train.loss.kernel import Variant

_VARIANTS = get_args(Variant)


def check_inputs(
    z1: Tensor, z2: Tensor, hard: Tensor | None, ids: Tensor | None, *, alone: bool
) -> None:
    """Raise ValueError unless the tensors fit together.

    `alone` says that no other process adds negatives.
    """
    if z1.shape != z2.shape or z1.ndim != 2:
        raise ValueError(
            f"z1 and z2 must both be [N, D], got {tuple(z1.shape)} and {tuple(z2.shape)}"
        )
    _check_like("z2", z2, z1)
    if not z1.is_floating_point():
        raise ValueError(f"z1 and z2 must share a floating-point dtype, got {z1.dtype}")
    if z1.shape[1] < 1:
        raise ValueError("embeddings have D = 0 dimensions")
    if hard is not None:
        if hard.ndim != 2 or hard.shape[1] != z1.shape[1]:
            raise ValueError(
                f"hard_negatives must be [H, {z1.shape[1]}] like z1, got {tuple(hard.shape)}"
            )
        _check_like("hard_negatives", hard, z1)
    n, n_hard = z1.shape[0], 0 if hard is None else hard.shape[0]
    if n < 1 or (n < 2 and not n_hard and alone):
        raise ValueError(f"InfoNCE needs at least 2 pairs for negatives, got N = {n}")
    if ids is not None:
        _check_group_ids(ids, z1)
        if alone and not n_hard:
            _check_some_negatives(ids)


def _check_like(name: str, z: Tensor, z1: Tensor) -> None:
    if z.device != z1.device:
        raise ValueError(f"z1 is on {z1.device} but {name} is on {z.device}")
    if z.dtype != z1.dtype:
        raise ValueError(
            f"z1 and {name} must share a floating-point dtype, got {z1.dtype}, {z.dtype}"
        )


def _check_group_ids(ids: Tensor, z1: Tensor) -> None:
    if ids.shape != z1.shape[:1] or ids.dtype != torch.int64:
        raise ValueError(f"group_ids must be int64 [{len(z1)}], got {ids.dtype} {list(ids.shape)}")
    if ids.device != z1.device:
        raise ValueError(f"group_ids is on {ids.device} but z1 is on {z1.device}")


def _check_some_negatives(ids: Tensor) -> None:
    # Reading values would wait for the device on a GPU, and a traced tensor has none.
    if ids.is_cpu and not torch.compiler.is_compiling() and bool((ids == ids[0]).all()):
        raise ValueError("all pairs have one group id, which leaves no negatives")


def check_options(temperature: float, variant: str) -> None:
    """Raise ValueError unless the options can be used."""
    # Weights span a range of exp(2 / tau). Below 1e-30 not even their logarithms are exact enough.
    if not (math.isfinite(temperature) and temperature > 1e-30):
        raise ValueError(f"temperature must be a finite number above 1e-30, got {temperature}")
    if variant not in _VARIANTS:
        raise ValueError(f"variant must be one of {', '.join(_VARIANTS)}, got {variant!r}")
