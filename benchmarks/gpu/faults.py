"""Find which kernels of the loss are wrong, and in which tiles, by comparison with float64.

    python benchmarks/gpu/faults.py [--device cpu] [--seconds 10] [--json FILE]

The problems are those of `mirror_train.loss.cuda_check`, which between them take every kernel. For
each, and for each core, two families are looked at alone: `logsumexp`, by what it finds of every
row, and `weights, accumulate`, the gradients, which get their input from float64. A tile that
differs in all dimensions points to the weights, one that differs in some of them to the sums. A
problem that takes longer than --seconds, or ends the process, is noted, and the next one gets a
process of its own. The file is written after every problem; the exit status is 1 if something is
wrong. On the CPU, its own kernel is compared, with smaller problems.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import queue
import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # for the other folders

from helpers import write_whole
from loss.cores import CORES, VARIABLE

from mirror_train.loss.cpu_kernel import CpuKernel
from mirror_train.loss.cuda_check import CASES, Case, make_inputs
from mirror_train.loss.cuda_kernel import CudaKernel
from mirror_train.loss.kernel import Inputs, Options
from mirror_train.loss.torch_kernel import TorchKernel

TILE = 128
# The unit roundoff of the rows that are multiplied, where they are not float32. On the CPU they are
# bfloat16, on a card float16; gradients are rounded to bfloat16 at most.
ROUNDOFF = {"cpu": 2**-9, "cuda": 2**-11}
GRADIENT = 2**-8
START = 3  # times as long to import torch and to reach the device


def problems(device: str) -> list[tuple[str, Case]]:
    """Return the cores to compare, the one last that is more likely to hang."""
    if device == "cpu":
        return [("cpu", case._replace(n=min(case.n, 400))) for case in CASES]
    return [(core, case) for core in CORES for case in CASES]


def tolerance(case: Case, device: str) -> float:
    """Return by what part of its norm a tile may differ: by Cauchy-Schwarz, not by measurement.

    The cosine of unit rows whose elements are off by a part u is off by at most 2 u, and exp(cosine
    / temperature) by 2 u / temperature. In float32 the sum of the products decides, of u = D 2^-24.
    """
    if case.dtype == torch.float32:
        unit = case.dim * 2**-24
        return 2 * unit / case.temperature + unit
    return 2 * ROUNDOFF[device] / case.temperature + GRADIENT


def compare(core: str, case: Case, device: str) -> dict[str, str]:
    """Return the faults, by family."""
    inputs, kernel = make_inputs(case, torch.device(device)), CpuKernel()
    if device == "cuda":
        os.environ[VARIABLE] = core
        waves = {"panel_tiles": case.panel_tiles, "logsumexp_tiles": case.logsumexp_tiles}
        kernel = CudaKernel(**waves)
    options = Options(case.temperature, case.variant, device)
    exact = Inputs(*[z if z is None else z.double() for z in inputs[:3]], inputs[3])
    _, weights, log_weights = TorchKernel().forward(exact, options)
    gradients = TorchKernel().backward(
        exact, weights, log_weights, torch.ones_like(weights[0]), options
    )
    found, most = dict[str, str](), tolerance(case, device)
    given = kernel.forward(inputs, options).log_weights.double().exp()[:, None]
    wrong = differing(given, log_weights.exp()[:, None], "rows", most)
    found |= {"logsumexp": wrong} if wrong else {}
    weights, log_weights = weights.float(), log_weights.float()
    grads = kernel.backward(inputs, weights, log_weights, torch.ones_like(weights[0]), options)
    for name, grad, expected in zip(("z1", "z2", "hard"), grads, gradients, strict=False):
        wrong = differing(grad.double(), expected, name, most)
        found |= {f"weights, accumulate: {name}": wrong} if wrong else {}
    return found


def differing(found: torch.Tensor, expected: torch.Tensor, name: str, tolerance: float) -> str:
    """Return how many tiles of a matrix differ, the first of them and by how much; else ""."""
    wrong, count = [], 0
    scale = expected.norm() / expected.numel() ** 0.5
    for row in range(0, len(expected), TILE):
        for dim in range(0, expected.shape[1], TILE):
            here, there = (z[row : row + TILE, dim : dim + TILE] for z in (found, expected))
            count += 1
            # A tile of small values is judged by those of all.
            size = max(float(there.norm()), float(scale) * there.numel() ** 0.5)
            error = float((here - there).norm()) / size
            if not error <= tolerance:  # a NaN is an error, too
                wrong.append((row // TILE, dim // TILE, error))
    if not wrong:
        return ""
    row, dim, error = wrong[0]
    return (f"{len(wrong)} of {count} tiles of {name} differ, the first is tile {row} of the rows, "
            f"{dim} of the dimensions, by {error:.1e}")  # fmt: skip


def work(device: str, start: int) -> None:
    """Compare from one problem on, and print a line for each."""
    torch.zeros(1, device=device)
    print("ready", flush=True)
    for core, case in problems(device)[start:]:
        print(json.dumps(compare(core, case, device)), flush=True)


def read_lines(stream: Iterable[str], lines: queue.Queue[str | None]) -> None:
    """Pass on the lines that a process prints, and then None."""
    for line in stream:
        lines.put(line)
    lines.put(None)


def outcomes(device: str, seconds: float) -> Iterator[dict[str, str]]:
    """Yield the faults of each problem, a process that hangs or crashes included."""
    count, done = len(problems(device)), 0
    command = [sys.executable, __file__, "--device", device, "--from"]
    while done < count:
        first, lines, limit = done, queue.Queue[str | None](), START * seconds
        with subprocess.Popen(
            [*command, str(done)], stdout=subprocess.PIPE, encoding="utf-8"
        ) as process:
            threading.Thread(target=read_lines, args=(process.stdout, lines), daemon=True).start()
            try:
                while done < count and (line := lines.get(timeout=limit)) is not None:
                    limit = seconds
                    if line.startswith("{"):
                        yield json.loads(line)
                        done += 1
            except queue.Empty:
                yield {"process": f"no end after {limit:.0f} s"}
                done += 1
            else:
                if done < count:
                    yield {"process": f"it ended with {process.wait()}"}
                    done += 1
            finally:
                process.kill()
        if limit > seconds and first == 0:
            return  # nothing runs on this device


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--from", type=int, dest="start", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.start is not None:
        work(arguments.device, arguments.start)
        return 0
    found: list[dict[str, Any]] = []
    named = problems(arguments.device)
    with contextlib.closing(outcomes(arguments.device, arguments.seconds)) as each:
        for (core, case), wrong in zip(named, each, strict=False):
            found.append({"core": core, "case": str(case), "wrong": wrong})
            told = "; ".join(f"{family}: {what}" for family, what in wrong.items())
            print(f"{core}, {case}: {told or 'right'}", flush=True)
            if arguments.json is not None:
                write_whole(arguments.json, json.dumps({"problems": found}))
    return int(len(found) < len(named) or any(one["wrong"] for one in found))


if __name__ == "__main__":
    sys.exit(main())
