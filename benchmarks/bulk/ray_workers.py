"""Compare two Ray workers of one thread each with one process of two threads, in `encode`.

    python benchmarks/bulk/ray_workers.py BUNDLE [--rounds 5] [--texts 4000] [--shards]
        [--out FILE.json]

Both sides are `mirror-rt encode` over the same folder of Parquet files, on the same two processors,
and take turns. The texts are of 50 tokens on average. Of each run three rates are taken:

    steady    texts a second while blocks were being finished: the slope of the texts in finished
              parts over the times at which they were finished, without each worker's first part
    command   texts a second as the command says it, with the start of Ray's actors
    whole     texts a second from the start of the process to its end, with the start of Ray itself

The goal is that the steady rate with Ray is at least 0.9 of that of two threads: the median over
the rounds of the ratios in each. `--shards` adds two commands that run at the same time without
Ray, `--shard 0/2` and `--shard 1/2` with a thread each, which tells what is Ray's from what follows
from two processes.

Needs an environment with this project and Ray. Where all but Ray is in .venv, this makes one that
sees both:

    python3.11 -m venv build/ray
    build/ray/bin/python -m pip install 'ray[data]==2.60.0' -c constraints.txt
    echo "import site; site.addsitedir('$PWD/.venv/lib/python3.11/site-packages')" \
        > build/ray/lib/python3.11/site-packages/project.pth
    build/ray/bin/python benchmarks/bulk/ray_workers.py BUNDLE --rounds 5 --shards --out ray.json
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pyarrow
import pyarrow.parquet

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # for the other folders

from helpers import median_ratio, write_whole

GOAL = 0.9
WORDS = Path(__file__).resolve().parents[2] / "tests" / "support" / "words_en.txt"
SAID = re.compile(r"\((\d+) texts/s, (\d+) tokens/s, padding ([\d.]+)%\)")


def write_texts(folder: Path, n: int, block: int, seed: int = 0) -> None:
    """Write n texts into Parquet files of eight row groups of `block` texts each."""
    rng, words = random.Random(seed), WORDS.read_text(encoding="utf-8").split()
    folder.mkdir(parents=True)
    for number, start in enumerate(range(0, n, 8 * block)):
        ids = range(start, min(n, start + 8 * block))
        lengths = [max(4, min(250, int(rng.lognormvariate(3.6, 0.7)))) for _ in ids]
        texts = [" ".join(rng.choices(words, k=length)) for length in lengths]
        table = pyarrow.table({"id": ids, "text": texts})
        pyarrow.parquet.write_table(table, folder / f"{number:04d}.parquet", row_group_size=block)


def encode(bundle: str, texts: Path, output: Path, *options: str) -> list[str]:
    """Return the line of a command; `run` runs it."""
    # -P: the folder that it runs in holds no modules of ours.
    return [sys.executable, "-P", "-m", "mirror_rt.cli", "encode", bundle, "--input", str(texts),
            "--output", str(output), "--providers", "cpu", *options]  # fmt: skip


def run(lines: list[list[str]], folder: Path, output: Path) -> dict:
    """Run commands at the same time, and return the measurements of their parts."""
    began, clock = time.perf_counter(), time.time()
    processes = [
        subprocess.Popen(line, cwd=folder, stderr=subprocess.PIPE, encoding="utf-8")
        for line in lines
    ]
    said = [process.communicate()[1] for process in processes]
    seconds = time.perf_counter() - began
    for process, text in zip(processes, said, strict=True):
        if process.returncode != 0:
            sys.exit(f"{' '.join(process.args)} ended with {process.returncode}:\n{text}")
    found = [SAID.search(text) for text in said]
    finished = sorted(
        (path.stat().st_mtime - clock, pyarrow.parquet.read_metadata(path).num_rows)
        for path in output.rglob("[!._]*.parquet")
    )
    return {
        "whole": sum(rows for _, rows in finished) / seconds,
        "command": sum(int(one[1]) for one in found),
        "tokens": sum(int(one[2]) for one in found),
        "seconds": seconds,
        "finished": finished,
    }


def steady(finished: list[tuple[float, int]], workers: int) -> float:
    """Return the texts a second between the workers' first parts and the last part."""
    total, times, sums = 0, [], []
    for at, rows in finished[workers:]:
        total += rows
        times.append(at)
        sums.append(total)
    return statistics.linear_regression(times, sums).slope


def contenders(options, texts: Path, output: Path) -> dict[str, list[list[str]]]:
    """Return the commands that run at the same time, for each contender."""
    base = (options.bundle, texts, output)
    ray = ["--engine", "ray", "--address", "local", "--workers", "2", "--worker-cpus", "1"]
    found = {
        "two threads": [encode(*base, "--threads", "2")],
        "ray": [encode(*base, *ray)],
    }
    if options.shards:
        found["shards"] = [encode(*base, "--threads", "1", "--shard", f"{i}/2") for i in range(2)]
    return found


def measure(options, folder: Path) -> list[dict[str, dict]]:
    """Let the contenders take turns; return the findings of each round on each."""
    write_texts(folder / "texts", options.texts, options.block)
    output, rounds = folder / "vectors", []
    lines = contenders(options, folder / "texts", output)
    for turn in range(options.rounds):
        found = {}
        for name in list(lines)[:: 1 if turn % 2 == 0 else -1]:
            shutil.rmtree(output, ignore_errors=True)
            one = run(lines[name], folder, output)
            one["steady"] = steady(one["finished"], 1 if name == "two threads" else 2)
            found[name] = one
            rates = ", ".join(f"{kind} {one[kind]:.1f}" for kind in ("steady", "command", "whole"))
            print(f"round {turn + 1}: {name:<12} {rates} texts/s", flush=True)
        rounds.append(found)
    return rounds


def report(rounds: list[dict[str, dict]]) -> dict[str, dict[str, float]]:
    """Print medians, and the ratios to two threads; return the ratios."""
    ratios = {}
    for name in rounds[0]:
        values = {kind: statistics.median(found[name][kind] for found in rounds)
                  for kind in ("steady", "command", "whole", "tokens")}  # fmt: skip
        print(f"{name:<12} " + ", ".join(f"{kind} {value:.1f}" for kind, value in values.items()))
        if name != "two threads":
            ratios[name] = {kind: median_ratio(rounds, lambda one, kind=kind: one[kind], name,
                                               "two threads")
                            for kind in ("steady", "command", "whole")}  # fmt: skip
            print(f"{name} / two threads: " + ", ".join(
                f"{kind} {value:.3f}" for kind, value in ratios[name].items()))  # fmt: skip
    reached = "reached" if ratios["ray"]["steady"] >= GOAL else "missed"
    print(f"goal: steady, ray / two threads >= {GOAL}: {reached}")
    return ratios


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("bundle")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--texts", type=int, default=4000)
    parser.add_argument("--block", type=int, default=125, help="texts of a row group")
    parser.add_argument("--shards", action="store_true", help="two shards at the same time, too")
    parser.add_argument("--out", type=Path, help="write all that was measured as JSON")
    options = parser.parse_args()
    if Path(options.bundle).exists():
        options.bundle = str(Path(options.bundle).resolve())
    from mirror_rt.diagnostics.benchmarking import machine_name

    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:2])
    print(machine_name())
    with tempfile.TemporaryDirectory() as name:
        rounds = measure(options, Path(name))
    ratios = report(rounds)
    if options.out:
        found = {"machine": machine_name(), "texts": options.texts, "block": options.block,
                 "ratios": ratios, "rounds": rounds}  # fmt: skip
        write_whole(options.out, json.dumps(found))


if __name__ == "__main__":
    main()
