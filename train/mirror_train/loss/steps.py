"""Compute the loss and its gradient by the five steps of a kernel, in one process or several."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from mirror_train.loss.dispatch import kernel_named
from mirror_train.loss.kernel import Inputs, Kernel, Negatives, Objective, Pairs, Variant

if TYPE_CHECKING:
    from mirror_train.loss.distributed import Gathered


class Options(NamedTuple):
    """The arguments of the loss that are not tensors; `kernel` is never "auto"."""

    temperature: float
    variant: Variant
    kernel: str

    @property
    def scale(self) -> float:
        """The factor of the cosines, 1 / temperature."""
        return 1 / self.temperature


def _blocks(*tensors: Tensor | None) -> list[Tensor]:
    return [tensor for tensor in tensors if tensor is not None]


def forward(inputs: Inputs, options: Options, gathered: Gathered | None) -> Objective:
    """Return the loss and the weights that `backward` needs; inputs must be contiguous.

    With `gathered`, the loss is this process's share of the loss of the joined batch.
    """
    kernel = kernel_named(options.kernel)
    if gathered is None and kernel.passes is not None:
        return kernel.passes.forward(inputs, scale=options.scale, variant=options.variant)
    n = len(inputs.z1)
    one_way = options.variant == "one_way"
    with torch.autocast(inputs.z1.device.type, enabled=False):
        if one_way:
            rows = kernel.normalize([inputs.z1])
            partners = kernel.normalize(_blocks(inputs.z2, inputs.hard))
            columns = partners
        else:
            rows = partners = columns = kernel.normalize(_blocks(*inputs[:3]))
        if gathered is not None:
            columns = kernel.normalize(gathered.columns(one_way=one_way))
        negatives = _negatives(inputs, one_way, gathered)
        scores = kernel.logsumexp(rows, columns, negatives, scale=options.scale)
        count = negatives.n_rows * (1 if gathered is None else gathered.world_size)
        return kernel.objective(
            rows,
            partners,
            Pairs(negatives.n_rows, 0 if one_way else n, mutual=not one_way),
            scores,
            scale=options.scale,
            variant=options.variant,
            factor=1 / count,
        )


def _negatives(inputs: Inputs, one_way: bool, gathered: Gathered | None) -> Negatives:
    n = len(inputs.z1)
    if gathered is not None:
        return gathered.negatives(one_way=one_way)
    if one_way:
        return Negatives(n, n, n, inputs.ids, inputs.ids)
    ids = None if inputs.ids is None else torch.cat([inputs.ids, inputs.ids])
    return Negatives(2 * n, 2 * n, n, ids, ids)


def backward(
    inputs: Inputs,
    weights: Tensor,
    log_weights: Tensor,
    grad_output: Tensor,
    options: Options,
    gathered: Gathered | None,
) -> list[Tensor]:
    """Return the gradients of z1, z2 and, if there are any, the hard negatives."""
    kernel = kernel_named(options.kernel)
    if gathered is None and kernel.passes is not None:
        scale, variant = options.scale, options.variant
        given = (inputs, weights, log_weights, grad_output)
        return kernel.passes.backward(*given, scale=scale, variant=variant)
    one_way = options.variant == "one_way"
    # DDP divides gradients by world_size, so each process must return world_size times its share.
    # Using the factor for one process does exactly that.
    factor = options.scale / len(weights)
    pairs = Pairs(len(weights), 0 if one_way else len(inputs.z1), mutual=not one_way)
    contract = _contract_one_way if one_way else _contract_square
    with torch.autocast(inputs.z1.device.type, enabled=False):
        return [
            gradient
            for sums, rows, partners in contract(kernel, inputs, log_weights, options, gathered)
            for gradient in kernel.finish(
                sums, rows, partners, pairs, weights, factor=factor, grad_output=grad_output
            )
        ]


def _contract_square(
    kernel: Kernel[Any],
    inputs: Inputs,
    log_weights: Tensor,
    options: Options,
    gathered: Gathered | None,
) -> list[tuple[Any, ...]]:
    """Return the weighted sums of the rows, the rows, and the partners of the rows."""
    rows = columns = kernel.normalize(_blocks(*inputs[:3]))
    b = log_weights
    if gathered is not None:
        columns, b = kernel.normalize(gathered.columns(one_way=False)), gathered.log_weights
    negatives = _negatives(inputs, False, gathered)
    sums, _ = kernel.contract(
        rows, columns, negatives, log_weights, b, scale=options.scale, both=False
    )
    return [(sums, rows, rows)]


def _contract_one_way(
    kernel: Kernel[Any],
    inputs: Inputs,
    log_weights: Tensor,
    options: Options,
    gathered: Gathered | None,
) -> list[tuple[Any, ...]]:
    """Return the sums, the rows and the partners of view 1, and the same of all other rows."""
    queries = kernel.normalize([inputs.z1])
    keys = kernel.normalize(_blocks(inputs.z2, inputs.hard))
    negatives, scale = _negatives(inputs, True, gathered), options.scale
    if gathered is None:
        query_sums, key_sums = kernel.contract(
            queries, keys, negatives, log_weights, None, scale=scale, both=True
        )
    else:
        all_keys = kernel.normalize(gathered.columns(one_way=True))
        all_queries = kernel.normalize([gathered.z1])
        query_sums, _ = kernel.contract(
            queries, all_keys, negatives, log_weights, None, scale=scale, both=False
        )
        key_sums, _ = kernel.contract(
            keys, all_queries, negatives, None, gathered.log_weights, scale=scale, both=False
        )
    return [(query_sums, queries, keys), (key_sums, keys, queries)]
