"""Find the stream and the device on which the CUDA extension queues its work."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from mirror_train.loss.cuda_cores import settle_core


@contextmanager
def current_stream(module: Any, device: torch.device) -> Iterator[int]:
    """Make the device current for torch and the extension; yield its current stream's handle."""
    if device.type != "cuda":
        yield 0
        return
    with torch.cuda.device(device):
        index = torch.cuda.current_device()
        settle_core(module, index)
        module.set_device(index)
        yield torch.cuda.current_stream().cuda_stream


def call_on_device(module: Any, device: torch.device, function: Any, *arguments: Any) -> None:
    """Call function(device index, *arguments, stream), with torch's device changed if it differs.

    The function makes the device current for the extension. Changing torch's device and back takes
    longer than all else here, and is hardly ever needed.
    """
    if device.type != "cuda":
        function(0, *arguments, 0)
    elif device.index == torch.cuda.current_device():
        settle_core(module, device.index)
        function(device.index, *arguments, torch.cuda.current_stream().cuda_stream)
    else:
        with torch.cuda.device(device):
            call_on_device(module, device, function, *arguments)
