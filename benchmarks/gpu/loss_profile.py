"""Measure where the loss on an NVIDIA GPU spends its time: on the host, and in which kernels.

    python benchmarks/gpu/loss_profile.py [--rows 65536] [--dim 768] [--json FILE]

For 400 rows it prints the microseconds that the host takes to queue a forward pass, and a forward
and backward pass, and how many kernels they launch. Then, for --rows and one core at a time, it
prints the milliseconds of every kernel of this project, as torch.profiler measures them.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # for the other folders

from loss.contenders import CONTENDERS, core_of, make_views
from loss.cores import CORES

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


def profile_core(core, rows, dim):
    name = f"mirror_rt, core {core}"
    contender = CONTENDERS[name]
    with core_of(name):
        views = make_views("cuda", torch.bfloat16, SMALL_ROWS, dim)
        small = kernels(contender, views)
        found = {
            "launches": sum(count for count, _ in small.values()),
            "forward_host_us": host_microseconds(contender, views, backward=False),
            "total_host_us": host_microseconds(contender, views, backward=True),
        }
        large = kernels(contender, make_views("cuda", torch.bfloat16, rows, dim))
    return found | {"kernels_ms": {key: ms for key, (_, ms) in large.items()}}


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=65_536)
    parser.add_argument("--dim", type=int, default=768)
    parser.add_argument("--json", type=Path, metavar="FILE")
    arguments = parser.parse_args()
    found = {}
    for core in CORES:
        try:
            found[core] = profile_core(core, arguments.rows, arguments.dim)
        except RuntimeError as error:  # a core that this GPU does not have
            found[core] = {"left_out": (str(error).splitlines() or [""])[0][:200]}
        print(core, json.dumps(found[core], indent=1), flush=True)
        if arguments.json is not None:
            arguments.json.write_text(json.dumps(found))
    if all("left_out" in of_core for of_core in found.values()):
        raise SystemExit("no core could be measured")


if __name__ == "__main__":
    main()
