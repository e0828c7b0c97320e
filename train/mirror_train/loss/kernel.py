"""The interface of an implementation of InfoNCE: a pass forward, and one back.

`mirror_train.loss.autograd` makes a differentiable function of them;
`mirror_train.loss.problem` has the formulas.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, NamedTuple, Protocol

import torch.distributed as dist
from torch import Tensor

Variant = Literal["ntxent", "decoupled", "one_way"]


class Inputs(NamedTuple):
    """This process's z1, z2 [N, D], hard negatives [H, D] or None, and int64 ids [N] or None."""

    z1: Tensor
    z2: Tensor
    hard: Tensor | None
    ids: Tensor | None


class Options(NamedTuple):
    """The arguments of the loss beside its own inputs; `kernel` is never "auto".

    `gathered` holds the inputs of all processes, or is None for one process.
    """

    temperature: float
    variant: Variant
    kernel: str
    gathered: Gathered | None = None

    @property
    def scale(self) -> float:
        """The factor of the cosines, 1 / temperature."""
        return 1 / self.temperature


class Objective(NamedTuple):
    """The loss, and its derivative with respect to every row's margin n_i - s+_i."""

    loss: Tensor  # 0-dim float32 (float64 for float64 input)
    weights: Tensor  # [count], g_i; 0 for a row without negatives
    log_weights: Tensor  # [count], a_i = ln g_i - n_i; -inf where g_i is 0


@dataclass(slots=True)
class Gathered:
    """The inputs of all W processes of a group, and the ids of this process.

    z1 and z2 are [W * N, D], hard is [W * H, D] or None, ids (the string or group of every pair)
    int64 [W * N] and own_ids [N]. `share` (in `mirror_train.loss.distributed`) sets
    log_weights, those of all processes: [W * 2N], those
    of z1 before those of z2, or [W * N] where only the rows of z1 have losses.
    """

    group: dist.ProcessGroup
    world_size: int
    z1: Tensor
    z2: Tensor
    hard: Tensor | None
    ids: Tensor
    own_ids: Tensor
    log_weights: Tensor = field(init=False)

    @property
    def inputs(self) -> Inputs:
        """The inputs of all processes."""
        return Inputs(self.z1, self.z2, self.hard, self.ids)


class Kernel(Protocol):
    """An implementation, which never waits for a device and is deterministic.

    Inputs are contiguous. With those of all processes, the loss is this process's share of that of
    the joined batch.
    """

    def forward(self, inputs: Inputs, options: Options) -> Objective:
        """Return the mean loss, and the weights of its gradient."""
        ...

    def backward(
        self, inputs: Inputs, weights: Tensor, log_weights: Tensor, grad: Tensor, options: Options
    ) -> list[Tensor]:
        """Return the gradients of z1, z2 and, if there are any, the hard negatives."""
        ...
