"""Compute InfoNCE by the CUDA extension, in memory linear in the batch, without synchronising.

The kernels and their derivation are in csrc/infonce/gpu/loss.cu. This module checks the tensors,
allocates memory by torch's allocator, and queues everything on torch's current stream, so that
calls can be captured in a CUDA graph.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from mirror_train.loss.cpu_kernel import DTYPES, address
from mirror_train.loss.cuda_extension import EXTENSION
from mirror_train.loss.cuda_rows import (
    CudaRows,
    addresses,
    check_alike,
    check_blocks,
    check_vector,
    empty_like_rows,
)
from mirror_train.loss.kernel import Negatives, Objective, Pairs, Variant

if TYPE_CHECKING:
    import mirror_train._cuda as _cuda

# Size of the panel of weights: waves so large that the sums are rarely read and written again.
_PANEL_BYTES = 256 << 20
# Tiles in each direction of a wave of logsumexp: enough to keep every GPU busy, while the partial
# results take at most 2 * 128 * 128 * 128 * 8 bytes = 32 MB.
_LOGSUMEXP_TILES = 128


class CudaKernel:
    """The `mirror_train.loss.kernel.Kernel` for CUDA, in fp32, fp16 and bf16.

    Args:
        module: a module with the extension's interface, for which the tensors' device is not
            checked; None for the extension.
        panel_tiles: maximum number of tiles of weights at once; None for 256 MB of them.
        logsumexp_tiles: number of tiles in each direction of a wave of logsumexp.
    """

    def __init__(
        self,
        module: Any = None,
        *,
        panel_tiles: int | None = None,
        logsumexp_tiles: int = _LOGSUMEXP_TILES,
    ) -> None:
        self._device_type = "cuda" if module is None else None
        self._cuda = importlib.import_module(EXTENSION) if module is None else module
        self._panel_tiles = panel_tiles
        self._logsumexp_tiles = logsumexp_tiles

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
        with self._on(first.device) as stream:
            self._cuda.normalize(addresses(blocks), self._dtype(first.dtype), native, stream)
        return CudaRows(unit, norms, native, sizes, dim, stride, first.dtype)

    def logsumexp(
        self, rows: CudaRows, columns: CudaRows, negatives: Negatives, *, scale: float
    ) -> Tensor:
        check_alike(rows, columns)
        n_rows = negatives.n_rows
        wave = _wave(
            self._tiles(n_rows),
            self._tiles(len(columns.norms)),
            self._logsumexp_tiles**2,
            symmetric=columns is rows,
        )
        # A maximum and a sum for every row, and for every column, of every tile.
        partials = empty_like_rows(rows, (2, wave[0] * wave[1], self._cuda.TILE, 2))
        state = empty_like_rows(rows, (n_rows, 2))
        n = empty_like_rows(rows, (n_rows,))
        with self._on(n.device) as stream:
            self._cuda.logsumexp(
                rows.native,
                columns.native,
                self._negatives(negatives, rows),
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
        with self._on(n.device) as stream:
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
        wave = self._panel_wave(rows, columns, negatives)
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
        with self._on(sums.device) as stream:
            self._cuda.contract(
                rows.native,
                columns.native,
                self._negatives(negatives, rows),
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
        with self._on(device) as stream:
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

    def _negatives(self, negatives: Negatives, rows: CudaRows) -> _cuda.Negatives:
        for name, count in (("row_ids", negatives.n_rows), ("column_ids", negatives.n_columns)):
            ids = getattr(negatives, name)
            if ids is not None:
                check_vector(name, ids, count, rows, torch.int64)
        native: _cuda.Negatives = self._cuda.Negatives(
            negatives.n_rows,
            negatives.n_columns,
            negatives.period,
            address(negatives.row_ids),
            address(negatives.column_ids),
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

    def _panel_wave(
        self, rows: CudaRows, columns: CudaRows, negatives: Negatives
    ) -> tuple[int, int]:
        tile_bytes = rows.parts * self._cuda.TILE**2 * rows.unit.element_size()
        return _wave(
            self._tiles(negatives.n_rows if columns is rows else len(rows.norms)),
            self._tiles(len(columns.norms)),
            self._panel_tiles or _PANEL_BYTES // tile_bytes,
            symmetric=columns is rows,
        )

    @contextmanager
    def _on(self, device: torch.device) -> Iterator[int]:
        """Make the device current within the block; yield the handle of its current stream."""
        if device.type != "cuda":
            yield 0
            return
        with torch.cuda.device(device):
            self._cuda.set_device(torch.cuda.current_device())
            yield torch.cuda.current_stream().cuda_stream


def _wave(rows: int, columns: int, tiles: int, *, symmetric: bool) -> tuple[int, int]:
    """Return how many tiles of rows and of columns a wave of at most `tiles` tiles has.

    The problem has `rows` x `columns` tiles. Waves are of about equal size and as square as can be,
    because then the least is read and written between them. A symmetric problem needs squares.
    """
    side = math.isqrt(tiles)
    if symmetric:
        side = _even(columns, side)
        return side, side
    if rows <= columns:
        height = _even(rows, side)
        return height, _even(columns, tiles // height)
    width = _even(columns, side)
    return _even(rows, tiles // width), width


def _even(count: int, most: int) -> int:
    """Split `count` into the fewest even parts of at most `most`; return the size of a part."""
    return -(-count // -(-count // max(1, most)))
