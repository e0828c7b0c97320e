"""Predict what a large `mirror-rt encode --engine ray` takes, from measurements of a small one.

    python benchmarks/bulk/scale_model.py benchmarks/results/scale-2026-11-23-2-x-amd-epyc.json

A discrete-event model (simpy): a driver hands out blocks, workers start, encode them and fail, slow
workers stay slow, and a block that fails is handed out again. First the model must predict the
two-worker runs that benchmarks/bulk/scale_calibration.py has measured beside its inputs, each from
the other rounds, to 15 %; else the script ends. Then it prints, as tables: what 1e9 texts need on
several machines, the same job on 1,000 workers by the size of its blocks, and what the driver, the
store and the tokenizer stand.
Prices, failures, stragglers and the latency of the store are assumptions: options change them.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import statistics
import sys
from dataclasses import dataclass
from pathlib import Path

import simpy

from mirror_rt.io.tables import markdown_table

RESULTS = Path(__file__).resolve().parents[1] / "results"
MIXED_TOKENS = 51  # of a text of benchmarks/encode/compare.py
DIMENSION = 384
FOOTERS_AT_A_TIME = 16  # of mirror_rt/bulk/blocks.py


@dataclass(frozen=True)
class Job:
    """Blocks of texts, each of the same number of tokens."""

    texts: float
    block: int
    tokens: float

    @property
    def blocks(self) -> int:
        return math.ceil(self.texts / self.block)


@dataclass(frozen=True)
class Cluster:
    """Workers; times in seconds. `driver` is the time of the driver for a block, alone."""

    workers: int
    tokens_per_second: float
    start: float
    block: float
    end: float
    driver: float = 0.0
    spread: float = 0.0
    slow_share: float = 0.0
    slow_factor: float = 1.0
    between_failures: float = math.inf
    replace: float = 0.0


class Simulation:
    """One run of a job in a cluster."""

    def __init__(self, job: Job, cluster: Cluster, seed: int = 0) -> None:
        self.job, self.cluster, self.random = job, cluster, random.Random(seed)
        self.environment = simpy.Environment()
        self.driver = simpy.Resource(self.environment)
        self.blocks = simpy.Container(self.environment, init=job.blocks)
        self.done, self.lost, self.failures, self.all_taken = 0, 0.0, 0, 0.0
        self.finished = self.environment.event()

    def run(self) -> dict[str, float]:
        for _ in range(self.cluster.workers):
            self.environment.process(self._work())
        self.environment.run(until=self.finished)
        ideal = self.job.texts * self.job.tokens / self.cluster.tokens_per_second
        seconds = self.environment.now + self.cluster.end
        return {
            "seconds": seconds,
            "efficiency": ideal / self.cluster.workers / seconds,
            "tail": self.environment.now - self.all_taken,
            "again": self.lost / ideal,
            "failures": self.failures,
        }

    def _work(self):
        environment, cluster = self.environment, self.cluster
        yield environment.timeout(cluster.start)
        speed, failure = self._machine()
        while True:
            yield self.blocks.get(1)
            self.all_taken = environment.now
            if cluster.driver:
                with self.driver.request() as turn:
                    yield turn
                    yield environment.timeout(cluster.driver)
            seconds = self._seconds(speed)
            if environment.now + seconds < failure:
                yield environment.timeout(seconds)
                self.done += 1
                if self.done == self.job.blocks:
                    self.finished.succeed()
                continue
            self.lost += max(0.0, failure - environment.now)
            self.failures += 1
            yield environment.timeout(max(0.0, failure - environment.now))
            self.blocks.put(1)
            yield environment.timeout(cluster.replace + cluster.start)
            speed, failure = self._machine()

    def _machine(self) -> tuple[float, float]:
        """Draw how fast a new worker is, and when it fails."""
        slow = self.random.random() < self.cluster.slow_share
        rate = 1 / self.cluster.between_failures
        lives = self.random.expovariate(rate) if rate else math.inf
        return self.cluster.slow_factor if slow else 1.0, self.environment.now + lives

    def _seconds(self, speed: float) -> float:
        spread = self.cluster.spread
        noise = self.random.lognormvariate(-(spread**2) / 2, spread) if spread else 1.0
        tokens = self.job.block * self.job.tokens
        return self.cluster.block + tokens / self.cluster.tokens_per_second / speed * noise


def measured_cluster(found: dict, workers: int, **changes: float) -> Cluster:
    """Return a cluster with the medians of the measured inputs."""
    values = {name: statistics.median(one[name] for one in found["inputs"])
              for name in found["inputs"][0]}  # fmt: skip
    return Cluster(workers, values["tokens_per_second"], values["seconds_to_start"],
                   values["seconds_of_a_block"], values["seconds_to_end"], **changes)  # fmt: skip


def check_calibration(found: dict, tolerance: float) -> None:
    """Predict each measured run from the other rounds; end the script if that is too far off."""
    run = found["run"]
    job = Job(run["texts"], run["block"], run["tokens"])
    print(f"## Calibration ({found['machine']})\n\ntwo workers, {run['texts']} texts of "
          f"{run['tokens']:.1f} tokens in blocks of {run['block']}\n")  # fmt: skip
    print("| round | inputs, of the other rounds | predicted | measured | off |\n"
          "|--:|---|--:|--:|--:|")  # fmt: skip
    off = []
    for i, measured in enumerate(run["seconds"]):
        others = [one for j, one in enumerate(found["inputs"]) if j != i]
        cluster = measured_cluster({"inputs": others}, 2)
        predicted = Simulation(job, cluster).run()["seconds"]
        off.append(predicted / measured - 1)
        print(f"| {i + 1} | {cluster.tokens_per_second:,.0f} tokens/s of a worker, "
              f"{cluster.start:.1f} s to start, {1e3 * cluster.block:.0f} ms a block, "
              f"{cluster.end:.1f} s to end | {predicted:.1f} s | {measured:.1f} s | "
              f"{off[-1]:+.1%} |")  # fmt: skip
    print()
    if statistics.median(map(abs, off)) > tolerance:
        sys.exit(f"the model is off by more than {tolerance:.0%}: it says nothing of larger runs")


def machines(options) -> list[tuple[str, float, float, str]]:
    """Return name, tokens/s of a core or card, price of its hour, and where the rate is from."""
    found = []
    for date, kind, price in (("23", "EPYC Zen 5, AVX512-BF16", options.core_hour),
                              ("22", "EPYC Zen 4, AVX512-BF16", options.core_hour),
                              ("21", "EPYC Zen 3, AVX2", options.old_core_hour)):  # fmt: skip
        path = RESULTS / f"encode-2026-11-{date}-2-x-amd-epyc.json"
        medians = json.loads(path.read_text(encoding="utf-8"))["medians"]
        for name in ("mirror-rt fp32", "mirror-rt native bf16", "mirror-rt native int8"):
            if name in medians:
                rate = medians[name]["mixed"] * MIXED_TOKENS / 2
                found.append((f"{kind}, {name[10:]}", rate, price, "measured"))
    flops = 2 * options.parameters + 6 * 4 * options.tokens * DIMENSION  # of a token
    rate = options.card_tflops * 1e12 / flops
    found.append(("a card of the class of an H200, fp16", rate, options.card_hour, "estimated"))
    return found


def print_needs(found: dict, options) -> None:
    """Print the needs of the job on each machine, and in storage."""
    tokens = options.texts * options.tokens
    print(f"## {options.texts:.0e} texts of {options.tokens:g} tokens\n")
    header = ["a core or card of", "tokens/s", "hours of it", "money", "tokens/s are"]
    rows = []
    for name, rate, price, source in machines(options):
        hours = tokens / rate / 3600
        rows.append([name, f"{rate:,.0f}", f"{hours:,.0f}", f"${hours * price:,.0f}", source])
    print(markdown_table(header, rows, numbers=True))
    rows = []
    for precision, size in found["bytes_of_a_vector"].items():
        total = size * options.texts / 1e9
        month = total * options.gb_month
        rows.append([precision, f"{size:,.0f}", f"{total:,.0f} GB", f"${month:,.2f}"])
    header = ["vectors", "bytes of each", "in all", "a month"]
    print(f"\n{markdown_table(header, rows, numbers=True)}")


def large_cluster(found: dict, options) -> Cluster:
    """Return the 1,000 workers of the options, which fail and of which some are slow."""
    cluster = measured_cluster(found, options.workers)
    return measured_cluster(
        found, options.workers, driver=cluster.block / 2, spread=options.spread,
        slow_share=options.slow_share, slow_factor=options.slow_factor,
        between_failures=options.hours_between_failures * 3600, replace=options.replace,
    )  # fmt: skip


def print_sizes_of_blocks(found: dict, options) -> None:
    """Print the course of the job on many workers, by the size of a block."""
    cluster, request = large_cluster(found, options), options.latency / FOOTERS_AT_A_TIME
    print(f"\n## {cluster.workers} workers of one core, {options.texts:.0e} texts\n")
    print("| texts of a block | blocks | minutes to find, prove | hours of work | efficiency "
          "| the last blocks, minutes | work done twice | failures | record of the job |\n"
          "|--:|--:|--:|--:|--:|--:|--:|--:|--:|")  # fmt: skip
    for block in options.blocks:
        job = Job(options.texts, block, options.tokens)
        made = Simulation(job, cluster, options.seed).run()
        listing = 2 * job.blocks * request / 60
        record = job.blocks * found["bytes_of_a_record"] / 1e6
        print(f"| {block:,} | {job.blocks:,} | {listing:,.1f} | {made['seconds'] / 3600:.2f} | "
              f"{made['efficiency']:.0%} | {made['tail'] / 60:.1f} | {made['again']:.1%} | "
              f"{made['failures']:,} | {record:,.0f} MB |", flush=True)  # fmt: skip


def print_limits(found: dict, options) -> None:
    """Print at how many workers each part of the way is full, at the largest size of a block."""
    cluster, block = large_cluster(found, options), max(options.blocks)
    rate = cluster.tokens_per_second / options.tokens  # texts a second of a worker
    size = found["bytes_of_a_vector"]["float32"]
    small = min(options.blocks)
    held = found["bytes_of_a_block"] + found["bytes_of_a_message"] + found["bytes_of_a_record"]
    rows = [
        (
            f"the driver, {1e3 * cluster.driver:.0f} ms a block, blocks of {small:,}",
            small / rate / cluster.driver,
        ),
        (f"the same with blocks of {block:,}", block / rate / cluster.driver),
        (
            f"{options.puts:,.0f} PUT a second of one prefix, blocks of {small:,}",
            options.puts * small / rate,
        ),
        (
            f"one disk that writes {options.disk:,.0f} MB/s, float32",
            options.disk * 1e6 / size / rate,
        ),
    ]
    limits = [[name, f"{number:,.0f}"] for name, number in rows]
    print(f"\n{markdown_table(['full at', 'workers of one core'], limits, numbers=True)}")
    each = found["tokenized_per_second"]
    card = next(rate for name, rate, _, _ in machines(options) if name.startswith("a card"))
    print(f"\ntokenizer: {each:,.0f} tokens/s of a thread, {each / cluster.tokens_per_second:.0f} "
          f"times what a core encodes; a card that encodes {card:,.0f} tokens/s wants "
          f"{card / each:.0f} such threads")  # fmt: skip
    find = 1e3 * found["seconds_to_find_a_file"]
    print(f"driver: about {held:,.0f} bytes a block in memory; {find:.2f} ms to find a local file")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("calibration", type=Path)
    parser.add_argument("--tolerance", type=float, default=0.15)
    parser.add_argument("--texts", type=float, default=1e9)
    parser.add_argument("--tokens", type=float, default=50)
    parser.add_argument("--workers", type=int, default=1000)
    parser.add_argument("--blocks", type=int, nargs="+", default=[1_000, 10_000, 100_000, 500_000])
    parser.add_argument("--seed", type=int, default=0)
    for name, default, text in (
        ("core-hour", 0.05, "dollars an hour of a core"),
        ("old-core-hour", 0.08, "dollars an hour of an older core"),
        ("card-hour", 5.4, "dollars an hour of the card"),
        ("gb-month", 0.023, "dollars a month of a gigabyte stored"),
        ("card-tflops", 100, "10^12 operations a second that the card does in this model"),
        ("parameters", 10.6e6, "parameters that each token passes: all but the word embeddings"),
        ("hours-between-failures", 20, "of a worker"),
        ("replace", 120, "seconds until the next worker begins to start"),
        ("slow-share", 0.02, "of the workers"),
        ("slow-factor", 1 / 3, "speed of a slow worker"),
        ("spread", 0.1, "of the time of a block, lognormal"),
        ("latency", 0.05, "seconds of a request to the store"),
        ("puts", 3500, "requests a second of a prefix"),
        ("disk", 500, "MB/s of one disk"),
    ):
        parser.add_argument(f"--{name}", type=float, default=default, help=f"{text} (%(default)g)")
    options = parser.parse_args()
    found = json.loads(options.calibration.read_text(encoding="utf-8"))
    check_calibration(found, options.tolerance)
    print_needs(found, options)
    print_sizes_of_blocks(found, options)
    print_limits(found, options)


if __name__ == "__main__":
    main()
