"""Choose the kernel that computes the loss."""

from __future__ import annotations

import logging
from functools import cache
from typing import Literal, get_args

import torch

from mirror_train.loss import cpu_kernel, cuda_device
from mirror_train.loss.kernel import Kernel

Impl = Literal["auto", "torch", "cpu", "cuda"]
_IMPLS = get_args(Impl)

_log = logging.getLogger("mirror_train")


# A compiler calls it and takes the result: it looks into the machine, which cannot be traced.
@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def choose_kernel(impl: str, device: torch.device, dtype: torch.dtype) -> str:
    """Return the name of the kernel for embeddings of this kind.

    `auto` chooses the C++ or CUDA kernel for the device if there is one, else PyTorch, at every
    size: on the CPU, the C++ kernel is faster from 4 rows on (benchmarks/loss/compare.py --rows 4
    32 128); on a GPU nothing has been measured yet. A ValueError says why `impl` cannot run, an
    ImportError that the CUDA extension is installed but broken.
    """
    if impl == "auto":
        return _best_kernel(device, dtype)
    if impl not in _IMPLS:
        raise ValueError(f"impl must be one of {', '.join(_IMPLS)}, got {impl!r}")
    reasons = {"cpu": cpu_kernel.unavailable_reason, "cuda": cuda_device.unavailable_reason}
    if impl in reasons and (reason := reasons[impl](device, dtype)):
        raise ValueError(f"impl={impl!r} cannot run: {reason}")
    return impl


def _best_kernel(device: torch.device, dtype: torch.dtype) -> str:
    if device.type != "cuda":
        return "torch" if cpu_kernel.unavailable_reason(device, dtype) else "cpu"
    reason = cuda_device.unavailable_reason(device, dtype)
    if reason is None:
        return "cuda"
    _say_once(reason)
    return "torch"


@cache
def _say_once(reason: str) -> None:
    _log.warning("InfoNCE runs in plain PyTorch, not by its CUDA kernel: %s", reason)


@cache
def kernel_named(name: str) -> Kernel:
    """Return the kernel whose name `choose_kernel` returned."""
    from mirror_train.loss.cuda_kernel import CudaKernel
    from mirror_train.loss.torch_kernel import TorchKernel

    kernels: dict[str, type[Kernel]] = {
        "torch": TorchKernel,
        "cpu": cpu_kernel.CpuKernel,
        "cuda": CudaKernel,
    }
    return kernels[name]()
