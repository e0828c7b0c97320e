"""The shared libraries behind an execution provider: which are missing, and is there a card."""

from __future__ import annotations

import contextlib
import ctypes
import io
import re
from pathlib import Path
from types import ModuleType

__all__ = ["missing_libraries", "nvidia_cards", "preload", "provider_library"]

_NOT_FOUND = re.compile(r"^\s*(\S+) => not found", re.MULTILINE)
_FILES = {"CUDAExecutionProvider": "cuda", "TensorrtExecutionProvider": "tensorrt"}


def provider_library(onnxruntime: ModuleType, provider: str) -> Path | None:
    """The file that onnxruntime loads for a provider; None where its wheel has none."""
    name = f"libonnxruntime_providers_{_FILES.get(provider, '')}.so"
    path = Path(str(onnxruntime.__file__)).parent / "capi" / name
    return path if path.is_file() else None


def preload(onnxruntime: ModuleType) -> None:
    """Load CUDA and cuDNN from the nvidia-* packages, where pip has put them.

    onnxruntime prints what it does not find; `missing_libraries` says it better.
    """
    if hasattr(onnxruntime, "preload_dlls"):
        with contextlib.redirect_stdout(io.StringIO()):
            onnxruntime.preload_dlls()


def missing_libraries(path: Path) -> list[str]:
    """Names of the libraries that `path` needs, itself or through others, and that are not there.

    Those that this process has loaded already (`preload`) count as there, wherever they are.
    """
    import shutil  # with subprocess 10 ms, needed where there is a provider of NVIDIA's
    import subprocess

    if shutil.which("ldd") is None:
        return _missing_first(path)
    done = subprocess.run(["ldd", str(path)], capture_output=True, text=True, check=False)
    names = dict.fromkeys(_NOT_FOUND.findall(done.stdout))
    return [name for name in names if not _loads(name)]


def nvidia_cards() -> int:
    """Number of NVIDIA cards that the driver offers to this process."""
    count = ctypes.c_int(0)
    try:
        driver = ctypes.CDLL("libcuda.so.1")
        if driver.cuInit(0) != 0 or driver.cuDeviceGetCount(ctypes.byref(count)) != 0:
            return 0
    except (OSError, AttributeError):
        return 0
    return count.value


def _loads(name: str) -> bool:
    try:
        ctypes.CDLL(name)
    except OSError:
        return False
    return True


def _missing_first(path: Path) -> list[str]:
    """Without ldd: the one that the loader names."""
    try:
        ctypes.CDLL(str(path))
    except OSError as error:
        name, _, rest = str(error).partition(":")
        return [name] if "cannot open shared object file" in rest and name != str(path) else []
    return []
