"""Check the server under load for a long time: memory must stay flat, and nothing may fail.

    python benchmarks/serve/soak.py BUNDLE --texts FILE [--minutes 20] [--load 0.7]

`mirror-rt serve BUNDLE` runs in a process of its own; FILE holds one text per line (the first 512
are used). First the rate at saturation is measured, with 64 connections of one text each. Then
requests come at --load times this rate, regardless of the answers to earlier ones, and every minute
on new connections. The resident memory is sampled twice a second. After a third of the time, the
warm-up, a line is fitted through the samples by least squares, and the growth along it must stay
below --limit megabytes. The results are written to benchmarks/results/serve-soak-DATE-MACHINE
.json, .md and, with matplotlib, .png. The
exit status is 1 if memory grows or a request is not answered.
"""

from __future__ import annotations

import argparse
import asyncio
import math
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # for the other folders

from encode.soak import WARM_UP, growth_mb
from serve.ratios import Load, Server, closed_loop, open_loop
from serve.report import Goal, add_output_options, goals, write_report

PERIOD = 0.5


class Sampler(threading.Thread):
    """Samples the memory of a server until `stop` is set."""

    def __init__(self, server: Server) -> None:
        super().__init__(daemon=True)
        self.stop = threading.Event()
        self.samples: list[tuple[float, float]] = []
        self._server = server

    def run(self) -> None:
        began = time.monotonic()
        while not self.stop.wait(PERIOD):
            self.samples.append((time.monotonic() - began, self._server.memory()))


def soak(server: Server, texts: list[str], rate: float, minutes: float) -> list[Load]:
    """Send requests, and return what the clients of each minute observed."""
    loads = []
    seconds = minutes * 60
    slices = max(4, math.ceil(minutes))
    for i in range(slices):
        load = asyncio.run(open_loop(server.port, texts, rate, seconds / slices))
        loads.append(load)
        print(f"{(i + 1) * minutes / slices:5.1f} min: {load.rate:.0f} requests/s, "
              f"p50 {load.percentile(50):.1f} ms, p99 {load.percentile(99):.1f} ms, "
              f"{load.refused + load.failed + load.unsent} not answered, "
              f"{server.memory():.0f} MB", flush=True)  # fmt: skip
    return loads


def saturation(server: Server, texts: list[str], seconds: float) -> float:
    asyncio.run(closed_loop(server.port, texts, 8, 2))
    return asyncio.run(closed_loop(server.port, texts, 64, seconds)).rate


def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    texts = arguments.texts.read_text(encoding="utf-8").splitlines()[:512]
    server = Server(arguments.bundle, arguments.variant, "cpu")
    try:
        most = saturation(server, texts, arguments.seconds)
        print(f"saturation: {most:.0f} requests/s", flush=True)
        sampler = Sampler(server)
        sampler.start()
        loads = soak(server, texts, arguments.load * most, arguments.minutes)
        sampler.stop.set()
        sampler.join()
    finally:
        code = server.stop()
    times, megabytes = (np.array(column) for column in zip(*sampler.samples, strict=True))
    everything = Load([seconds for load in loads for seconds in load.latencies],
                      seconds=sum(load.seconds for load in loads))  # fmt: skip
    kept = times >= times[-1] * WARM_UP
    return {
        "minutes": arguments.minutes,
        "saturation": round(most, 1),
        "load": arguments.load,
        "requests": len(everything.latencies),
        "p50_ms": round(everything.percentile(50), 2),
        "p99_ms": round(everything.percentile(99), 2),
        "refused": sum(load.refused for load in loads),
        "failed": sum(load.failed for load in loads),
        "unsent": sum(load.unsent for load in loads),
        "exit_status": code,
        "growth_mb": round(growth_mb(times, megabytes), 2),
        "noise_mb": round(float(np.std(megabytes[kept])), 2),
        "by_minute": [load.figures() for load in loads],
        "seconds": times.round(1).tolist(),
        "resident_mb": megabytes.round(2).tolist(),
    }


def table(found: dict[str, Any], limit: float) -> list[str]:
    lost = found["refused"] + found["failed"] + found["unsent"]
    memory = found["resident_mb"]
    return goals(
        [
            Goal(f"growth of memory over {found['minutes']:g} minutes, MB", limit,
                 found["growth_mb"], f"{memory[0]:.0f} to {memory[-1]:.0f} MB resident, standard "
                 f"deviation {found['noise_mb']} MB", most=True),
            Goal("requests that were not answered", 0, lost,
                 f"{found['requests']} were, at {found['load']:.0%} of {found['saturation']:.0f} "
                 f"requests/s; p50 {found['p50_ms']:.1f} ms, p99 {found['p99_ms']:.1f} ms",
                 most=True),
        ]
    )  # fmt: skip


def plot(found: dict[str, Any], path: Path) -> None:
    try:
        import matplotlib as mpl
    except ImportError:
        print("no plot: matplotlib is not installed")
        return
    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, (top, bottom) = plt.subplots(2, figsize=(8, 5), sharex=True, layout="constrained")
    top.plot(np.divide(found["seconds"], 60), found["resident_mb"], linewidth=0.7)
    top.set(ylabel="resident MB", ylim=(0, None), title=f"growth {found['growth_mb']:+.1f} MB")
    count = len(found["by_minute"])
    ends = [(i + 1) * found["minutes"] / count for i in range(count)]
    for name in ("p50_ms", "p99_ms"):
        bottom.plot(ends, [load[name] for load in found["by_minute"]], label=name[:3])
    bottom.set(xlabel="minutes", ylabel="ms", ylim=(0, None))
    bottom.legend()
    figure.savefig(path, dpi=120)
    plt.close(figure)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("bundle")
    parser.add_argument("--texts", type=Path, required=True)
    parser.add_argument("--variant", default="fp32")
    parser.add_argument("--minutes", type=float, default=20)
    parser.add_argument("--load", type=float, default=0.7, help="share of saturation")
    parser.add_argument("--seconds", type=float, default=10, help="to measure saturation for")
    parser.add_argument("--limit", type=float, default=8, metavar="MB")
    add_output_options(parser)
    arguments = parser.parse_args()
    found = measure(arguments)
    stem = write_report("serve-soak", found, table(found, arguments.limit), arguments)
    plot(found, stem.with_suffix(".png"))
    lost = found["refused"] + found["failed"] + found["unsent"] + abs(found["exit_status"])
    return int(found["growth_mb"] > arguments.limit or lost > 0)


if __name__ == "__main__":
    sys.exit(main())
