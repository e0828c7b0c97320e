"""The choice of execution providers for a session, and the reasons why one cannot start."""

from __future__ import annotations

import functools
import logging
from collections.abc import Sequence
from types import ModuleType
from typing import Literal

from mirror_rt.errors import ProviderError, Setting
from mirror_rt.inference.shared_libraries import (
    card_files,
    cuda_library,
    driver_fault,
    missing_libraries,
    nvidia_cards,
    preload,
    remedy,
)

logger = logging.getLogger("mirror_rt")

CPU, CUDA = "CPUExecutionProvider", "CUDAExecutionProvider"
NATIVE: Literal["native"] = "native"  # the engine of this package, in place of onnxruntime
OPENVINO: Literal["openvino"] = "openvino"  # the same, by Intel, from a wheel of its own

Providers = Literal["auto", "cpu", "cuda", "native", "openvino"] | Sequence[str]

_SHORT = {"cpu": [CPU], "cuda": [CUDA, CPU]}


def candidates(
    providers: Providers, onnxruntime: ModuleType, *, allow_fallback: bool
) -> list[list[str]]:
    """Return lists of providers to try in turn, the best list first."""
    available = onnxruntime.get_available_providers()
    if CUDA not in available and all(map(installed, ("onnxruntime", "onnxruntime-gpu"))):
        logger.warning(
            "onnxruntime and onnxruntime-gpu are both installed, and overwrote each other, so CUDA "
            "is gone: pip uninstall -y onnxruntime onnxruntime-gpu, then install one of them"
        )
    if CUDA in available and providers != "cpu":
        preload(onnxruntime)
    if providers == "auto":
        if CUDA in available:
            return [[CUDA, CPU], [CPU]]
        say_that_cards_are_unused()
        return [[CPU]]
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


def no_card() -> bool:
    """Return whether there is no NVIDIA card, not even one that the driver fails on."""
    return not card_files() and nvidia_cards() == 0 and driver_fault() is None


def without_cards() -> Literal["auto", "cpu"]:
    """Return the providers that leave a card alone: "auto", the quickest, where there is none."""
    return "auto" if no_card() else "cpu"


@functools.cache
def say_that_cards_are_unused() -> None:
    """Say once in a process that a card is idle for want of an onnxruntime with CUDA."""
    if card_files():
        logger.warning(
            "there is an NVIDIA card, and no onnxruntime with CUDA: running on the CPU. To use "
            "the card: pip uninstall -y onnxruntime && pip install 'mirror-rt[gpu]'. To stay on "
            "the CPU without this line: providers='native', or 'cpu' for onnxruntime"
        )


def not_started(provider: str, reason: str, *, providers: Providers, allow_fallback: bool) -> None:
    """Report that the best provider does not start: as an error unless the CPU may replace it.

    With "auto" the CPU replaces it without a warning if there is no NVIDIA card, so that an image
    with onnxruntime-gpu runs on any machine. If there is a card, even one that the driver fails on,
    running on the CPU would be a mistake that nobody notices, so only `allow_fallback` turns the
    error into a warning.
    """
    message = f"{provider} could not start: {reason}"
    quiet = providers == "auto" and nvidia_cards() == 0 and driver_fault() is None
    if allow_fallback or quiet:
        logger.log(logging.INFO if quiet else logging.WARNING, "%s; running on the CPU", message)
        return
    raise ProviderError(
        f"{message}; `mirror-rt doctor` says more. To run on the CPU pass ",
        Setting("providers", "cpu"),
        ", or ",
        Setting("allow_fallback", True),
        " to do so only where CUDA fails",
    )


def why_not(provider: str, onnxruntime: ModuleType) -> str | None:
    """Return why the provider for NVIDIA cards cannot start, or None if no reason is known.

    This is checked beforehand because onnxruntime silently goes on without a provider that fails.
    """
    if provider != CUDA:
        return None
    library = cuda_library(onnxruntime)
    if library is not None and (missing := missing_libraries(library)):
        return f"missing {', '.join(missing)} ({remedy(missing, onnxruntime)})"
    if nvidia_cards() == 0:
        return driver_fault() or "the driver offers no NVIDIA card"
    return None


def installed(distribution: str) -> bool:
    """Return whether a distribution of that name is installed."""
    import importlib.metadata  # takes half of the time of importing mirror_rt, and is rarely needed

    try:
        importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True
