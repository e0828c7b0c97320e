"""Choose the core of the CUDA kernels: how they multiply on a device.

The mma core runs on every card. On compute capability 9.0 the cores tma and wgmma are faster; the
first of them that agrees there with the mma core, by `mirror_train.loss.cuda_check`, becomes the
default on the device. The environment variable MIRROR_RT_CUDA_CORE names one, and then nothing is
checked.
"""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import threading
from typing import Any

import torch

VARIABLE = "MIRROR_RT_CUDA_CORE"
_FASTER_CORES = ("tma", "wgmma")  # the fastest first
_SECONDS = 120.0

_log = logging.getLogger("mirror_train")
_lock = threading.Lock()
_settled: set[int] = set()


def settle_core(module: Any, device: int) -> None:
    """Make the fastest core that works on a device its default; checked once in a process.

    While a CUDA graph is captured nothing can be checked: then the mma core serves the call.
    """
    if device in _settled or os.environ.get(VARIABLE):
        return
    if torch.cuda.is_current_stream_capturing():
        return
    with _lock:
        if device in _settled:
            return
        module.set_device(device)
        if not module.sm90_obstacle():
            _check(module, device)
        _settled.add(device)


def _check(module: Any, device: int) -> None:
    for core in _FASTER_CORES:
        failure = _failure(device, core)
        if failure is None:
            module.trust_core(device, core)
            return
        _log.warning(
            "InfoNCE on cuda:%d does not use its fast %s core, as the check failed: %s (%s=mma "
            "skips the check)",
            device,
            core,
            failure,
            VARIABLE,
        )


def _failure(device: int, core: str) -> str | None:
    """Return what went wrong in the check of a core; None if it agrees with the mma core.

    It runs in a process of its own: a kernel that hangs, or reads where it may not, would take the
    CUDA context of this process with it.
    """
    command = [sys.executable, "-P", "-m", "mirror_train.loss.cuda_check", str(device), core]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        return f"no result after {_SECONDS:.0f} seconds"
    except OSError as error:
        return str(error)
    if done.returncode == 0:
        return None
    lines = done.stderr.strip().splitlines() or [f"exit status {done.returncode}"]
    return lines[-1]
