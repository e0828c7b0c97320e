"""Compare several processes of few threads with one process of many, in bulk encoding.

    python benchmarks/bulk/processes.py BUNDLE TEXTS.txt [--rounds N]

The script splits the processors of this machine in every even way, and runs the splits in turn on
the same windows of the texts. A rate counts only the windows behind the first of each process, so
that loading is left out; memory is the sum of the private memory (USS) of the processes at the end.
"""

from __future__ import annotations

import argparse
import re
import statistics
import time
from itertools import cycle, islice
from pathlib import Path

from mirror_rt.bulk.plan import find_bundle
from mirror_rt.bulk.reading import iter_records, record_windows
from mirror_rt.bulk.workers import EncoderSpec, encode_windows
from mirror_rt.cpus import available_cpus
from mirror_rt.inference.load_options import LoadOptions
from mirror_rt.pipeline.options import EncodeOptions


def private_mb(pid):
    rollup = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="utf-8")
    return sum(int(kb) for kb in re.findall(r"Private_\w+:\s+(\d+) kB", rollup)) / 1024


def run(arguments, stream, processes, threads):
    """Return texts a second, and megabytes."""
    import multiprocessing

    load = LoadOptions(variant=arguments.variant, threads=threads)
    spec = EncoderSpec.of(find_bundle(arguments.bundle, load), load, EncodeOptions())
    count = (1 + arguments.windows) * processes
    began = texts = 0
    results = encode_windows(
        spec, islice(cycle(stream), count), processes=processes, report_counter=lambda _: None
    )
    for number, vectors in enumerate(results, 1):
        if began:
            texts += len(vectors)
        if number == processes:
            began = time.perf_counter()
        if number == count:
            seconds = time.perf_counter() - began
            pids = [child.pid for child in multiprocessing.active_children()]
            memory = sum(map(private_mb, pids or ["self"]))
    return texts / seconds, memory


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("bundle")
    parser.add_argument("texts")
    parser.add_argument("--variant")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--windows", type=int, default=4, help="measured, of each process")
    parser.add_argument("--window", type=int, default=256, help="texts of a window")
    arguments = parser.parse_args()
    rows = iter_records(arguments.texts, "text", None)
    stream = list(record_windows(rows, arguments.window, 2_000_000))
    cpus = available_cpus()
    splits = [(n, cpus // n) for n in range(1, cpus + 1) if cpus % n == 0]
    rates, memory = {split: [] for split in splits}, {}
    for turn in range(arguments.rounds):
        for split in splits[:: 1 if turn % 2 == 0 else -1]:
            rate, memory[split] = run(arguments, stream, *split)
            rates[split].append(rate)
    for (processes, threads), values in rates.items():
        print(
            f"{processes} x {threads} threads: median {statistics.median(values):.1f}, "
            f"best {max(values):.1f} texts/s, {memory[processes, threads]:.0f} MB"
        )


if __name__ == "__main__":
    main()
