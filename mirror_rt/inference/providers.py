"""Which execution providers a session asks for, and why one could not start."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from types import ModuleType
from typing import Literal

from mirror_rt.errors import ProviderError
from mirror_rt.inference.shared_libraries import (
    missing_libraries,
    nvidia_cards,
    preload,
    provider_library,
)

__all__ = [
    "CPU",
    "CUDA",
    "TENSORRT",
    "Providers",
    "candidates",
    "installed",
    "not_started",
    "why_not",
]

logger = logging.getLogger("mirror_rt")

CPU, CUDA = "CPUExecutionProvider", "CUDAExecutionProvider"
TENSORRT = "TensorrtExecutionProvider"

Providers = Literal["auto", "cpu", "cuda", "tensorrt"] | Sequence[str]

_SHORT = {"cpu": [CPU], "cuda": [CUDA, CPU], "tensorrt": [TENSORRT, CUDA, CPU]}


def candidates(
    providers: Providers, onnxruntime: ModuleType, *, allow_fallback: bool
) -> list[list[str]]:
    """Lists of providers to try, the best first.

    Raises:
        ProviderError: one was named that this onnxruntime lacks, and the CPU is not allowed to
            take its place.
    """
    available = onnxruntime.get_available_providers()
    if CUDA not in available and all(map(installed, ("onnxruntime", "onnxruntime-gpu"))):
        logger.warning(
            "onnxruntime and onnxruntime-gpu are both installed, and overwrote each other, so CUDA "
            "is gone: pip uninstall -y onnxruntime onnxruntime-gpu, then install one of them"
        )
    if CUDA in available and providers != "cpu":
        preload(onnxruntime)
    if providers == "auto":
        # TensorRT is not tried unasked: it compiles every graph for minutes.
        return [[CUDA, CPU], [CPU]] if CUDA in available else [[CPU]]
    wanted = _SHORT.get(providers, [providers]) if isinstance(providers, str) else list(providers)
    missing = [name for name in wanted if name not in available]
    if missing or not wanted:
        message = (
            f"providers {wanted}: this onnxruntime offers {', '.join(available)}; for CUDA "
            "uninstall onnxruntime and pip install 'mirror-rt[gpu]'"
        )
        if not allow_fallback or not wanted:
            raise ProviderError(message)
        logger.warning("%s; running on the CPU", message)
        return [[CPU]]
    return [wanted, [CPU]] if allow_fallback and wanted[0] != CPU else [wanted]


def not_started(provider: str, reason: str, *, providers: Providers, allow_fallback: bool) -> None:
    """Say that the best provider does not start: as an error, unless the CPU may take its place.

    With "auto" it may where there is no NVIDIA card: an image with onnxruntime-gpu then runs on
    any machine. Where there is one, the CPU would be the wrong choice, and nobody would see it.

    Raises:
        ProviderError: naming the reason, and the way on.
    """
    message = f"{provider} could not start: {reason}"
    if allow_fallback or (providers == "auto" and nvidia_cards() == 0):
        logger.warning("%s; running on the CPU", message)
        return
    raise ProviderError(
        f"{message}; `mirror-rt doctor` says more. To run on the CPU pass providers='cpu', or "
        "allow_fallback=True to do so only where CUDA fails"
    )


def why_not(provider: str, onnxruntime: ModuleType) -> str | None:
    """Why a provider of NVIDIA's cannot start, None where nothing is known against it.

    Asked beforehand: onnxruntime itself goes on without a provider that fails.
    """
    if provider not in (CUDA, TENSORRT):
        return None
    library = provider_library(onnxruntime, provider)
    if library is not None and (missing := missing_libraries(library)):
        return f"missing {', '.join(missing)}"
    return "the driver offers no NVIDIA card" if nvidia_cards() == 0 else None


def installed(distribution: str) -> bool:
    """Whether pip has installed a distribution of that name."""
    import importlib.metadata  # half of the time of importing mirror_rt, needed here alone

    try:
        importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True
