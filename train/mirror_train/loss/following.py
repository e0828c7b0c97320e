"""The steps linear in N of the loss of `mirror_train.loss.soft_targets`, on any device."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from mirror_train.loss.kernel import Objective

Gradients = Callable[[Tensor], list[Tensor]]
"""Return the gradients of the views, times that of the loss, a scalar."""


class FollowingKernel(Protocol):
    """An implementation of soft targets; inputs are contiguous and on one device."""

    def follow(
        self,
        views: Sequence[Tensor],
        teacher: Tensor,
        ids: Tensor | None,
        *,
        temperature: float,
        teacher_temperature: float,
        weight: float,
    ) -> tuple[Tensor, Gradients]:
        """Return the loss, and what gives its gradients."""
        ...


@dataclass(frozen=True, slots=True)
class Following:
    """The log weights of the student's rows and of the teacher's, [count], float32.

    The student's weights are those of NT-Xent and of Q together: both have n_i. `g` are those of
    NT-Xent alone, which the rows have of their partners.
    """

    g: Tensor
    log_weights: Tensor
    teacher_log_weights: Tensor
    loss: Callable[[Tensor], Tensor]
    """Return the loss, of the sum over i, j of exp(t_ij + a_i) (t_ij - s_ij), a_i the teacher's."""

    @classmethod
    def of(cls, n: Tensor, teacher_n: Tensor, plain: Objective, weight: float) -> Following:
        """Return those of the student's n_i, and of the teacher's, which one view has [N]."""
        # Of every other string, the rows of both views are candidates, which are alike.
        views = len(n) // len(teacher_n)
        teacher_n = (teacher_n + math.log(views)).repeat(views)
        g = (1 - weight) * plain.weights
        alone = n == -math.inf  # no other string to follow the teacher's cosines with

        def loss(total: Tensor) -> Tensor:
            divergence = weight * (n - teacher_n).masked_fill(alone, 0).double().sum() + total
            return (1 - weight) * plain.loss + (divergence / len(n)).float()

        return cls(
            g,
            ((g + weight).log() - n).masked_fill(alone, -math.inf),
            (math.log(weight) - teacher_n).masked_fill(alone, -math.inf),
            loss,
        )
