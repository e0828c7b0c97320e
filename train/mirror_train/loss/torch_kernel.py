"""Compute InfoNCE in plain PyTorch: any device and float dtype, memory linear in the batch."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from mirror_train.loss.kernel import Inputs, Objective, Options
from mirror_train.loss.problem import Problem, Sums

# Cosines held at once. Larger chunks are no faster; a chunk needs three or four tensors this large.
_CHUNK_ELEMENTS = 1 << 21
_SHORTEST = 1e-12  # the norm of a shorter row is clamped to this


@dataclass(frozen=True, slots=True)
class TorchRows:
    """Unit rows [R, D] in float32 or float64, the norms [R, 1] they were divided by, and origin.

    `sizes` and `dtype` are the number of rows and the dtype of the blocks they came from.
    """

    unit: Tensor
    norms: Tensor
    sizes: list[int]
    dtype: torch.dtype


class TorchKernel:
    """The `mirror_train.loss.kernel.Kernel` in plain PyTorch."""

    def forward(self, inputs: Inputs, options: Options) -> Objective:
        with torch.autocast(inputs.z1.device.type, enabled=False):
            problem = Problem.of(inputs, options)
            rows, partners, columns = problem.normalized(_normalize)
            chunks = _chunks(rows, columns, problem, problem.count)
            n = torch.cat([torch.logsumexp(scores, dim=1) for _, scores in chunks])
            positives = rows.unit[: problem.count] * _partners(partners.unit, problem)
            margins = n - problem.scale * positives.sum(1)
            if problem.decoupled:
                losses, log_weights = margins, torch.zeros_like(margins)
            else:
                losses, log_weights = functional.softplus(margins), functional.logsigmoid(margins)
            alone = n == -math.inf
            weights = log_weights.exp().masked_fill(alone, 0)
            log_weights = (log_weights - n).masked_fill(alone, -math.inf)
            return Objective(1 / problem.total * losses.sum(), weights, log_weights)

    def backward(
        self, inputs: Inputs, weights: Tensor, log_weights: Tensor, grad: Tensor, options: Options
    ) -> list[Tensor]:
        with torch.autocast(inputs.z1.device.type, enabled=False):
            problem = Problem.of(inputs, options)
            if problem.mutual:
                weights = weights + _partners(weights, problem)
            factor = problem.scale / problem.count * grad
            contract = functools.partial(_contract, problem)
            gradients = []
            for sums, rows, partners in problem.weighted_sums(log_weights, _normalize, contract):
                sums[: problem.count] -= weights[:, None] * _partners(partners.unit, problem)
                along = (sums * rows.unit).sum(1, keepdim=True)
                sums -= rows.unit * along.masked_fill(rows.norms <= _SHORTEST, 0)
                sums *= factor / rows.norms
                gradients += [part.to(rows.dtype) for part in torch.split(sums, rows.sizes)]
            return gradients


def _normalize(blocks: Sequence[Tensor]) -> TorchRows:
    dtype = blocks[0].dtype
    rows = torch.cat(list(blocks)).to(torch.promote_types(dtype, torch.float32))
    # float64, because the squares of a long row overflow float32.
    norms = torch.linalg.vector_norm(rows, dim=1, keepdim=True, dtype=torch.float64)
    norms = norms.clamp_min(_SHORTEST).to(rows.dtype)
    return TorchRows(rows / norms, norms, [len(block) for block in blocks], dtype)


def _contract(
    problem: Problem, rows: TorchRows, columns: TorchRows, a: Tensor | None, b: Tensor | None,
    both: bool,
) -> Sums:  # fmt: skip
    a, b = _padded(a, rows), _padded(b, columns)
    sums = torch.empty_like(rows.unit)
    column_sums = torch.zeros_like(columns.unit) if both else None
    for chunk, scores in _chunks(rows, columns, problem, len(rows.unit)):
        weights = torch.zeros_like(scores)
        if a is not None:
            weights += torch.exp(scores + a[chunk, None])
        if b is not None:
            weights += torch.exp(scores + b)
        torch.mm(weights, columns.unit, out=sums[chunk])
        if column_sums is not None:
            column_sums.addmm_(weights.T, rows.unit[chunk])
    return sums, column_sums


def _partners(values: Tensor, problem: Problem) -> Tensor:
    values = values[: problem.count]
    return values.roll(-problem.shift, 0) if problem.shift else values


def _padded(log_weights: Tensor | None, rows: TorchRows) -> Tensor | None:
    if log_weights is None:
        return None
    return functional.pad(log_weights, (0, len(rows.unit) - len(log_weights)), value=-math.inf)


def _chunks(
    rows: TorchRows, columns: TorchRows, problem: Problem, n_rows: int
) -> Iterator[tuple[slice, Tensor]]:
    """Yield scores [chunk, C] of the first `n_rows` rows, -inf where a column is no negative."""
    size = max(16, _CHUNK_ELEMENTS // max(1, len(columns.unit)))
    device = rows.unit.device
    row_ids = _ids(problem.row_ids, problem.count, problem.period, device)
    column_ids = _ids(problem.column_ids, problem.n_columns, problem.period, device)
    for start in range(0, n_rows, size):
        chunk = slice(start, min(start + size, n_rows))
        scores = rows.unit[chunk] @ columns.unit.T
        scores *= problem.scale
        same = row_ids[chunk, None] == column_ids
        scores[: len(same), : problem.n_columns].masked_fill_(same, -math.inf)
        yield chunk, scores


def _ids(ids: Tensor | None, n: int, period: int, device: torch.device) -> Tensor:
    return torch.arange(n, device=device) % period if ids is None else ids
