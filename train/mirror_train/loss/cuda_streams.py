"""Find the stream and the device on which the CUDA extension queues its work."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from mirror_train.loss.cuda_cores import settle_core

try:  # what torch.compile's code calls: it makes no object of the stream
    from torch._C import _cuda_getCurrentRawStream as raw_stream
except ImportError:  # in builds without CUDA

    def raw_stream(device: int) -> int:
        """Return the handle of torch's current stream on a device."""
        return torch.cuda.current_stream(device).cuda_stream


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
        yield raw_stream(index)


def call_on_device(module: Any, index: int, function: Any, *arguments: Any) -> None:
    """Call function(index, *arguments, stream), with torch's device changed if it differs.

    `index` is what `Tensor.get_device` returns: -1 for the CPU, whose device and stream are 0. The
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
