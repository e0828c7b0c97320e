"""Compute a pass of InfoNCE on a GPU in one call of the extension, with one workspace.

At a few hundred rows the host's work decides: each call, tensor and change of device takes about a
microsecond or two, as long as a kernel.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from mirror_train.loss.cpu_kernel import DTYPES, address
from mirror_train.loss.cuda_rows import check_blocks, rank_ids
from mirror_train.loss.cuda_streams import call_on_device
from mirror_train.loss.cuda_waves import Waves
from mirror_train.loss.kernel import Inputs, Objective, Variant

if TYPE_CHECKING:
    import mirror_train._cuda as _cuda


_MOST_BATCHES = 64  # kept; only a new one takes time


class _Batch(NamedTuple):
    """The extension's view of a batch, its number of losses, and the bytes that its passes need."""

    native: _cuda.Batch
    losses: int
    forward_bytes: int
    backward_bytes: int


class CudaPasses:
    """The `mirror_train.loss.kernel.Passes` of the CUDA extension.

    Args:
        module: the extension, or a module with its interface.
        device_type: the type of device that the tensors must be on; None for any.
        waves: the largest waves.
    """

    def __init__(self, module: Any, device_type: str | None, waves: Waves) -> None:
        self._cuda = module
        self._device_type = device_type
        self._waves = waves
        self._batches: dict[Any, _Batch] = {}

    def forward(self, inputs: Inputs, *, scale: float, variant: Variant) -> Objective:
        """Return what `Passes.forward` says."""
        z1, z2, hard, ids = inputs
        batch = self._batch(inputs, variant)
        ranks = None if ids is None else self._ranks(ids, variant)
        device = z1.device
        weights = torch.empty(batch.losses, dtype=torch.float32, device=device)
        log_weights = torch.empty_like(weights)
        loss = torch.empty((), dtype=torch.float32, device=device)
        workspace = torch.empty(batch.forward_bytes, dtype=torch.uint8, device=device)
        call_on_device(
            self._cuda,
            z1.get_device(),
            batch.native.forward,
            z1.data_ptr(),
            z2.data_ptr(),
            address(hard),
            address(ranks),
            scale,
            variant == "decoupled",
            workspace.data_ptr(),
            loss.data_ptr(),
            weights.data_ptr(),
            log_weights.data_ptr(),
        )
        return Objective(loss, weights, log_weights)

    def backward(
        self,
        inputs: Inputs,
        weights: Tensor,
        log_weights: Tensor,
        grad_output: Tensor,
        *,
        scale: float,
        variant: Variant,
    ) -> list[Tensor]:
        """Return what `Passes.backward` says, of inputs and weights that `forward` had or made."""
        z1, z2, hard, ids = inputs
        batch = self._batch(inputs, variant)
        ranks = None if ids is None else self._ranks(ids, variant)
        device = z1.device
        grads = [torch.empty_like(z1), torch.empty_like(z2)]
        if hard is not None:
            grads.append(torch.empty_like(hard))
        workspace = torch.empty(batch.backward_bytes, dtype=torch.uint8, device=device)
        call_on_device(
            self._cuda,
            z1.get_device(),
            batch.native.backward,
            z1.data_ptr(),
            z2.data_ptr(),
            address(hard),
            address(ranks),
            scale,
            weights.data_ptr(),
            log_weights.data_ptr(),
            grad_output.data_ptr(),
            workspace.data_ptr(),
            grads[0].data_ptr(),
            grads[1].data_ptr(),
            0 if hard is None else grads[2].data_ptr(),
        )
        return grads

    def _batch(self, inputs: Inputs, variant: Variant) -> _Batch:
        """Return the batch of inputs like these, which are checked only when it is made."""
        key = (
            variant,
            *[
                None if z is None else (z.shape, z.dtype, z.device, z.is_contiguous())
                for z in inputs
            ],
        )
        batch = self._batches.get(key)
        if batch is None:
            self._check(inputs)
            if len(self._batches) >= _MOST_BATCHES:
                self._batches.clear()
            batch = self._batches[key] = self._make_batch(inputs, variant)
        return batch

    def _check(self, inputs: Inputs) -> None:
        """Raise ValueError unless the extension can read the inputs."""
        z1, z2, hard, ids = inputs
        check_blocks([z1, z2] if hard is None else [z1, z2, hard], self._device_type)
        n = len(z1)
        if len(z2) != n:
            raise ValueError(f"z1 and z2 must have as many rows, got {n} and {len(z2)}")
        if ids is None:
            return
        if ids.shape != (n,) or ids.dtype != torch.int64 or ids.device != z1.device:
            raise ValueError(
                f"ids must be int64 [{n}] on {z1.device}, got {ids.dtype} {list(ids.shape)} on "
                f"{ids.device}"
            )

    def _make_batch(self, inputs: Inputs, variant: Variant) -> _Batch:
        z1, _, hard, _ = inputs
        n, dim = z1.shape
        n_hard, one_way = 0 if hard is None else len(hard), variant == "one_way"
        losses = n if one_way else 2 * n
        rows = self._tiles(losses)
        columns = self._tiles((n if one_way else losses) + n_hard)
        parts = 2 if z1.dtype == torch.float32 else 1
        symmetric = not one_way
        native: _cuda.Batch = self._cuda.Batch(
            n,
            n_hard,
            dim,
            getattr(self._cuda.Dtype, DTYPES[z1.dtype]),
            one_way,
            self._waves.logsumexp(rows, columns, symmetric=symmetric),
            self._waves.panel(rows, columns, parts, symmetric=symmetric),
        )
        return _Batch(native, losses, native.forward_bytes, native.backward_bytes)

    def _ranks(self, ids: Tensor, variant: Variant) -> Tensor:
        """Return the ranks of the ids of all rows that have one."""
        ranks = rank_ids(ids)
        return ranks if variant == "one_way" else ranks.repeat(2)

    def _tiles(self, count: int) -> int:
        return -(-count // int(self._cuda.TILE))
