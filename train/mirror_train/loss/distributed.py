"""Share negatives across processes: each contrasts its own rows with the rows of all processes.

This takes one all-gather of the embeddings and one of the row weights. Each process then has the
complete gradient of its own rows, so nothing needs to be scattered back.
"""

from __future__ import annotations

import weakref

import torch
import torch.distributed as dist
from torch import Tensor

from mirror_train.loss.kernel import Gathered, Objective

# The new name since torch 2.13, where the old one warns.
_all_gather_single = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
_checked: weakref.WeakSet[dist.ProcessGroup] = weakref.WeakSet()


def gather(
    z1: Tensor, z2: Tensor, hard: Tensor | None, ids: Tensor | None, group: dist.ProcessGroup
) -> Gathered:
    """All-gather the inputs of a group; a ValueError says in all that shapes or dtypes differ."""
    world_size, rank = dist.get_world_size(group), dist.get_rank(group)
    _check_alike(z1, hard, ids, group)
    n = len(z1)
    own_ids = torch.arange(rank * n, (rank + 1) * n, device=z1.device) if ids is None else ids
    return Gathered(
        group,
        world_size,
        _all_gather(z1.detach().contiguous(), group),
        _all_gather(z2.detach().contiguous(), group),
        None if hard is None else _all_gather(hard.detach().contiguous(), group),
        _all_gather(own_ids.contiguous(), group),
        own_ids,
    )


def share(gathered: Gathered, own: Objective) -> Objective:
    """Sum the losses, and gather the log weights of all processes for the backward pass."""
    loss = own.loss.clone()
    dist.all_reduce(loss, group=gathered.group)
    views = own.log_weights.view(-1, len(gathered.own_ids))
    parts = [_all_gather(view.contiguous(), gathered.group) for view in views]
    gathered.log_weights = torch.cat(parts)
    return own._replace(loss=loss)


def _all_gather(tensor: Tensor, group: dist.ProcessGroup) -> Tensor:
    parts = tensor.new_empty(dist.get_world_size(group) * len(tensor), *tensor.shape[1:])
    _all_gather_single(parts, tensor, group=group)
    return parts


def _check_alike(
    z1: Tensor, hard: Tensor | None, ids: Tensor | None, group: dist.ProcessGroup
) -> None:
    """Raise ValueError unless all processes have the same shapes and dtype.

    A collective over tensors of unequal size hangs or corrupts them, so shapes are compared first.
    On a GPU this waits for the device, so there it is done only on the first call of a group.
    """
    if z1.is_cuda and group in _checked:
        return
    _checked.add(group)
    own = {
        "z1": (str(z1.dtype), *z1.shape),
        "hard_negatives": None if hard is None else tuple(hard.shape),
        "group_ids": ids is not None,
    }
    everyone: list[object] = [None] * dist.get_world_size(group)
    dist.all_gather_object(everyone, own, group=group)
    if any(other != own for other in everyone):
        raise ValueError(f"all processes must give the same shapes and dtype, got {everyone}")
