"""onnxruntime sessions: the package imported on first use, providers and threads chosen here."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from mirror_rt.errors import BundleError, ConfigError, ProviderError, require

if TYPE_CHECKING:
    import onnxruntime as ort

__all__ = ["Providers", "available_cpus", "make_session", "onnxruntime_errors"]

Providers = Literal["auto"] | Sequence[str]

logger = logging.getLogger("mirror_rt")

_CUDA, _CPU = "CUDAExecutionProvider", "CPUExecutionProvider"


def make_session(model: Path, *, providers: Providers, threads: int | None) -> ort.InferenceSession:
    """Load an ONNX file.

    Args:
        model: the file.
        providers: `"auto"` (CUDA where onnxruntime has it, else the CPU) or onnxruntime's names.
        threads: of one operator; None for the processors this process may use.

    Raises:
        MissingDependencyError: no onnxruntime is installed.
        ProviderError: a provider was named that this onnxruntime lacks or could not start; with
            `"auto"` a CUDA that cannot start is a warning.
        ConfigError: `threads` is out of range.
        BundleError: the file is not a model that onnxruntime can load.
    """
    if threads is not None and not 1 <= threads <= 1024:
        raise ConfigError(f"threads must be in 1 .. 1024, got {threads}")
    onnxruntime = require("onnxruntime", extra="cpu|gpu", purpose="running a bundle")
    wanted = _choose(providers, onnxruntime.get_available_providers())
    try:
        session: ort.InferenceSession = onnxruntime.InferenceSession(
            str(model), _options(onnxruntime, threads), providers=wanted
        )
    except onnxruntime_errors() as error:
        raise BundleError(_cannot_load(model, str(error), onnxruntime.__version__)) from error
    if wanted[0] not in session.get_providers():
        # onnxruntime drops a provider that fails to start and goes on without it.
        problem = (
            f"{wanted[0]} could not start (are CUDA and cuDNN installed in the versions that "
            f"onnxruntime {onnxruntime.__version__} needs?)"
        )
        if providers != "auto":
            raise ProviderError(f"{problem}; pass providers=['{_CPU}'] to run on the CPU")
        logger.warning("%s; running on the CPU", problem)
    logger.debug("%s runs on %s", model, session.get_providers()[0])
    return session


def available_cpus() -> int:
    """Processors this process may use: its affinity mask, cut by a cgroup v2 quota."""
    if hasattr(os, "sched_getaffinity"):
        count = len(os.sched_getaffinity(0))
    else:
        count = os.cpu_count() or 1
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
    except (OSError, ValueError):
        return count
    return count if quota == "max" else max(1, min(count, round(int(quota) / int(period))))


def onnxruntime_errors() -> tuple[type[Exception], ...]:
    """Classes that onnxruntime raises for a graph it cannot load or run."""
    state = require("onnxruntime", extra="cpu|gpu", purpose="running a bundle").capi
    values = vars(state.onnxruntime_pybind11_state).values()
    return tuple(v for v in values if isinstance(v, type) and issubclass(v, Exception))


def _choose(providers: Providers, available: list[str]) -> list[str]:
    if _CUDA not in available and _installed("onnxruntime") and _installed("onnxruntime-gpu"):
        logger.warning(
            "onnxruntime and onnxruntime-gpu are both installed, and overwrote each other, so CUDA "
            "is gone: pip uninstall -y onnxruntime onnxruntime-gpu, then install one of them"
        )
    if providers == "auto":
        return [name for name in (_CUDA, _CPU) if name in available]
    wanted = [providers] if isinstance(providers, str) else list(providers)
    missing = [name for name in wanted if name not in available]
    if missing or not wanted:
        raise ProviderError(
            f"providers {wanted}: this onnxruntime offers {', '.join(available)}; for CUDA "
            "uninstall onnxruntime and pip install 'mirror-rt[gpu]'"
        )
    return wanted


def _cannot_load(model: Path, error: str, version: str) -> str:
    """Say what to do where that is known; onnxruntime's own words are long."""
    if "opset" in error.lower() or "IR version" in error:
        return (
            f"{model} needs a newer onnxruntime than {version}: pip install -U 'mirror-rt[cpu]' "
            "(or [gpu])"
        )
    if "NOT_IMPLEMENTED" in error:
        return (
            f"{model} has operators that this onnxruntime lacks (a cuda variant runs on NVIDIA "
            f"cards alone, with onnxruntime-gpu; mirror-rt info lists the others): {error}"
        )
    return f"onnxruntime cannot load {model}: {error}"


def _installed(distribution: str) -> bool:
    import importlib.metadata  # half of the time of importing mirror_rt, needed here alone

    try:
        importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


def _options(onnxruntime: Any, threads: int | None) -> Any:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads or available_cpus()
    # Shapes vary from batch to batch: a memory pattern for each would only grow the process.
    options.enable_mem_pattern = False
    options.log_severity_level = 4  # its errors are raised, and shown once, by us
    return options
