"""Choose the kernel that computes the loss."""

from __future__ import annotations

import logging
from functools import cache
from typing import Any, Literal, get_args

from torch import Tensor

from mirror_train.loss import cpu_kernel, cuda_extension, cuda_kernel
from mirror_train.loss.kernel import Kernel
from mirror_train.loss.torch_kernel import TorchKernel

Impl = Literal["auto", "torch", "cpu", "cuda"]
_IMPLS = get_args(Impl)

_log = logging.getLogger("mirror_train")


def choose_kernel(impl: str, z: Tensor) -> str:
    """Return the name of the kernel for embeddings like `z`.

    `auto` chooses the C++ or CUDA kernel for the device of `z` if there is one, else PyTorch, at
    every size: on the CPU, the C++ kernel is faster from 4 rows on (benchmarks/infonce.py --rows 4
    32 128); on a GPU nothing has been measured yet.

    Raises:
        ValueError: `impl` is unknown or cannot run; the message says why.
        ImportError: the CUDA extension is installed but broken.
    """
    if impl == "auto":
        return _best_kernel(z)
    if impl not in _IMPLS:
        raise ValueError(f"impl must be one of {', '.join(_IMPLS)}, got {impl!r}")
    if impl == "cpu" and (reason := cpu_kernel.unavailable_reason(z)):
        raise ValueError(f"impl='cpu' cannot run: {reason}")
    if impl == "cuda" and (reason := cuda_extension.unavailable_reason(z)):
        raise ValueError(f"impl='cuda' cannot run: {reason}")
    return impl


def _best_kernel(z: Tensor) -> str:
    if z.is_cuda:
        reason = cuda_extension.unavailable_reason(z)
        if reason is None:
            return "cuda"
        _say_once(reason)
        return "torch"
    return "torch" if cpu_kernel.unavailable_reason(z) else "cpu"


@cache
def _say_once(reason: str) -> None:
    _log.warning("InfoNCE runs in plain PyTorch, not by its CUDA kernel: %s", reason)


@cache
def kernel_named(name: str) -> Kernel[Any]:
    """Return the kernel whose name `choose_kernel` returned."""
    kernels: dict[str, type[Kernel[Any]]] = {
        "torch": TorchKernel,
        "cpu": cpu_kernel.CpuKernel,
        "cuda": cuda_kernel.CudaKernel,
    }
    return kernels[name]()
