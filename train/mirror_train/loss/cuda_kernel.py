"""Compute InfoNCE by the CUDA extension, in memory linear in the batch, without synchronising.

The kernels and their derivation are in csrc/infonce/gpu/loss.cu. This module checks the tensors,
allocates memory by torch's allocator, and queues everything on torch's current stream, so that
calls can be captured in a CUDA graph.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from mirror_train.loss.cpu_kernel import DTYPES, address
from mirror_train.loss.cuda_extension import EXTENSION
from mirror_train.loss.cuda_passes import CudaPasses
from mirror_train.loss.cuda_rows import (
    CudaRows,
    addresses,
    check_alike,
    check_blocks,
    check_vector,
    empty_like_rows,
    rank_ids,
)
from mirror_train.loss.cuda_streams import current_stream
from mirror_train.loss.cuda_waves import Waves
from mirror_train.loss.kernel import Negatives, Objective, Pairs, Passes, Variant

if TYPE_CHECKING:
    import mirror_train._cuda as _cuda


class CudaKernel:
    """The `mirror_train.loss.kernel.Kernel` for CUDA, in fp32, fp16 and bf16.

    Args:
        module: a module with the extension's interface, for which the tensors' device is not
            checked; None for the extension.
        waves: the largest waves.
    """

    def __init__(self, module: Any = None, *, waves: Waves | None = None) -> None:
        self._device_type = "cuda" if module is None else None
        self._cuda = importlib.import_module(EXTENSION) if module is None else module
        self._waves = waves or Waves()
        self.passes: Passes | None = CudaPasses(self._cuda, self._device_type, self._waves)

    def normalize(self, blocks: Sequence[Tensor]) -> CudaRows:
        first = blocks[0]
        check_blocks(blocks, self._device_type)
        sizes = [len(block) for block in blocks]
        count, dim = sum(sizes), first.shape[1]
        stride, parts = self._padded(dim), 2 if first.dtype == torch.float32 else 1
        unit = torch.empty(
            self._padded(count), parts * stride, dtype=torch.float16, device=first.device
        )
        norms = torch.empty(count, dtype=torch.float32, device=first.device)
        native = self._cuda.Rows(
            unit.data_ptr(), norms.data_ptr(), count, dim, stride, split=parts == 2
        )
        with current_stream(self._cuda, first.device) as stream:
            self._cuda.normalize(addresses(blocks), self._dtype(first.dtype), native, stream)
        return CudaRows(unit, norms, native, sizes, dim, stride, first.dtype)

    def logsumexp(
        self, rows: CudaRows, columns: CudaRows, negatives: Negatives, *, scale: float
    ) -> Tensor:
        check_alike(rows, columns)
        n_rows = negatives.n_rows
        ranks = self._ranks(negatives, rows)
        wave = self._waves.logsumexp(
            self._tiles(n_rows), self._tiles(len(columns.norms)), symmetric=columns is rows
        )
        # A maximum and a sum for every row of every tile, and for every column, some in parts.
        parts = 1 + self._cuda.COLUMN_PARTS
        partials = empty_like_rows(rows, (parts, wave[0] * wave[1], self._cuda.TILE, 2))
        state = empty_like_rows(rows, (n_rows, 2))
        n = empty_like_rows(rows, (n_rows,))
        with current_stream(self._cuda, n.device) as stream:
            self._cuda.logsumexp(
                rows.native,
                columns.native,
                self._negatives(negatives, ranks),
                scale,
                wave,
                partials[0].data_ptr(),
                partials[1].data_ptr(),
                state.data_ptr(),
                n.data_ptr(),
                stream,
            )
        return n

    def objective(
        self,
        rows: CudaRows,
        partners: CudaRows,
        pairs: Pairs,
        n: Tensor,
        *,
        scale: float,
        variant: Variant,
        factor: float,
    ) -> Objective:
        check_alike(rows, partners)
        check_vector("n", n, pairs.count, rows)
        loss = empty_like_rows(rows, ())
        weights, log_weights = (empty_like_rows(rows, (pairs.count,)) for _ in range(2))
        blocks = -(-pairs.count // self._cuda.ROWS_PER_BLOCK)
        work = torch.empty(blocks, dtype=torch.float64, device=n.device)
        with current_stream(self._cuda, n.device) as stream:
            self._cuda.objective(
                rows.native,
                partners.native,
                self._pairs(pairs),
                n.data_ptr(),
                scale,
                variant == "decoupled",
                factor,
                loss.data_ptr(),
                weights.data_ptr(),
                log_weights.data_ptr(),
                work.data_ptr(),
                stream,
            )
        return Objective(loss, weights, log_weights)

    def contract(
        self,
        rows: CudaRows,
        columns: CudaRows,
        negatives: Negatives,
        row_log_weights: Tensor | None,
        column_log_weights: Tensor | None,
        *,
        scale: float,
        both: bool,
    ) -> tuple[Tensor, Tensor | None]:
        """Contract as `Kernel.contract` says; the sums are [R, D] padded to whole tiles."""
        check_alike(rows, columns)
        if row_log_weights is not None:
            check_vector("row_log_weights", row_log_weights, negatives.n_rows, rows)
        if column_log_weights is not None:
            check_vector("column_log_weights", column_log_weights, negatives.n_columns, rows)
        symmetric = columns is rows
        ranks = self._ranks(negatives, rows)
        wave = self._waves.panel(
            self._tiles(negatives.n_rows if symmetric else len(rows.norms)),
            self._tiles(len(columns.norms)),
            rows.parts,
            symmetric=symmetric,
        )
        tile = self._cuda.TILE
        panel = torch.empty(
            rows.parts * wave[0] * wave[1] * tile * tile,
            dtype=torch.float16,
            device=rows.unit.device,
        )
        sums = empty_like_rows(rows, (len(rows.unit), rows.stride))
        column_sums = None
        if both and not symmetric:
            column_sums = empty_like_rows(rows, (len(columns.unit), rows.stride))
        with current_stream(self._cuda, sums.device) as stream:
            self._cuda.contract(
                rows.native,
                columns.native,
                self._negatives(negatives, ranks),
                address(row_log_weights),
                address(column_log_weights),
                scale,
                wave,
                panel.data_ptr(),
                sums.data_ptr(),
                address(column_sums),
                stream,
            )
        return sums, column_sums

    def finish(
        self,
        sums: Tensor,
        rows: CudaRows,
        partners: CudaRows,
        pairs: Pairs,
        weights: Tensor,
        *,
        factor: float,
        grad_output: Tensor,
    ) -> list[Tensor]:
        check_alike(rows, partners)
        check_vector("weights", weights, pairs.count, rows)
        check_vector("grad_output", grad_output.view(1), 1, rows)
        device = sums.device
        grads = [torch.empty(n, rows.dim, dtype=rows.dtype, device=device) for n in rows.sizes]
        with current_stream(self._cuda, device) as stream:
            self._cuda.finish(
                sums.data_ptr(),
                rows.native,
                partners.native,
                self._pairs(pairs),
                weights.data_ptr(),
                factor,
                grad_output.data_ptr(),
                addresses(grads),
                self._dtype(rows.dtype),
                stream,
            )
        return grads

    @staticmethod
    def _ranks(negatives: Negatives, rows: CudaRows) -> tuple[Tensor | None, Tensor | None]:
        """Return int32 numbers of the ids of rows and columns; keep them until they are passed."""
        row_ids, column_ids = negatives.row_ids, negatives.column_ids
        if row_ids is None or column_ids is None:
            return None, None
        check_vector("row_ids", row_ids, negatives.n_rows, rows, torch.int64)
        check_vector("column_ids", column_ids, negatives.n_columns, rows, torch.int64)
        if row_ids is column_ids:
            ranks = rank_ids(row_ids)
            return ranks, ranks
        ranks = rank_ids(torch.cat([row_ids, column_ids]))
        return ranks[: len(row_ids)], ranks[len(row_ids) :]

    def _negatives(
        self, negatives: Negatives, ranks: tuple[Tensor | None, Tensor | None]
    ) -> _cuda.Negatives:
        native: _cuda.Negatives = self._cuda.Negatives(
            negatives.n_rows, negatives.n_columns, negatives.period, *map(address, ranks)
        )
        return native

    def _pairs(self, pairs: Pairs) -> _cuda.Pairs:
        native: _cuda.Pairs = self._cuda.Pairs(pairs.count, pairs.shift, pairs.mutual)
        return native

    def _dtype(self, dtype: torch.dtype) -> _cuda.Dtype:
        native: _cuda.Dtype = getattr(self._cuda.Dtype, DTYPES[dtype])
        return native

    def _tiles(self, count: int) -> int:
        return -(-count // int(self._cuda.TILE))

    def _padded(self, count: int) -> int:
        return self._tiles(count) * int(self._cuda.TILE)
