"""InfoNCE by the CUDA extension: memory linear in the batch, no wait for the device.

The kernels and their derivation are in csrc/infonce/gpu/loss.cu. Here tensors are checked, space is
taken from torch's allocator, and everything queued on torch's current stream: so calls can be
captured in a CUDA graph.
"""

from __future__ import annotations

import importlib
import importlib.util
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from mirror_train.loss.kernel import Negatives, Objective, Pairs, Variant

if TYPE_CHECKING:
    from mirror_train import _cuda

__all__ = ["CudaKernel", "CudaRows", "unavailable_reason"]

_EXTENSION = "mirror_train._cuda"
_OLDEST = (7, 5)  # compute capability: the first with the matrix loads that the kernels use
_DTYPES = {torch.float32: "float32", torch.float16: "float16", torch.bfloat16: "bfloat16"}
# The panel of weights: as large a wave as lets the sums be rarely read and written again.
_PANEL_BYTES = 256 << 20
# Tiles a wave of logsumexp has down and across: enough to keep every GPU busy, and partials of
# at most 2 * 128 * 128 * 128 * 8 bytes = 32 MB.
_LOGSUMEXP_TILES = 128


def unavailable_reason(z: Tensor) -> str | None:
    """Why `CudaKernel` cannot take embeddings like `z`; None if it can.

    Raises:
        ImportError: the extension is there and does not load: it is broken, not absent.
    """
    if not _extension_is_built():
        return "mirror_rt was built without CUDA (build with -DMIRROR_RT_CUDA=ON)"
    if not z.is_cuda:
        return f"the embeddings are on {z.device}, not on a CUDA device"
    if torch.version.cuda is None:
        return "this torch is not built for NVIDIA GPUs"
    capability = torch.cuda.get_device_capability(z.device)
    if capability < _OLDEST:
        have, need = (".".join(map(str, version)) for version in (capability, _OLDEST))
        return f"{z.device} has compute capability {have}, and {need} is the least"
    if z.dtype not in _DTYPES:
        return f"the embeddings are {z.dtype}, not float32, float16 or bfloat16"
    return None


@cache
def _extension_is_built() -> bool:
    if importlib.util.find_spec(_EXTENSION) is None:
        return False
    importlib.import_module(_EXTENSION)
    return True


@dataclass(frozen=True, slots=True)
class CudaRows:
    """Normalised rows.

    Attributes:
        unit: fp16 [R rounded up to a tile, parts * stride]; see csrc/infonce/gpu/loss.h.
        norms: fp32 [R].
        native: the same for the extension, which does not keep the tensors alive.
        sizes: rows of the blocks these came from.
        dim: D.
        stride: D rounded up to a tile.
        dtype: of the blocks.
    """

    unit: Tensor
    norms: Tensor
    native: _cuda.Rows
    sizes: list[int]
    dim: int
    stride: int
    dtype: torch.dtype

    @property
    def parts(self) -> int:
        """fp16 parts an element has."""
        return self.unit.shape[1] // self.stride


class CudaKernel:
    """See `mirror_train.loss.kernel.Kernel`; fp32, fp16 and bf16.

    Args:
        module: the extension, or what has its interface; then the tensors' device is not checked.
        panel_tiles: at most so many tiles of weights at once; None for 256 MB of them.
        logsumexp_tiles: tiles a wave of logsumexp has each way.
    """

    def __init__(
        self,
        module: Any = None,
        *,
        panel_tiles: int | None = None,
        logsumexp_tiles: int = _LOGSUMEXP_TILES,
    ) -> None:
        self._device_type = "cuda" if module is None else None
        self._cuda = importlib.import_module(_EXTENSION) if module is None else module
        self._panel_tiles = panel_tiles
        self._logsumexp_tiles = logsumexp_tiles

    def normalize(self, blocks: Sequence[Tensor]) -> CudaRows:
        first = blocks[0]
        self._check_blocks(blocks)
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
            self._cuda.normalize(_addresses(blocks), self._dtype(first.dtype), native, stream)
        return CudaRows(unit, norms, native, sizes, dim, stride, first.dtype)

    def logsumexp(
        self, rows: CudaRows, columns: CudaRows, negatives: Negatives, *, scale: float
    ) -> Tensor:
        _check_alike(rows, columns)
        n_rows = negatives.n_rows
        wave = _wave(
            self._tiles(n_rows),
            self._tiles(len(columns.norms)),
            self._logsumexp_tiles**2,
            symmetric=columns is rows,
        )
        # Of a maximum and a sum for every row, and every column, of every tile.
        partials = _empty(rows, (2, wave[0] * wave[1], self._cuda.TILE, 2))
        state = _empty(rows, (n_rows, 2))
        n = _empty(rows, (n_rows,))
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
        _check_alike(rows, partners)
        _check_floats("n", n, pairs.count, rows)
        loss = _empty(rows, ())
        weights, log_weights = _empty(rows, (pairs.count,)), _empty(rows, (pairs.count,))
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
        """See `Kernel.contract`. The sums are [R, D] padded to whole tiles."""
        _check_alike(rows, columns)
        if row_log_weights is not None:
            _check_floats("row_log_weights", row_log_weights, negatives.n_rows, rows)
        if column_log_weights is not None:
            _check_floats("column_log_weights", column_log_weights, negatives.n_columns, rows)
        symmetric = columns is rows
        wave = self._panel_wave(rows, columns, negatives)
        tile = self._cuda.TILE
        panel = torch.empty(
            rows.parts * wave[0] * wave[1] * tile * tile,
            dtype=torch.float16,
            device=rows.unit.device,
        )
        sums = _empty(rows, (len(rows.unit), rows.stride))
        column_sums = None
        if both and not symmetric:
            column_sums = _empty(rows, (len(columns.unit), rows.stride))
        with self._on(sums.device) as stream:
            self._cuda.contract(
                rows.native,
                columns.native,
                self._negatives(negatives, rows),
                _address(row_log_weights),
                _address(column_log_weights),
                scale,
                wave,
                panel.data_ptr(),
                sums.data_ptr(),
                _address(column_sums),
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
        _check_alike(rows, partners)
        _check_floats("weights", weights, pairs.count, rows)
        _check_floats("grad_output", grad_output.view(1), 1, rows)
        device = sums.device
        grads = [torch.empty(n, rows.dim, dtype=rows.dtype, device=device) for n in rows.sizes]
        with self._on(sums.device) as stream:
            self._cuda.finish(
                sums.data_ptr(),
                rows.native,
                partners.native,
                self._pairs(pairs),
                weights.data_ptr(),
                factor,
                grad_output.data_ptr(),
                _addresses(grads),
                self._dtype(rows.dtype),
                stream,
            )
        return grads

    def _check_blocks(self, blocks: Sequence[Tensor]) -> None:
        first = blocks[0]
        if first.dtype not in _DTYPES:
            raise ValueError(f"embeddings must be float32, float16 or bfloat16, got {first.dtype}")
        if self._device_type is not None and first.device.type != self._device_type:
            raise ValueError(f"embeddings must be on a CUDA device, got {first.device}")
        for block in blocks:
            alike = block.dtype == first.dtype and block.device == first.device
            if block.ndim != 2 or block.shape[1:] != first.shape[1:] or not alike:
                raise ValueError(
                    f"blocks must share D, dtype and device, got {_described(first)} and "
                    f"{_described(block)}"
                )
            if not block.is_contiguous():
                raise ValueError(f"blocks must be contiguous, got strides {block.stride()}")

    def _negatives(self, negatives: Negatives, rows: CudaRows) -> _cuda.Negatives:
        for name, count in (("row_ids", negatives.n_rows), ("column_ids", negatives.n_columns)):
            ids = getattr(negatives, name)
            if ids is not None:
                _check_vector(name, ids, count, torch.int64, rows)
        native: _cuda.Negatives = self._cuda.Negatives(
            negatives.n_rows,
            negatives.n_columns,
            negatives.period,
            _address(negatives.row_ids),
            _address(negatives.column_ids),
        )
        return native

    def _pairs(self, pairs: Pairs) -> _cuda.Pairs:
        native: _cuda.Pairs = self._cuda.Pairs(pairs.count, pairs.shift, pairs.mutual)
        return native

    def _dtype(self, dtype: torch.dtype) -> _cuda.Dtype:
        native: _cuda.Dtype = getattr(self._cuda.Dtype, _DTYPES[dtype])
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
        """Within it the device is current; gives the handle of its current stream."""
        if device.type != "cuda":
            yield 0
            return
        with torch.cuda.device(device):
            self._cuda.set_device(torch.cuda.current_device())
            yield torch.cuda.current_stream().cuda_stream


def _wave(rows: int, columns: int, tiles: int, *, symmetric: bool) -> tuple[int, int]:
    """Tiles of rows and of columns in a wave of at most `tiles`, of all `rows` x `columns`.

    As square as can be, for then the least is read and written between waves, and all about equal.
    A symmetric problem needs true squares.
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
    """The size of parts of `count`, as few as can be of at most `most` each."""
    return -(-count // -(-count // max(1, most)))


def _empty(rows: CudaRows, shape: tuple[int, ...]) -> Tensor:
    return torch.empty(shape, dtype=torch.float32, device=rows.unit.device)


def _address(tensor: Tensor | None) -> int:
    return 0 if tensor is None else tensor.data_ptr()


def _addresses(blocks: Sequence[Tensor]) -> list[tuple[int, int]]:
    return [(block.data_ptr(), len(block)) for block in blocks]


def _described(tensor: Tensor) -> str:
    return f"{list(tensor.shape)} {tensor.dtype} on {tensor.device}"


def _check_alike(rows: CudaRows, others: CudaRows) -> None:
    for name in ("dim", "dtype"):
        if getattr(rows, name) != getattr(others, name):
            raise ValueError(
                f"rows differ in {name}: {getattr(rows, name)} and {getattr(others, name)}"
            )


def _check_floats(name: str, vector: Tensor, length: int, rows: CudaRows) -> None:
    _check_vector(name, vector, length, torch.float32, rows)


def _check_vector(
    name: str, vector: Tensor, length: int, dtype: torch.dtype, rows: CudaRows
) -> None:
    """ValueError unless the extension may read `length` values from the vector's address."""
    device = rows.unit.device
    like = vector.dtype == dtype and vector.device == device
    if vector.shape != (length,) or not like or not vector.is_contiguous():
        raise ValueError(
            f"{name} must be contiguous [{length}] {dtype} on {device}, got {_described(vector)}"
        )
