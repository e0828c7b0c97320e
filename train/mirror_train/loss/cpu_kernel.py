"""Compute InfoNCE in C++ on the CPU (csrc/infonce), which reads tensors by their data pointers."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from types import ModuleType

import torch
from torch import Tensor

from mirror_rt import _core
from mirror_train.loss.kernel import Negatives, Objective, Pairs, Variant

DTYPES = {torch.float32: "float32", torch.float16: "float16", torch.bfloat16: "bfloat16"}
_FORCED = "MIRROR_RT_INSTRUCTION_SET"


def unavailable_reason(z: Tensor) -> str | None:
    """Return why the kernel cannot take embeddings like `z`; None if it can."""
    if not z.is_cpu:
        return f"the embeddings are on {z.device}"
    if z.dtype not in DTYPES:
        return f"it has no {z.dtype}"
    return None


@dataclass(frozen=True, slots=True)
class CpuRows:
    """Rows that stay in place, and 1 / norm of each, float32.

    `native` describes them for the native code, which does not keep the tensors, `blocks`, alive.
    """

    native: _core.InfonceRows
    blocks: list[Tensor]
    inverse_norms: Tensor


class CpuKernel:
    """The CPU's `mirror_train.loss.kernel.Kernel`; `torch.set_num_threads` sets its threads.

    Args:
        instruction_set: one of `_core.instruction_sets()`; None for the environment variable
            MIRROR_RT_INSTRUCTION_SET or, if it is not set, the most capable one.
        module: the native module, `mirror_rt._core` or a build with its interface.
    """

    passes = None

    def __init__(self, instruction_set: str | None = None, module: ModuleType = _core) -> None:
        self._native = module
        self._forced = instruction_set or os.environ.get(_FORCED)
        # Products of bfloat16 take half the time of float32, and are exact enough for 16-bit input.
        single = module.best_instruction_set(False)
        self._best = {True: single, False: module.best_instruction_set(True) or single}
        known = module.instruction_sets()
        if self._forced is not None and self._forced not in known:
            raise ValueError(
                f"this processor runs {', '.join(known)}, not {self._forced!r} ({_FORCED})"
            )

    def normalize(self, blocks: Sequence[Tensor]) -> CpuRows:
        norms = _empty(sum(len(block) for block in blocks))
        addresses = [(block.data_ptr(), len(block)) for block in blocks]
        dim, dtype = blocks[0].shape[1], DTYPES[blocks[0].dtype]
        native = self._native.InfonceRows(addresses, dim, dtype, norms.data_ptr())
        rows = CpuRows(native, list(blocks), norms)
        self._native.infonce_inverse_norms(native, self._execution(rows), norms.data_ptr())
        return rows

    def logsumexp(
        self, rows: CpuRows, columns: CpuRows, negatives: Negatives, *, scale: float
    ) -> Tensor:
        n = _empty(negatives.n_rows)
        self._native.infonce_logsumexp(
            rows.native,
            None if columns is rows else columns.native,
            self._negatives(negatives),
            scale,
            self._execution(rows),
            n.data_ptr(),
        )
        return n

    def objective(
        self,
        rows: CpuRows,
        partners: CpuRows,
        pairs: Pairs,
        n: Tensor,
        *,
        scale: float,
        variant: Variant,
        factor: float,
    ) -> Objective:
        weights, log_weights = _empty(pairs.count), _empty(pairs.count)
        loss = self._native.infonce_objective(
            rows.native,
            partners.native,
            self._native.InfoncePairs(pairs.count, pairs.shift, pairs.mutual),
            n.data_ptr(),
            scale,
            variant == "decoupled",
            factor,
            self._execution(rows),
            weights.data_ptr(),
            log_weights.data_ptr(),
        )
        return Objective(
            torch.tensor(loss, dtype=torch.float32, device="cpu"), weights, log_weights
        )

    def contract(
        self,
        rows: CpuRows,
        columns: CpuRows,
        negatives: Negatives,
        row_log_weights: Tensor | None,
        column_log_weights: Tensor | None,
        *,
        scale: float,
        both: bool,
    ) -> tuple[Tensor, Tensor | None]:
        execution = self._execution(rows)
        sums = self._new_sums(rows, execution)
        column_sums = self._new_sums(columns, execution) if both else None
        self._native.infonce_contract(
            rows.native,
            None if columns is rows else columns.native,
            self._negatives(negatives),
            address(row_log_weights),
            address(column_log_weights),
            scale,
            execution,
            sums.data_ptr(),
            address(column_sums),
        )
        return sums, column_sums

    def finish(
        self,
        sums: Tensor,
        rows: CpuRows,
        partners: CpuRows,
        pairs: Pairs,
        weights: Tensor,
        *,
        factor: float,
        grad_output: Tensor,
    ) -> list[Tensor]:
        gradients = [torch.empty_like(block) for block in rows.blocks]
        self._native.infonce_finish(
            sums.data_ptr(),
            sums.shape[1],
            rows.native,
            partners.native,
            self._native.InfoncePairs(pairs.count, pairs.shift, pairs.mutual),
            weights.data_ptr(),
            factor * grad_output.item(),
            self._execution(rows),
            [gradient.data_ptr() for gradient in gradients],
        )
        return gradients

    def _execution(self, rows: CpuRows) -> _core.InfonceExecution:
        name = self._forced or self._best[rows.blocks[0].dtype == torch.float32]
        execution: _core.InfonceExecution = self._native.InfonceExecution(
            name, torch.get_num_threads()
        )
        return execution

    def _new_sums(self, rows: CpuRows, execution: _core.InfonceExecution) -> Tensor:
        n, dim = len(rows.inverse_norms), rows.blocks[0].shape[1]
        return _empty(execution.padded_rows(n), execution.padded_dim(dim))

    def _negatives(self, negatives: Negatives) -> _core.InfonceNegatives:
        native: _core.InfonceNegatives = self._native.InfonceNegatives(
            negatives.n_rows,
            negatives.n_columns,
            negatives.period,
            address(negatives.row_ids),
            address(negatives.column_ids),
        )
        return native


def address(tensor: Tensor | None) -> int:
    """Return the address of a tensor's values; 0 for None."""
    return 0 if tensor is None else tensor.data_ptr()


def _empty(*shape: int) -> Tensor:
    """Return an empty float32 CPU tensor, whatever torch's default dtype and device are."""
    return torch.empty(shape, dtype=torch.float32, device="cpu")
