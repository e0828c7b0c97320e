"""Measure where the loss on an NVIDIA GPU spends its time: on the host, and in which kernels.

    python benchmarks/gpu/loss_profile.py [--core tma] [--rows 65536] [--dims 768 384]
                                          [--panels 66 88 132] [--json FILE]

For each of --dims and each side of a panel of weights, in tiles, it prints the milliseconds of
every kernel of this project, as torch.profiler measures them. Then, for 400 rows, it prints the
microseconds that the host takes to queue a forward pass, and a forward and backward pass, and how
many kernels they launch.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from pathlib import Path
from unittest import mock

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # for the other folders

from helpers import write_whole
from loss.contenders import CONTENDERS, make_views
from loss.cores import CORES, VARIABLE

from mirror_train.loss import autograd
from mirror_train.loss.cuda_kernel import CudaKernel

SMALL_ROWS = 400
CALLS = 200


def host_microseconds(contender, views, *, backward):
    """Return the median time to queue one pass; the device is idle before each."""
    times = []
    for _ in range(CALLS):
        torch.cuda.synchronize()
        began = time.perf_counter()
        loss = contender(*views)
        if backward:
            loss.backward()
        times.append(1e6 * (time.perf_counter() - began))
    return statistics.median(times)


def kernels(contender, views):
    """Return name -> (launches, milliseconds) of our kernels in one forward and backward pass."""
    contender(*views).backward()
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        contender(*views).backward()
        torch.cuda.synchronize()
    return {
        event.key: (event.count, event.device_time_total / 1e3)
        for event in profile.key_averages()
        if "mirror_train" in event.key
    }


def profile_small(contender, dim):
    views = make_views("cuda", torch.bfloat16, SMALL_ROWS, dim)
    return {
        "launches": sum(count for count, _ in kernels(contender, views).values()),
        "forward_host_us": host_microseconds(contender, views, backward=False),
        "total_host_us": host_microseconds(contender, views, backward=True),
    }


def profile_panels(contender, rows, dim, side):
    """Return the milliseconds of each kernel with panels of side x side tiles."""
    kernel = CudaKernel(panel_tiles=side * side)
    with mock.patch.object(autograd, "kernel_named", return_value=kernel):
        found = kernels(contender, make_views("cuda", torch.bfloat16, rows, dim))
    return {name: ms for name, (_, ms) in found.items()}


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--core", choices=CORES, default=CORES[-1])
    parser.add_argument("--rows", type=int, default=65_536)
    parser.add_argument("--dims", type=int, nargs="+", default=(768, 384))
    parser.add_argument("--panels", type=int, nargs="+", default=(66, 88))
    parser.add_argument("--json", type=Path, metavar="FILE")
    arguments = parser.parse_args()
    contender, found = CONTENDERS[f"mirror_rt, core {arguments.core}"], {"kernels_ms": {}}
    os.environ[VARIABLE] = arguments.core

    def keep(**more):
        found.update(more)
        print(json.dumps(more, indent=1), flush=True)
        if arguments.json is not None:
            write_whole(arguments.json, json.dumps(found))

    for dim in arguments.dims:
        for side in arguments.panels:
            ms = profile_panels(contender, arguments.rows, dim, side)
            keep(kernels_ms=found["kernels_ms"] | {f"{dim} dimensions, panels of {side}": ms})
    keep(**profile_small(contender, arguments.dims[0]))


if __name__ == "__main__":
    main()
