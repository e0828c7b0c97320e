"""Compare time and memory of the loss with unfused PyTorch and with common libraries.

    python benchmarks/loss/compare.py [--device cpu|cuda] [--out DIR]

For each size all contenders take turns on the same embeddings, and with them, unless --no-products
is given, a rows x rows x dim matrix product in the same dtype; medians are printed, also as
multiples of that product. On a GPU
a product in float16 is timed beside one in bfloat16: our kernels multiply float16, which draws more
power, and so lowers the clock. Memory is
the peak of one pass, on the CPU in a process of its own. A contender that is not installed, gives
another loss or gradient, or would need more than --max-seconds or the available memory is left out,
and the table says why. With --json, the results so far are written there after every turn; with
--out, infonce-DATE-MACHINE .json, .md and .png are written at the end.
"""

from __future__ import annotations

import argparse
import datetime
import gc
import json
import platform
import re
import statistics
import subprocess
import sys
import time
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # for the other folders

from loss.contenders import (
    CONTENDERS,
    core_of,
    disagreement,
    make_views,
    peak_bytes_on_card,
    why_not,
)
from loss.report import write_json, write_report

ROWS = (400, 2_000, 8_192, 32_768, 65_536, 262_144)
DIMS = (384, 768, 1_024)


def available_bytes(device):
    if device == "cuda":
        torch.cuda.empty_cache()  # memory that torch has cached is free, too
        return torch.cuda.mem_get_info()[0]
    text = Path("/proc/meminfo").read_text(encoding="utf-8")
    return 1024 * int(re.search(r"MemAvailable:\s+(\d+)", text)[1])


def timed(device, function):
    """Return (result, seconds) of a call, including its work on the device."""
    if device == "cpu":
        began = time.perf_counter()
        result = function()
        return result, time.perf_counter() - began
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    result = function()
    end.record()
    end.synchronize()
    return result, start.elapsed_time(end) / 1e3


def one_pass(device, name, views):
    """Return the seconds of (forward, backward)."""
    with core_of(name):
        loss, forward = timed(device, lambda: CONTENDERS[name](*views))
        _, backward = timed(device, loss.backward)
    for view in views:
        view.grad = None
    return forward, backward


def product(unit):
    """Return a function for one rows x rows x dim matrix product, in parts for many rows."""
    rows = len(unit)
    part = min(rows, max(1_024, (1 << 30) // rows))
    out = torch.empty(part, rows, dtype=unit.dtype, device=unit.device)

    def run():
        for start in range(0, rows, part):
            left = unit[start : start + part]
            torch.mm(left, unit.T, out=out[: len(left)])

    return run


class Cell:
    """One size: the contenders that run, and their times."""

    def __init__(self, arguments, rows, dim, slowest):
        self.a, self.rows, self.dim, self.slowest = arguments, rows, dim, slowest
        self.views = make_views(arguments.device, getattr(torch, arguments.dtype), rows, dim)
        self.left_out, self.times, self.peaks, self.products = {}, {}, {}, {}

    def _obstacle(self, name):
        """Return why a contender may not run; earlier sizes predict its time."""
        reason = why_not(
            name, self.a.device, self.a.dtype, self.rows, available_bytes(self.a.device)
        )
        rows, seconds = self.slowest.get(name, (self.rows, 0))
        expected = seconds * (self.rows / rows) ** (3 if "metric" in name else 2)
        if reason is None and expected > self.a.max_seconds:
            reason = f"about {expected:.0f} s a pass"
        return reason or disagreement(name, self.a.device, self.a.dtype, self.dim)

    def measure(self):
        """Yield the results so far, as medians, after each contender's turn."""
        multiply = {} if self.a.no_products else self._multiply()
        began = time.perf_counter()
        for name in self.a.only or CONTENDERS:  # each has a turn before the next one may fail
            self.left_out |= {name: reason} if (reason := self._obstacle(name)) else {}
            if not reason and self._take_turn(name) and self._take_turn(name):
                del self.times[name][0]  # a warm-up
                self._take_products(multiply)
            yield self._result()
        for _ in range(self.a.repeats - 1):
            if not self.times or time.perf_counter() - began > self.a.cell_seconds:
                break
            self._take_products(multiply)
            for name in list(self.times):
                self._take_turn(name)
            yield self._result()
        for name in self.times:
            self.peaks[name] = self._peak(name)
            yield self._result()

    def _multiply(self):
        """Return dtype -> a function that computes one product."""
        unit = torch.nn.functional.normalize(torch.cat(self.views).detach(), dim=1)
        multiply = {self.a.dtype: product(unit)}
        if self.a.device == "cuda":
            multiply["float16"] = product(unit.half())
        for dtype, run in multiply.items():
            timed(self.a.device, run)  # a warm-up
            self.products[dtype] = []
        return multiply

    def _take_products(self, multiply):
        for dtype, run in multiply.items():
            self.products[dtype].append(timed(self.a.device, run)[1])

    def _take_turn(self, name):
        """Return whether a contender's pass was timed; else it is left out from now on."""
        gc.collect()
        try:
            self.times.setdefault(name, []).append(one_pass(self.a.device, name, self.views))
        except RuntimeError as error:  # it alone fails: out of memory, a failed launch
            self.left_out[name] = first_line(error)
            del self.times[name]
        return name in self.times

    def _result(self):
        medians = {d: statistics.median(each) for d, each in self.products.items() if each}
        one = medians.get(self.a.dtype)
        return {
            "rows": self.rows,
            "dim": self.dim,
            "repeats": max(map(len, self.times.values()), default=0),
            "product_ms": 1e3 * one if one else None,
            "product_ms_by_dtype": {dtype: 1e3 * each for dtype, each in medians.items()},
            "left_out": self.left_out,
            "contenders": {name: self._summary(name, t, one) for name, t in self.times.items()},
        }

    def _summary(self, name, times, product):
        forward, backward = (statistics.median(values) for values in zip(*times, strict=True))
        total = statistics.median(sum(pair) for pair in times)
        return {
            "forward_ms": 1e3 * forward,
            "backward_ms": 1e3 * backward,
            "total_ms": 1e3 * total,
            "forward_products": forward / product if product else None,
            "total_products": total / product if product else None,
            "peak_mb": self.peaks.get(name),
        }

    def _peak(self, name):
        if self.a.device == "cuda":  # torch's allocator counts only tensors
            with core_of(name):
                peak = peak_bytes_on_card(CONTENDERS[name], self.views) / 1e6
            for view in self.views:
                view.grad = None
            return peak
        script = Path(__file__).with_name("contenders.py")
        size = ["--rows", str(self.rows), "--dim", str(self.dim)]
        where = ["--device", self.a.device, "--dtype", self.a.dtype]
        done = subprocess.run(
            [sys.executable, str(script), name, *size, *where],
            capture_output=True,
            encoding="utf-8",
        )
        return float(done.stdout) if done.returncode == 0 else None


def first_line(error):
    return (str(error).splitlines() or [type(error).__name__])[0][:200]


HEADER = (
    f"{'rows':>7} {'dim':>5} {'':<27}{'forward ms':>12}{'total ms':>12}{'products':>10}{'MB':>9}"
)


def show(result):
    for dtype, one in result["product_ms_by_dtype"].items():
        name = f"one product, {dtype}"
        print(f"{result['rows']:>7} {result['dim']:>5} {name:<27}{'':>12}{one:>12.2f}")
    for name, c in result["contenders"].items():
        peak = "?" if c["peak_mb"] is None else f"{c['peak_mb']:.0f}"
        products = "?" if c["total_products"] is None else f"{c['total_products']:.2f}"
        print(f"{'':>13} {name:<27}{c['forward_ms']:>12.2f}{c['total_ms']:>12.2f}"
              f"{products:>10}{peak:>9}")  # fmt: skip
    for name, reason in result["left_out"].items():
        print(f"{'':>13} {name:<27} left out: {reason}")
    sys.stdout.flush()


def machine(device, dtype):
    about = {"torch": torch.__version__, "threads": torch.get_num_threads()}
    if device == "cuda":
        return about | {"name": torch.cuda.get_device_name(), "cuda": torch.version.cuda}
    from mirror_rt import _core

    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    names = [line.split(":")[1].strip() for line in lines if line.startswith("model name")]
    pairs = _core.best_instruction_set(True) if dtype != "float32" else None
    return about | {
        "name": f"{len(names)} x {names[0]}" if names else platform.processor(),
        "instruction_set": pairs or _core.best_instruction_set(False),
    }


def arguments_of_command():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--dtype", help="default: float32 on cpu, bfloat16 on cuda")
    parser.add_argument("--rows", type=int, nargs="+", default=ROWS)
    parser.add_argument("--dims", type=int, nargs="+", default=DIMS)
    parser.add_argument("--repeats", type=int, default=30)
    parser.add_argument("--cell-seconds", type=float, default=30, help="time for a size, at least")
    parser.add_argument("--max-seconds", type=float, default=60, help="most for one pass")
    parser.add_argument("--no-products", action="store_true", help="time no matrix products")
    parser.add_argument("--only", nargs="+", choices=CONTENDERS, metavar="CONTENDER")
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--out", type=Path, metavar="DIR")
    arguments = parser.parse_args()
    arguments.dtype = arguments.dtype or ("float32" if arguments.device == "cpu" else "bfloat16")
    return arguments


def main():
    arguments = arguments_of_command()
    about = machine(arguments.device, arguments.dtype) | {
        "dtype": arguments.dtype,
        "command": " ".join(sys.argv),
    }
    about["date"] = datetime.datetime.now(datetime.UTC).date().isoformat()
    print(json.dumps(about))
    print(HEADER)
    results = []
    for dim in arguments.dims:
        slowest = {}  # (rows, seconds) of the last size each contender ran
        for rows in arguments.rows:
            results.append(None)
            for result in Cell(arguments, rows, dim, slowest).measure():
                results[-1] = result
                if arguments.json is not None:
                    write_json(arguments.json, about, results)
            slowest |= {
                name: (rows, c["total_ms"] / 1e3) for name, c in result["contenders"].items()
            }
            show(result)
    if arguments.out is not None:
        write_report(arguments.out, about, results)


if __name__ == "__main__":
    main()
