"""Choose the core of the CUDA kernels: how they multiply on a device.

The mma core runs on every card. The wgmma core is faster on compute capability 9.0; it becomes the
default on a device after it has agreed there with the mma core, by
`mirror_train.loss.cuda_check`. The environment variable MIRROR_RT_CUDA_CORE names one, and then
nothing is checked.
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
_SECONDS = 120.0

_log = logging.getLogger("mirror_train")
_lock = threading.Lock()
_settled: set[int] = set()


def settle_core(module: Any, device: int) -> None:
    """Make wgmma the default core of a device if it works there; checked once in a process.

    While a CUDA graph is captured nothing can be checked: then the mma core serves the call.
    """
    if device in _settled or VARIABLE in os.environ:
        return
    if torch.cuda.is_current_stream_capturing():
        return
    with _lock:
        if device in _settled:
            return
        module.set_device(device)
        if not module.wgmma_obstacle():
            _check(module, device)
        _settled.add(device)


def _check(module: Any, device: int) -> None:
    failure = _failure(device)
    if failure is None:
        module.trust_wgmma(device)
        return
    _log.warning(
        "InfoNCE on cuda:%d keeps to its mma core, as the check of the faster wgmma core failed: %s"
        " (%s=mma skips the check)",
        device,
        failure,
        VARIABLE,
    )


def _failure(device: int) -> str | None:
    """Return what went wrong in the check; None if the cores agree.

    It runs in a process of its own: a kernel that hangs, or reads where it may not, would take the
    CUDA context of this process with it.
    """
    command = [sys.executable, "-P", "-m", "mirror_train.loss.cuda_check", str(device)]
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
