"""Measure the host's time for a pass of the CUDA kernels, without a GPU.

    python benchmarks/loss/host.py [--rows 400] [--dim 768] [--seconds 5]

The extension is replaced by functions that do nothing, and tensors are on the CPU: what is measured
is Python, autograd, allocations and calls, but neither launches nor the look-ups of device and
stream. Passes, and a function of autograd that does nothing, alternate; the medians are printed in
microseconds.
"""

from __future__ import annotations

import argparse
import statistics
import time
from types import SimpleNamespace
from unittest import mock

import torch

from mirror_train import infonce
from mirror_train.loss import autograd
from mirror_train.loss.cuda_kernel import CudaKernel

_TEMPERATURE = 0.04


def nothing(*arguments, **options):
    return None


class Batch:
    """Takes the arguments of the extension's batch, and has the size of its workspaces."""

    forward_bytes = backward_bytes = 1 << 20
    forward = backward = staticmethod(nothing)

    def __init__(self, n, *arguments):
        self.losses = 2 * n


class Nothing(torch.autograd.Function):
    """What torch alone takes: a loss, and gradients that nobody else holds, which it may keep."""

    @staticmethod
    def forward(ctx, z1, z2):
        ctx.save_for_backward(z1, z2)
        return torch.empty(())

    @staticmethod
    def backward(ctx, grad_output):
        return tuple(torch.empty_like(z) for z in ctx.saved_tensors)


def microseconds(kernel, views, seconds):
    """Yield (forward, forward and backward) of one call after another for some seconds.

    Without a kernel, those of torch alone.
    """

    def chosen(name):
        return kernel

    end = time.perf_counter() + seconds
    with mock.patch.object(autograd, "kernel_named", chosen):
        while time.perf_counter() < end:
            for view in views:
                view.grad = None  # else the gradients are added up
            began = time.perf_counter()
            if kernel is None:
                loss = Nothing.apply(*views)
            else:
                loss = infonce(*views, temperature=_TEMPERATURE, impl="torch")
            forward = time.perf_counter()
            loss.backward()
            yield 1e6 * (forward - began), 1e6 * (time.perf_counter() - began)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=400)
    parser.add_argument("--dim", type=int, default=768)
    parser.add_argument("--seconds", type=float, default=5)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    shape = (2, arguments.rows // 2, arguments.dim)
    views = [z.clone().requires_grad_() for z in torch.randn(shape, dtype=torch.bfloat16)]
    stub = SimpleNamespace(Batch=Batch, Dtype=SimpleNamespace(bfloat16=2))
    kernels = {"passes": CudaKernel(stub), "torch alone": None}
    times = {name: [] for name in kernels}
    rounds = 10
    for _ in range(rounds):
        for name, kernel in kernels.items():
            times[name] += microseconds(kernel, views, arguments.seconds / rounds / len(kernels))
    for name, pairs in times.items():
        forward, total = (statistics.median(column) for column in zip(*pairs, strict=True))
        print(f"{name}: forward {forward:.0f}, forward and backward {total:.0f}")


if __name__ == "__main__":
    main()
