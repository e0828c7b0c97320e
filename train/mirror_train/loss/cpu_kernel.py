"""Compute InfoNCE in C++ on the CPU (csrc/infonce), which reads tensors by their data pointers."""

from __future__ import annotations

import functools
import os
from collections.abc import Sequence
from dataclasses import dataclass
from types import ModuleType

import torch
from torch import Tensor

from mirror_rt import _core
from mirror_train.loss.following import Following, Gradients
from mirror_train.loss.kernel import Inputs, Objective, Options, Variant
from mirror_train.loss.problem import Problem, Sums

DTYPES = {torch.float32: "float32", torch.float16: "float16", torch.bfloat16: "bfloat16"}
_FORCED = "MIRROR_RT_INSTRUCTION_SET"


def unavailable_reason(device: torch.device, dtype: torch.dtype) -> str | None:
    """Return why the kernel cannot take embeddings of this kind; None if it can."""
    if device.type != "cpu":
        return f"the embeddings are on {device}"
    return None if dtype in DTYPES else f"it has no {dtype}"


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

    def forward(self, inputs: Inputs, options: Options) -> Objective:
        problem = Problem.of(inputs, options)
        rows, partners, columns = problem.normalized(self._normalize)
        execution = self._execution(rows)
        n = self._logsumexp(problem, rows, columns, execution)
        return self._objective(problem, rows, partners, n, execution)

    def backward(
        self, inputs: Inputs, weights: Tensor, log_weights: Tensor, grad: Tensor, options: Options
    ) -> list[Tensor]:
        problem = Problem.of(inputs, options)
        factor = problem.scale / problem.count * grad.item()
        contract = functools.partial(self._contract, problem)
        gradients: list[Tensor] = []
        for sums, rows, partners in problem.weighted_sums(log_weights, self._normalize, contract):
            gradients += self._finish(sums, rows, partners, self._pairs(problem), weights, factor)
        return gradients

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
        """Return the loss of `mirror_train.loss.soft_targets`, and what gives its gradients."""
        variant: Variant = "ntxent" if len(views) > 1 else "one_way"  # then view 2 is not read
        problem = Problem.of(
            Inputs(views[0], views[-1], None, ids), Options(temperature, variant, "cpu")
        )
        rows = self._normalize(problem.rows)
        execution = self._execution(rows)
        n = self._logsumexp(problem, rows, rows, execution)
        teacher_n = self._teacher_n(teacher, ids, teacher_temperature, execution)
        if len(views) > 1:
            plain = self._objective(problem, rows, rows, n, execution)
            pairs = self._pairs(problem)
        else:
            plain = Objective(_empty().zero_(), _empty(problem.count).zero_(), _empty(0))
            pairs = self._native.InfoncePairs(0, 0, True)
        following = Following.of(n, teacher_n, plain, weight)
        targets = self._normalize([teacher] * len(views))
        sums = self._new_sums(rows, execution)
        total = self._native.infonce_contract(
            rows.native,
            None,
            self._negatives(problem),
            following.log_weights.data_ptr(),
            following.log_weights.data_ptr(),
            problem.scale,
            self._native.InfonceTeacher(
                targets.native, following.teacher_log_weights.data_ptr(), 1 / teacher_temperature
            ),
            execution,
            sums.data_ptr(),
            0,
        )
        factor = problem.scale / problem.count
        return following.loss(torch.tensor(total, dtype=torch.float64)), lambda grad: self._finish(
            sums, rows, rows, pairs, following.g, factor * grad.item()
        )

    def _teacher_n(
        self, teacher: Tensor, ids: Tensor | None, temperature: float,
        execution: _core.InfonceExecution,
    ) -> Tensor:  # fmt: skip
        options, rows = Options(temperature, "one_way", "cpu"), self._normalize([teacher])
        problem = Problem.of(Inputs(teacher, teacher, None, ids), options)
        return self._logsumexp(problem, rows, rows, execution)

    def _logsumexp(
        self, problem: Problem, rows: CpuRows, columns: CpuRows,
        execution: _core.InfonceExecution,
    ) -> Tensor:  # fmt: skip
        n = _empty(problem.count)
        self._native.infonce_logsumexp(
            rows.native,
            None if columns is rows else columns.native,
            self._negatives(problem),
            problem.scale,
            execution,
            n.data_ptr(),
        )
        return n

    def _objective(
        self, problem: Problem, rows: CpuRows, partners: CpuRows, n: Tensor,
        execution: _core.InfonceExecution,
    ) -> Objective:  # fmt: skip
        weights, log_weights = _empty(problem.count), _empty(problem.count)
        loss = self._native.infonce_objective(
            rows.native,
            partners.native,
            self._pairs(problem),
            n.data_ptr(),
            problem.scale,
            problem.decoupled,
            1 / problem.total,
            execution,
            weights.data_ptr(),
            log_weights.data_ptr(),
        )
        loss = torch.tensor(loss, dtype=torch.float32, device="cpu")
        return Objective(loss, weights, log_weights)

    def _finish(
        self, sums: Tensor, rows: CpuRows, partners: CpuRows, pairs: _core.InfoncePairs,
        weights: Tensor, factor: float,
    ) -> list[Tensor]:  # fmt: skip
        gradients = [torch.empty_like(block) for block in rows.blocks]
        self._native.infonce_finish(
            sums.data_ptr(),
            sums.shape[1],
            rows.native,
            partners.native,
            pairs,
            weights.data_ptr(),
            factor,
            self._execution(rows),
            [gradient.data_ptr() for gradient in gradients],
        )
        return gradients

    def _normalize(self, blocks: Sequence[Tensor]) -> CpuRows:
        norms = _empty(sum(len(block) for block in blocks))
        addresses = [(block.data_ptr(), len(block)) for block in blocks]
        dim, dtype = blocks[0].shape[1], DTYPES[blocks[0].dtype]
        native = self._native.InfonceRows(addresses, dim, dtype, norms.data_ptr())
        rows = CpuRows(native, list(blocks), norms)
        self._native.infonce_inverse_norms(native, self._execution(rows), norms.data_ptr())
        return rows

    def _contract(
        self, problem: Problem, rows: CpuRows, columns: CpuRows, a: Tensor | None,
        b: Tensor | None, both: bool,
    ) -> Sums:  # fmt: skip
        execution = self._execution(rows)
        sums = self._new_sums(rows, execution)
        column_sums = self._new_sums(columns, execution) if both else None
        self._native.infonce_contract(
            rows.native,
            None if columns is rows else columns.native,
            self._negatives(problem),
            address(a),
            address(b),
            problem.scale,
            None,
            execution,
            sums.data_ptr(),
            address(column_sums),
        )
        return sums, column_sums

    def _execution(self, rows: CpuRows) -> _core.InfonceExecution:
        name = self._forced or self._best[rows.blocks[0].dtype == torch.float32]
        execution: _core.InfonceExecution = self._native.InfonceExecution(
            name, torch.get_num_threads()
        )
        return execution

    def _new_sums(self, rows: CpuRows, execution: _core.InfonceExecution) -> Tensor:
        n, dim = len(rows.inverse_norms), rows.blocks[0].shape[1]
        return _empty(execution.padded_rows(n), execution.padded_dim(dim))

    def _pairs(self, problem: Problem) -> _core.InfoncePairs:
        native: _core.InfoncePairs = self._native.InfoncePairs(
            problem.count, problem.shift, problem.mutual
        )
        return native

    def _negatives(self, problem: Problem) -> _core.InfonceNegatives:
        native: _core.InfonceNegatives = self._native.InfonceNegatives(
            problem.count,
            problem.n_columns,
            problem.period,
            address(problem.row_ids),
            address(problem.column_ids),
        )
        return native


def address(tensor: Tensor | None) -> int:
    """Return the address of a tensor's values; 0 for None."""
    return 0 if tensor is None else tensor.data_ptr()


def _empty(*shape: int) -> Tensor:
    """Return an empty float32 CPU tensor, whatever torch's default dtype and device are."""
    return torch.empty(shape, dtype=torch.float32, device="cpu")
