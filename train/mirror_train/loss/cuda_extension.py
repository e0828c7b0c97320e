"""Find out whether the CUDA extension is built and can take given embeddings."""

from __future__ import annotations

import importlib.util
from functools import cache

import torch
from torch import Tensor

from mirror_train.loss.cpu_kernel import DTYPES

EXTENSION = "mirror_train._cuda"
_OLDEST = (7, 5)  # the first compute capability with the matrix loads that the kernels use


def unavailable_reason(z: Tensor) -> str | None:
    """Return why `CudaKernel` cannot take embeddings like `z`; None if it can.

    Raises:
        ImportError: the extension is installed but does not load: it is broken, not absent.
    """
    if not extension_is_built():
        return "mirror_rt was built without CUDA (build with -DMIRROR_RT_CUDA=ON)"
    if not z.is_cuda:
        return f"the embeddings are on {z.device}, not on a CUDA device"
    if torch.version.cuda is None:
        return "this torch is not built for NVIDIA GPUs"
    capability = _capability(z.device)
    if capability < _OLDEST:
        have, need = (".".join(map(str, version)) for version in (capability, _OLDEST))
        return f"{z.device} has compute capability {have}, and {need} is the least"
    if z.dtype not in DTYPES:
        return f"the embeddings are {z.dtype}, not float32, float16 or bfloat16"
    return None


@cache
def _capability(device: torch.device) -> tuple[int, int]:
    return torch.cuda.get_device_capability(device)


@cache
def extension_is_built() -> bool:
    """Return whether the extension is installed; raise ImportError if it is but does not load."""
    if importlib.util.find_spec(EXTENSION) is None:
        return False
    importlib.import_module(EXTENSION)
    return True
