"""InfoNCE over cosines: the loss of Mirror-BERT (EMNLP 2021, Eq. 1).

With N strings there are M = 2N rows: row i < N is view 1 of string i, and row N + i is its view 2.
s_ij is the cosine of rows i and j divided by the temperature, p(i) is the row of the same string's
other view, and Neg(i) is every row but i and p(i); n_i is the logsumexp of s_ij over Neg(i), and
u_i = n_i - s_i,p(i). The variants are:

`ntxent`     mean of softplus(u_i): the positive is in the denominator. The authors' code computes
             this variant (NT-Xent, Chen et al. 2020).
`decoupled`  mean of u_i: only negatives are in the denominator, as in Eq. 1 as printed.
`one_way`    mean of softplus(u_i) over the rows of view 1, with only view 2 as columns, as in
             unsupervised SimCSE (Gao et al. 2021).

`first_view` is the loss with the rows of view 1 alone as anchors and those of both views as
candidates: L_mirror of BERT-CF (Hu, section 4.1).
"""

from __future__ import annotations

import math
from typing import get_args

import torch
from torch import Tensor
from torch.nn import functional

from mirror_train.loss.autograd import evaluate
from mirror_train.loss.dispatch import Impl, choose_kernel
from mirror_train.loss.kernel import Inputs, Options, Variant

_VARIANTS = get_args(Variant)


def infonce(
    z1: Tensor,
    z2: Tensor,
    *,
    temperature: float,
    variant: Variant = "ntxent",
    group_ids: Tensor | None = None,
    hard_negatives: Tensor | None = None,
    impl: Impl = "auto",
    process_group: torch.distributed.ProcessGroup | None = None,
) -> Tensor:
    """Contrast N positive pairs against all other rows of both views.

    Memory besides the input is linear in N. The gradient itself cannot be differentiated: asking
    for it is a RuntimeError.

    Args:
        z1: [N, D] embeddings of one view, any scale, floating point.
        z2: [N, D] embeddings of the other view; row i belongs to row i of `z1`.
        temperature: tau, a number greater than 0; the loss has no gradient in it.
        variant: see the module's docstring.
        group_ids: int64 [N]; pairs with equal ids are not negatives of each other.
        hard_negatives: [H, D] embeddings that are negatives of every row and have no positive
            (supervised SimCSE). Group ids do not apply to them.
        impl: `"torch"` (plain PyTorch, any device), `"cpu"` (C++), `"cuda"` (CUDA C++), or
            `"auto"` for the fastest that can run.
        process_group: also take the rows of all other processes of this group as negatives. All
            processes must call with the same shapes. The value is the loss of the joined batch; the
            gradient is that of the joined batch times the number of processes, because
            DistributedDataParallel divides by that number. Without `group_ids` all strings are
            taken to be different; with them, ids must mean the same in all processes.

    Returns:
        A scalar in float32 (float64 for float64 input), differentiable in `z1`, `z2` and
        `hard_negatives`. It is NaN if any embedding is NaN or infinite. A row whose candidates all
        share its group has no negatives: `ntxent` and `one_way` count it as 0, `decoupled` as -inf.

    Raises:
        ValueError: shapes, dtypes, devices, temperature (one that is to be trained, too), variant
            or ids cannot be used; N is 1
            without hard negatives; all pairs have one group id (checked on the CPU only, where it
            costs nothing); or `impl` cannot run here. The message names the value or the reason.
    """
    check_inputs(z1, z2, hard_negatives, group_ids, alone=process_group is None)
    check_temperature(temperature)
    if variant not in _VARIANTS:
        raise ValueError(f"variant must be one of {', '.join(_VARIANTS)}, got {variant!r}")
    kernel = choose_kernel(impl, z1.device, z1.dtype)
    inputs, options = (
        Inputs(z1, z2, hard_negatives, group_ids),
        Options(float(temperature), variant, kernel),
    )
    if process_group is not None:
        from mirror_train.loss.distributed import gather

        options = options._replace(gathered=gather(*inputs, process_group))
    return evaluate(inputs, options)


def first_view(
    z1: Tensor,
    z2: Tensor,
    *,
    temperature: float,
    group_ids: Tensor | None = None,
    left_out: Tensor | None = None,
) -> Tensor:
    """Contrast each row of view 1 with all other rows; BERT-CF's batches of 16 need no kernel.

    The candidates of string i's row of view 1 are its own row of view 2, the positive, and both
    rows of every other string: 2N - 1 in all. The arguments are those of `infonce`, but `left_out`,
    bool [N, 2N]: which rows of view 2, and behind them of view 1, are no negatives of an anchor.

    Returns:
        The mean over the N anchors of -ln(softmax at the positive), a scalar in float32 (float64
        for float64 input).

    Raises:
        ValueError: shapes, dtypes, devices or ids cannot be used, or there are no negatives.
    """
    check_inputs(z1, z2, None, group_ids, alone=True)
    ids = torch.arange(len(z1), device=z1.device) if group_ids is None else group_ids
    with torch.autocast(z1.device.type, enabled=False):
        dtype = torch.float64 if z1.dtype == torch.float64 else torch.float32
        a, b = (functional.normalize(z.to(dtype), dim=1) for z in (z1, z2))
        same = ids[:, None] == ids
        cosines = torch.cat([a @ b.T, a @ a.T], dim=1)
        none = same.repeat(1, 2) if left_out is None else same.repeat(1, 2) | left_out
        none.fill_diagonal_(False)  # the positives
        logits = (cosines / temperature).masked_fill(none, -torch.inf)
        return functional.cross_entropy(logits, torch.arange(len(z1), device=z1.device))


def guided(
    z1: Tensor,
    z2: Tensor,
    guide1: Tensor,
    guide2: Tensor,
    *,
    temperature: float,
    margin: float = 0.0,
    group_ids: Tensor | None = None,
) -> Tensor:
    """Return NT-Xent without the negatives that a guide takes to be false (GISTEmbed).

    A row is no negative of an anchor where the guide's cosine of their strings is at least that of
    the anchor and its positive, less the margin (Solatorio 2024, arXiv 2402.16829). GISTEmbed's
    anchors are the rows of view 1; here they are those of both views, as in NT-Xent.

    `guide1` and `guide2`, [N, E], are the guide's vectors of the strings of both views, and the
    others are the arguments of `infonce`. The margin, at least 0, alone decides which rows are left
    out where strings are their own positives, whose cosine is 1.

    Returns:
        A scalar in float32 (float64 for float64 input); an anchor without negatives counts as 0.
    """
    views = [functional.normalize(guide.float(), dim=1) for guide in (guide1, guide2)]
    halves = []
    for (a, b), (g, h) in (((z1, z2), views), ((z2, z1), views[::-1])):
        alike = torch.cat([g @ h.T, g @ g.T], dim=1)
        false = alike >= alike.diagonal()[:, None] - margin
        halves.append(
            first_view(a, b, temperature=temperature, group_ids=group_ids, left_out=false)
        )
    return torch.stack(halves).mean()


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
    if ids is None:
        return
    if ids.shape != z1.shape[:1] or ids.dtype != torch.int64:
        raise ValueError(f"group_ids must be int64 [{n}], got {ids.dtype} {list(ids.shape)}")
    if ids.device != z1.device:
        raise ValueError(f"group_ids is on {ids.device} but z1 is on {z1.device}")
    # Reading values would wait for the device on a GPU, and a traced tensor has none.
    readable = ids.is_cpu and not torch.compiler.is_compiling()
    if alone and not n_hard and readable and bool((ids == ids[0]).all()):
        raise ValueError("all pairs have one group id, which leaves no negatives")


def _check_like(name: str, z: Tensor, z1: Tensor) -> None:
    if z.device != z1.device:
        raise ValueError(f"z1 is on {z1.device} but {name} is on {z.device}")
    if z.dtype != z1.dtype:
        raise ValueError(
            f"z1 and {name} must share a floating-point dtype, got {z1.dtype}, {z.dtype}"
        )


def check_temperature(temperature: float) -> None:
    """Raise ValueError for a temperature that the losses cannot take."""
    if getattr(temperature, "requires_grad", False):  # a tensor, in spite of its type
        raise ValueError(
            "temperature must be a number, got a tensor that requires a gradient, which this loss "
            "does not give it: pass temperature.item(), or write a loss whose temperature is "
            "trained in plain PyTorch"
        )
    # Weights span a range of exp(2 / tau). Below 1e-30 not even their logarithms are exact enough.
    if not (math.isfinite(temperature) and temperature > 1e-30):
        raise ValueError(f"temperature must be a finite number above 1e-30, got {temperature}")
