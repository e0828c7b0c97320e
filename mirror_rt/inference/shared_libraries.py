"""The shared libraries of CUDA: find those that are missing, and ask the driver for its cards."""

from __future__ import annotations

import contextlib
import ctypes
import io
import os
import re
from pathlib import Path
from types import ModuleType

# Results of cuInit: success, the library that stands in for the driver in builds, and no card.
_DRIVER_STARTS = (0, 34, 100)

INSTALL_DRIVER = "install the NVIDIA driver"

_NOT_FOUND = re.compile(r"^\s*(\S+) => not found", re.MULTILINE)


def cuda_library(onnxruntime: ModuleType) -> Path | None:
    """Return the file that onnxruntime loads for its CUDA provider; None if its wheel has none."""
    path = Path(str(onnxruntime.__file__)).parent / "capi" / "libonnxruntime_providers_cuda.so"
    return path if path.is_file() else None


def preload(onnxruntime: ModuleType) -> None:
    """Load CUDA and cuDNN from the nvidia-* packages that pip may have installed.

    onnxruntime would print the libraries that it does not find; `missing_libraries` reports them.
    """
    if hasattr(onnxruntime, "preload_dlls"):
        with contextlib.redirect_stdout(io.StringIO()):
            onnxruntime.preload_dlls()


def missing_libraries(path: Path) -> list[str]:
    """Return the names of missing libraries that `path` needs, directly or through others.

    Libraries that this process has loaded already (`preload`) are not missing, wherever they are.
    """
    import shutil  # takes 10 ms together with subprocess, and is needed for NVIDIA cards only
    import subprocess

    if shutil.which("ldd") is None:
        return _missing_first(path)
    done = subprocess.run(["ldd", str(path)], capture_output=True, encoding="utf-8", check=False)
    names = dict.fromkeys(_NOT_FOUND.findall(done.stdout))
    return [name for name in names if not _loads(name)]


def remedy(missing: list[str], onnxruntime: ModuleType) -> str:
    """Return how to install the libraries `missing`: a command, or advice if there is none."""
    if all(name.startswith("libcuda.so") for name in missing):
        return INSTALL_DRIVER
    return f"pip install 'onnxruntime-gpu[cuda,cudnn]=={onnxruntime.__version__}'"


def card_files() -> list[Path]:
    """Return the device files of NVIDIA cards.

    They are found without starting the driver, after which CUDA would not survive a fork.
    """
    return sorted(Path("/dev").glob("nvidia[0-9]*"))


def nvidia_cards() -> int:
    """Return the number of NVIDIA cards that the driver offers to this process."""
    count = ctypes.c_int(0)
    driver, code = _start_driver()
    if driver is None or code != 0 or driver.cuDeviceGetCount(ctypes.byref(count)) != 0:
        return 0
    return count.value


def driver_fault() -> str | None:
    """Return why the NVIDIA driver offers no card although one is there; None if all is well.

    The driver does not start after an update without a restart, for example. Where it starts, or is
    not installed, a device file still shows that there is a card. A machine without a card is well,
    as is one whose cards CUDA_VISIBLE_DEVICES hides.
    """
    driver, code = _start_driver()
    if driver is not None and code not in _DRIVER_STARTS:
        text = ctypes.c_char_p()
        driver.cuGetErrorString(code, ctypes.byref(text))
        why = (text.value or b"unknown error").decode(errors="replace")
        return f"the NVIDIA driver does not start ({why}, error {code}): nvidia-smi says more"
    hidden = "CUDA_VISIBLE_DEVICES" in os.environ
    if hidden or nvidia_cards() > 0 or not (files := card_files()):
        return None
    lacks = "is not installed" if driver is None else "offers no card"
    return f"there is {files[0]}, and the NVIDIA driver {lacks}: nvidia-smi says more"


def free_memory(device: int) -> int | None:
    """Return the free memory of a card in bytes; None where the driver does not tell.

    This starts CUDA on the card and leaves it started, as onnxruntime does: the session that asks
    for the memory goes on in the same context.
    """
    driver, code = _start_driver()
    if driver is None or code != 0:
        return None
    number, context = ctypes.c_int(), ctypes.c_void_p()
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    if (
        driver.cuDeviceGet(ctypes.byref(number), device) != 0
        or driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), number) != 0
        or driver.cuCtxPushCurrent_v2(context) != 0
    ):
        return None
    told = driver.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total)) == 0
    driver.cuCtxPopCurrent_v2(ctypes.byref(context))
    return free.value if told else None


def _start_driver() -> tuple[ctypes.CDLL | None, int]:
    """Return the driver and the result of starting it; None where no driver is installed."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
        return driver, driver.cuInit(0)
    except (OSError, AttributeError):
        return None, 0


def _loads(name: str) -> bool:
    try:
        ctypes.CDLL(name)
    except OSError:
        return False
    return True


def _missing_first(path: Path) -> list[str]:
    """Return the missing library that the loader names first, for systems without ldd."""
    try:
        ctypes.CDLL(str(path))
    except OSError as error:
        name, _, rest = str(error).partition(":")
        return [name] if "cannot open shared object file" in rest and name != str(path) else []
    return []
