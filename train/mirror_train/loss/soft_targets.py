"""Soft targets: a student's cosines follow those of a teacher, alone or beside InfoNCE.

Of two rows i and j of different strings, s_ij is the student's cosine divided by the temperature,
and t_ij the teacher's by its own. Q_i and P_i are the softmax of s_ij and of t_ij over these j, and
the loss is

    (1 - weight) * NT-Xent + weight * mean over i of KL(P_i || Q_i).

Only cosines are compared, so the teacher's vectors may have any dimension. Those of most encoders
share a direction, which makes all their cosines alike: take their mean off before.

NT-Xent's n_i (see `infonce`) are the logarithms of the divisors of Q. So one pass over the cosines
of the student serves both parts, and with those of the teacher another; neither matrix is stored.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor

from mirror_train.loss import cuda_device
from mirror_train.loss.autograd import once
from mirror_train.loss.cpu_kernel import DTYPES
from mirror_train.loss.dispatch import kernel_named
from mirror_train.loss.following import FollowingKernel
from mirror_train.loss.infonce import check_inputs, check_temperature


def soft_targets(
    views: Sequence[Tensor],
    teacher: Tensor,
    *,
    temperature: float,
    teacher_temperature: float | None = None,
    weight: float = 1.0,
    group_ids: Tensor | None = None,
) -> Tensor:
    """Return how far the cosines of N strings are from those of a teacher, in nats.

    It is computed in C++ on the CPU, or in CUDA where the extension was built and the views are on
    its device; vectors of another device are copied to the CPU and back, and float64 is rounded to
    float32. The gradient itself cannot be differentiated.

    Args:
        views: one view or two of the same strings, [N, D] each, of any scale, floating point.
        teacher: [N, E], the teacher's vectors of the strings, of any scale; it gets no gradient.
        temperature: that of the student's cosines, in both parts of the loss.
        teacher_temperature: that of the teacher's; by default the same.
        weight: the share of the soft targets, above 0 and at most 1; the rest is that of NT-Xent,
            which needs two views.
        group_ids: int64 [N]; rows of one id are left out of one another's softmax, and are not
            negatives, as the rows of one string are.

    Returns:
        A scalar in float32, differentiable in the views; NaN if any vector is NaN or infinite. A
        row whose candidates all share its group counts as 0.

    Raises:
        ValueError: shapes, dtypes, devices, temperatures, weight or ids cannot be used.
    """
    if not 1 <= len(views) <= 2:
        raise ValueError(f"soft targets need one view or two, got {len(views)}")
    check_inputs(views[0], views[-1], None, group_ids, alone=True)
    if teacher.ndim != 2 or len(teacher) != len(views[0]) or not teacher.is_floating_point():
        raise ValueError(
            f"teacher must be floating point [{len(views[0])}, E], one row for each of the views, "
            f"got {teacher.dtype} {list(teacher.shape)}"
        )
    if teacher.shape[1] < 1:
        raise ValueError("the teacher's vectors have 0 dimensions")
    if not (0 < weight < 1 or weight == 1):
        raise ValueError(f"weight must be above 0 and at most 1, got {weight}")
    if weight < 1 and len(views) < 2:
        raise ValueError(f"a weight of {weight} contrasts two views, got one")
    teacher_temperature = temperature if teacher_temperature is None else teacher_temperature
    for one in (temperature, teacher_temperature):
        check_temperature(one)
    dtype = views[0].dtype if views[0].dtype in DTYPES else torch.float32
    device = views[0].device
    name = "cpu" if cuda_device.unavailable_reason(device, dtype) else "cuda"
    runs_on = torch.device("cpu") if name == "cpu" else device
    found = _SoftTargets.apply(  # type: ignore[no-untyped-call]
        name,
        {"temperature": float(temperature), "teacher_temperature": float(teacher_temperature),
         "weight": float(weight)},
        teacher.detach().to(runs_on, torch.float32).contiguous(),
        None if group_ids is None else group_ids.to(runs_on).contiguous(),
        *(view.to(runs_on, dtype).contiguous() for view in views),
    )  # fmt: skip
    return cast(Tensor, found).to(device)


class _SoftTargets(torch.autograd.Function):
    """The loss, whose gradient is known but for a factor when its value is."""

    @staticmethod
    def forward(
        ctx: Any, name: str, options: dict[str, float], teacher: Tensor, ids: Tensor | None,
        *views: Tensor,
    ) -> Tensor:  # fmt: skip
        kernel = cast(FollowingKernel, kernel_named(name))
        loss, ctx.gradients = kernel.follow(views, teacher, ids, **options)
        ctx.save_for_backward(*views)  # which tells when one is changed in place before
        return loss

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> Any:
        views = ctx.saved_tensors
        with torch.no_grad():
            grads = ctx.gradients(grad_output)
        return (None, None, None, None, *once(views, grads))
