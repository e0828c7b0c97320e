"""Tell whether a CUDA device runs the extension, by which core, and on which stream.

The kernels multiply by one of two cores. mma runs on every card. tma, on compute capability 9.0,
is faster; it becomes the default on a device where it agrees with mma, which
`mirror_train.loss.cuda_check` finds out in a process of its own: a kernel that hangs, or reads
where it may not, would take the CUDA context of this process with it. The verdict is kept on disk
for the same card, driver and extension. The environment variable MIRROR_RT_CUDA_CORE names a core,
and then nothing is checked.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import json
import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from mirror_rt.io.atomic import sha256, write_json
from mirror_rt.system import KILLED
from mirror_train.loss.cpu_kernel import DTYPES

VARIABLE = "MIRROR_RT_CUDA_CORE"
_EXTENSION = "mirror_train._cuda"
_OLDEST = (7, 5)  # the first compute capability with the matrix loads that the kernels use
_SECONDS = 120.0  # for a check
_AGAIN_SECONDS = 600.0  # to the next check where one gave no verdict

_log = logging.getLogger("mirror_train")
_lock = threading.Lock()
_settled: set[int] = set()
_not_before: dict[int, float] = {}

try:  # the function that torch.compile's code calls: it makes no object of the stream
    from torch._C import _cuda_getCurrentRawStream as raw_stream
except ImportError:  # in builds without CUDA

    def raw_stream(device: int) -> int:
        """Return the handle of torch's current stream on a device."""
        return torch.cuda.current_stream(device).cuda_stream


def _load() -> ModuleType | ImportError | None:
    if importlib.util.find_spec(_EXTENSION) is None:
        return None
    try:
        return importlib.import_module(_EXTENSION)
    except ImportError as error:
        return error


_extension = _load()


def extension() -> ModuleType | None:
    """Return the extension, None where it was not built; an ImportError says that it is broken."""
    if isinstance(_extension, ImportError):
        raise ImportError(str(_extension)) from _extension
    return _extension


def unavailable_reason(device: torch.device, dtype: torch.dtype) -> str | None:
    """Return why `CudaKernel` cannot take embeddings of this kind; None if it can."""
    if extension() is None:
        return "mirror_rt was built without CUDA (build with -DMIRROR_RT_CUDA=ON)"
    if device.type != "cuda":
        return f"the embeddings are on {device}, not on a CUDA device"
    if torch.version.cuda is None:
        return "this torch is not built for NVIDIA GPUs"
    capability = _capability(device)
    if capability < _OLDEST:
        have, need = (".".join(map(str, version)) for version in (capability, _OLDEST))
        return f"{device} has compute capability {have}, and {need} is the least"
    if dtype not in DTYPES:
        return f"the embeddings are {dtype}, not float32, float16 or bfloat16"
    return None


@cache
def _capability(device: torch.device) -> tuple[int, int]:
    return torch.cuda.get_device_capability(device)


def call_on_device(module: Any, index: int, function: Callable[..., None], *arguments: Any) -> None:
    """Call function(index, *arguments, stream), with torch's device changed if it differs.

    `index` is the result of `Tensor.get_device`: -1 for the CPU, whose device and stream are 0. The
    function makes the device current for the extension. Changing torch's device and back takes
    longer than all else here, and is hardly ever needed.
    """
    if index < 0:
        function(0, *arguments, 0)
    elif index == torch.cuda.current_device():
        settle_core(module, index)
        function(index, *arguments, raw_stream(index))
    else:
        with torch.cuda.device(index):
            call_on_device(module, index, function, *arguments)


def prepare(device: torch.device) -> None:
    """Choose the core for a device; call it before anything has taken the device's memory."""
    if device.type == "cuda" and unavailable_reason(device, torch.float32) is None:
        index = torch.cuda.current_device() if device.index is None else device.index
        settle_core(extension(), index)


def settle_core(module: Any, device: int) -> None:
    """Make tma the default core of a device if it works there; checked once in a process.

    While a CUDA graph is captured nothing can be checked: then mma serves the call. So it does
    where a check gave no verdict, until the next one some minutes later.
    """
    if device in _settled or os.environ.get(VARIABLE):
        return
    if time.monotonic() < _not_before.get(device, 0.0) or torch.cuda.is_current_stream_capturing():
        return
    with _lock:
        if device in _settled:
            return
        try:
            failure = None if module.tma_obstacle(device) else _verdict(module, device)
        except _NoVerdictError as error:
            _not_before[device] = time.monotonic() + _AGAIN_SECONDS
            _log.warning("InfoNCE on cuda:%d cannot check its fast core tma yet: %s", device, error)
            return
        _settled.add(device)
        if failure is not None:
            _log.warning(
                "InfoNCE on cuda:%d does not use its fast core tma, as the check failed: %s "
                "(%s=mma skips the check)", device, failure, VARIABLE,
            )  # fmt: skip
        elif not module.tma_obstacle(device):
            module.trust_tma(device)


class _NoVerdictError(Exception):
    """A check could not be made: it found no memory, or its process did not start."""


def _verdict(module: Any, device: int) -> str | None:
    """Return the failure of the check of tma, now or earlier; None if it agrees with mma."""
    from mirror_rt.bundle.hub import cache_folder

    path = cache_folder() / "cuda-core" / f"{_identity(module, device)}.json"
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        kept: str | None = json.loads(path.read_text(encoding="utf-8"))["failure"]
        return kept
    try:
        failure = _check(device)
    except subprocess.TimeoutExpired:  # not kept: the machine may have been busy
        return f"no result after {_SECONDS:.0f} seconds"
    with contextlib.suppress(OSError):  # a folder that cannot be written costs a check
        path.parent.mkdir(parents=True, exist_ok=True)
        write_json(path, {"failure": failure})
    return failure


def _identity(module: Any, device: int) -> str:
    """Return a name of the card, its driver and the extension: where one changes, check again."""
    driver = "unknown"
    with contextlib.suppress(OSError):
        driver = Path("/proc/driver/nvidia/version").read_text(encoding="utf-8")
    card = torch.cuda.get_device_properties(device).uuid
    text = f"{card} {driver} {torch.version.cuda} {sha256(Path(module.__file__))}"
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def _check(device: int) -> str | None:
    """Ask another process whether tma agrees with mma; return its answer."""
    command = [sys.executable, "-P", "-m", "mirror_train.loss.cuda_check", str(device)]
    try:
        done = subprocess.run(
            command, capture_output=True, encoding="utf-8", timeout=_SECONDS, check=False
        )
    except OSError as error:
        raise _NoVerdictError(str(error)) from error
    with contextlib.suppress(IndexError, ValueError, KeyError, TypeError):
        failure: str | None = json.loads(done.stdout.splitlines()[-1])["failure"]
        return failure
    if done.returncode < 0 and done.returncode != KILLED:  # that may be for memory
        return f"the check was ended by signal {-done.returncode}"
    lines = done.stderr.strip().splitlines() or [f"exit status {done.returncode}"]
    raise _NoVerdictError(lines[-1])
