"""Compute InfoNCE in plain PyTorch: any device and float dtype, memory linear in the batch."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from mirror_train.loss.kernel import Negatives, Objective, Pairs, Variant

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

    passes = None

    def normalize(self, blocks: Sequence[Tensor]) -> TorchRows:
        dtype = blocks[0].dtype
        rows = torch.cat(list(blocks)).to(torch.promote_types(dtype, torch.float32))
        # float64, because the squares of a long row overflow float32.
        norms = torch.linalg.vector_norm(rows, dim=1, keepdim=True, dtype=torch.float64)
        norms = norms.clamp_min(_SHORTEST).to(rows.dtype)
        return TorchRows(rows / norms, norms, [len(block) for block in blocks], dtype)

    def logsumexp(
        self, rows: TorchRows, columns: TorchRows, negatives: Negatives, *, scale: float
    ) -> Tensor:
        parts = [
            torch.logsumexp(scores, dim=1)
            for _, scores in _chunks(rows, columns, negatives, scale, negatives.n_rows)
        ]
        return torch.cat(parts)

    def objective(
        self,
        rows: TorchRows,
        partners: TorchRows,
        pairs: Pairs,
        n: Tensor,
        *,
        scale: float,
        variant: Variant,
        factor: float,
    ) -> Objective:
        positives = scale * (rows.unit[: pairs.count] * _partners(partners.unit, pairs)).sum(1)
        margins = n - positives
        alone = n == -math.inf
        if variant == "decoupled":
            losses, log_weights = margins, torch.zeros_like(margins)
        else:
            losses, log_weights = functional.softplus(margins), functional.logsigmoid(margins)
        weights = log_weights.exp().masked_fill(alone, 0)
        log_weights = (log_weights - n).masked_fill(alone, -math.inf)
        return Objective(factor * losses.sum(), weights, log_weights)

    def contract(
        self,
        rows: TorchRows,
        columns: TorchRows,
        negatives: Negatives,
        row_log_weights: Tensor | None,
        column_log_weights: Tensor | None,
        *,
        scale: float,
        both: bool,
    ) -> tuple[Tensor, Tensor | None]:
        a = _padded(row_log_weights, rows)
        b = _padded(column_log_weights, columns)
        sums = torch.empty_like(rows.unit)
        column_sums = torch.zeros_like(columns.unit) if both else None
        for chunk, scores in _chunks(rows, columns, negatives, scale, len(rows.unit)):
            weights = torch.zeros_like(scores)
            if a is not None:
                weights += torch.exp(scores + a[chunk, None])
            if b is not None:
                weights += torch.exp(scores + b)
            torch.mm(weights, columns.unit, out=sums[chunk])
            if column_sums is not None:
                column_sums.addmm_(weights.T, rows.unit[chunk])
        return sums, column_sums

    def finish(
        self,
        sums: Tensor,
        rows: TorchRows,
        partners: TorchRows,
        pairs: Pairs,
        weights: Tensor,
        *,
        factor: float,
        grad_output: Tensor,
    ) -> list[Tensor]:
        if pairs.mutual:
            weights = weights + _partners(weights, pairs)
        gradient = sums
        gradient[: pairs.count] -= weights[:, None] * _partners(partners.unit, pairs)
        along = (gradient * rows.unit).sum(1, keepdim=True)
        gradient -= rows.unit * along.masked_fill(rows.norms <= _SHORTEST, 0)
        gradient *= factor * grad_output / rows.norms
        return [part.to(rows.dtype) for part in torch.split(gradient, rows.sizes)]


def _partners(values: Tensor, pairs: Pairs) -> Tensor:
    values = values[: pairs.count]
    return values.roll(-pairs.shift, 0) if pairs.shift else values


def _padded(log_weights: Tensor | None, rows: TorchRows) -> Tensor | None:
    if log_weights is None:
        return None
    return functional.pad(log_weights, (0, len(rows.unit) - len(log_weights)), value=-math.inf)


def _chunks(
    rows: TorchRows, columns: TorchRows, negatives: Negatives, scale: float, n_rows: int
) -> Iterator[tuple[slice, Tensor]]:
    """Yield scores [chunk, C] of the first `n_rows` rows, -inf where a column is no negative."""
    size = max(16, _CHUNK_ELEMENTS // max(1, len(columns.unit)))
    device = rows.unit.device
    row_ids = _ids(negatives.row_ids, negatives.n_rows, negatives.period, device)
    column_ids = _ids(negatives.column_ids, negatives.n_columns, negatives.period, device)
    for start in range(0, n_rows, size):
        chunk = slice(start, min(start + size, n_rows))
        scores = rows.unit[chunk] @ columns.unit.T
        scores *= scale
        same = row_ids[chunk, None] == column_ids
        scores[: len(same), : negatives.n_columns].masked_fill_(same, -math.inf)
        yield chunk, scores


def _ids(ids: Tensor | None, n: int, period: int, device: torch.device) -> Tensor:
    return torch.arange(n, device=device) % period if ids is None else ids
