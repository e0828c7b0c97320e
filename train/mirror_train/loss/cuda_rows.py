"""Hold normalised rows on a CUDA device, and check the tensors that the extension reads with them.

The extension takes bare addresses, so a tensor of the wrong shape would be read beyond its end.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from mirror_train.loss.cpu_kernel import DTYPES

if TYPE_CHECKING:
    import mirror_train._cuda as _cuda


@dataclass(frozen=True, slots=True)
class CudaRows:
    """Normalised rows on a CUDA device.

    Attributes:
        unit: unit rows, fp16 [R rounded up to a tile, parts * stride]; see csrc/infonce/gpu/loss.h.
        norms: the norms of the original rows, fp32 [R].
        native: the same rows for the extension, which does not keep the tensors alive.
        sizes: number of rows of each block that the rows came from.
        dim: D.
        stride: D rounded up to a tile.
        dtype: dtype of the blocks.
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
        """The number of fp16 parts that represent an element: 2 for float32, else 1."""
        return self.unit.shape[1] // self.stride


def empty_like_rows(rows: CudaRows, shape: tuple[int, ...]) -> Tensor:
    """Return an uninitialised float32 tensor on the device of the rows."""
    return torch.empty(shape, dtype=torch.float32, device=rows.unit.device)


def addresses(blocks: Sequence[Tensor]) -> list[tuple[int, int]]:
    """Return the address and the number of rows of each block."""
    return [(block.data_ptr(), len(block)) for block in blocks]


def check_blocks(blocks: Sequence[Tensor], device_type: str | None) -> None:
    """Raise ValueError unless the blocks can be rows of one matrix on a device of `device_type`.

    None allows any type of device.
    """
    first = blocks[0]
    if first.dtype not in DTYPES:
        raise ValueError(f"embeddings must be float32, float16 or bfloat16, got {first.dtype}")
    if device_type is not None and first.device.type != device_type:
        raise ValueError(f"embeddings must be on a CUDA device, got {first.device}")
    dtype, device, dim = first.dtype, first.device, first.shape[-1]
    for block in blocks:
        alike = block.dtype == dtype and block.device == device
        if block.ndim != 2 or block.shape[1] != dim or not alike:
            raise ValueError(
                f"blocks must share D, dtype and device, got {_described(first)} and "
                f"{_described(block)}"
            )
        if not block.is_contiguous():
            raise ValueError(f"blocks must be contiguous, got strides {block.stride()}")


def check_alike(rows: CudaRows, others: CudaRows) -> None:
    """Raise ValueError unless both have rows of the same length and dtype."""
    for name in ("dim", "dtype"):
        if getattr(rows, name) != getattr(others, name):
            raise ValueError(
                f"rows differ in {name}: {getattr(rows, name)} and {getattr(others, name)}"
            )


def rank_ids(ids: Tensor) -> Tensor:
    """Return int32 numbers that are equal exactly where ids are, without waiting for the device."""
    return torch.searchsorted(ids.sort().values, ids, out_int32=True)


def check_vector(
    name: str, vector: Tensor, length: int, rows: CudaRows, dtype: torch.dtype = torch.float32
) -> None:
    """Raise ValueError unless the extension may read `length` values at the vector's address."""
    device = rows.unit.device
    like = vector.dtype == dtype and vector.device == device
    if vector.shape != (length,) or not like or not vector.is_contiguous():
        raise ValueError(
            f"{name} must be contiguous [{length}] {dtype} on {device}, got {_described(vector)}"
        )


def _described(tensor: Tensor) -> str:
    return f"{list(tensor.shape)} {tensor.dtype} on {tensor.device}"
