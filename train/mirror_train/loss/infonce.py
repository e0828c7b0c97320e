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
"""

from __future__ import annotations

import torch
from torch import Tensor

from mirror_train.loss.autograd import evaluate
from mirror_train.loss.checks import check_inputs, check_options
from mirror_train.loss.dispatch import Impl, choose_kernel
from mirror_train.loss.kernel import Inputs, Variant
from mirror_train.loss.steps import Options


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

    Memory besides the input is linear in N. The gradient itself cannot be differentiated.

    Args:
        z1: [N, D] embeddings of one view, any scale, floating point.
        z2: [N, D] embeddings of the other view; row i belongs to row i of `z1`.
        temperature: tau, greater than 0.
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
        ValueError: shapes, dtypes, devices, temperature, variant or ids cannot be used; N is 1
            without hard negatives; all pairs have one group id (checked on the CPU only, where it
            costs nothing); or `impl` cannot run here. The message names the value or the reason.
    """
    check_inputs(z1, z2, hard_negatives, group_ids, alone=process_group is None)
    check_options(temperature, variant)
    options = Options(float(temperature), variant, choose_kernel(impl, z1))
    gathered = None
    if process_group is not None:
        from mirror_train.loss.distributed import gather

        gathered = gather(z1, z2, hard_negatives, group_ids, process_group)
    return evaluate(Inputs(z1, z2, hard_negatives, group_ids), options, gathered)
