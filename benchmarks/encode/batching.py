"""Measure batches: the fixed cost of a run, the fastest token budget, the share of padding.

    python benchmarks/encode/batching.py --data DATA [--model BUNDLE] [--threads T] [--json FILE]

1. It fits a line through the times of small runs; the intercept, in tokens, is `CPU_RUN_COST`.
2. It measures texts a second by token budget over the same mixed texts, all budgets in turn.
3. It compares the padding and the runs of planned batches with filling the budget, by number of
   texts.
4. It compares the planner in C++ with the same dynamic program in numpy.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path

import numpy as np

from mirror_rt import Encoder
from mirror_rt.tokens.batching import CPU_RUN_COST, plan_batches
from mirror_rt.tokens.padding import PaddedBatch

BUDGETS = [256, 512, 1024, 2048, 4096, 8192]


def mixed_texts(folder, count):
    """Return words, sentences and paragraphs of real text."""
    rng = np.random.default_rng(0)
    sentences = (folder / "sentences" / "en.txt").read_text("utf-8").splitlines()
    words = (folder / "words" / "en.txt").read_text("utf-8").split()
    return [
        " ".join(rng.choice(sentences, size=n)) if n else str(rng.choice(words))
        for n in rng.choice([0, 1, 1, 2, 3, 5, 12, 24], size=count)
    ]


def run_cost(encoder, repeats):
    """Return the milliseconds of a run and of a token, and their ratio."""
    shapes = [
        (rows, length) for length in (8, 16, 32, 64) for rows in (1, 2, 4) if rows * length < 97
    ]
    batches = [np.full(shape, 2000, np.int64) for shape in shapes]
    times = [[] for _ in shapes]
    for _ in range(repeats):
        for ids, seconds in zip(batches, times, strict=True):
            batch = PaddedBatch(ids, np.ones_like(ids), np.zeros_like(ids))
            began = time.perf_counter()
            encoder.pipeline.model.run_batch(batch, normalize=True)
            seconds.append(time.perf_counter() - began)
    milliseconds = [1e3 * min(seconds) for seconds in times]
    slope, intercept = np.polyfit([ids.size for ids in batches], milliseconds, 1)
    return {"run_ms": intercept, "token_ms": slope, "run_cost_tokens": intercept / slope}


def budgets(encoder, texts, repeats):
    """Return the median texts a second of every budget."""
    times = {budget: [] for budget in BUDGETS}
    encoder.encode(texts)
    for _ in range(repeats):
        for budget, seconds in times.items():
            began = time.perf_counter()
            encoder.encode(texts, batch_size=budget // 64)
            seconds.append(time.perf_counter() - began)
    return {budget: len(texts) / statistics.median(seconds) for budget, seconds in times.items()}


def filled(lengths, budget):
    """Yield the batches of the baseline: sorted rows, each batch filled to the budget."""
    order, start = np.argsort(-lengths, kind="stable"), 0
    while start < len(order):
        rows = max(1, budget // int(lengths[order[start]]))
        yield order[start : start + rows]
        start += rows


def planned(lengths, budget):
    return plan_batches(lengths, token_budget=budget, run_cost=CPU_RUN_COST)


def padding(lengths, plan, budget):
    """Return the share of padding in the padded tokens, and the number of runs."""
    batches = list(plan(lengths, budget))
    tokens = sum(len(rows) * int(lengths[rows].max()) for rows in batches)
    return {"padding": 1 - int(lengths.sum()) / tokens, "runs": len(batches)}


def ends_with_numpy(lengths, budget, cost):
    """Compute the dynamic program with one numpy step per row."""
    n = len(lengths)
    best, begin = np.zeros(n + 1, np.int64), np.zeros(n + 1, np.int64)
    for j in range(1, n + 1):
        longest = int(lengths[j - 1])
        first = j - min(j, max(1, budget // longest))
        costs = best[first:j] + np.arange(j - first, 0, -1) * longest
        begin[j] = first + int(costs.argmin())
        best[j] = costs.min() + cost
    ends = []
    j = n
    while j > 0:
        ends.append(j)
        j = int(begin[j])
    return ends[::-1]


def planner(lengths):
    """Return each planner's milliseconds for a window of 8,192 texts."""
    window = np.sort(np.resize(lengths, 8192))
    result = {}
    for name, function in [
        ("native", lambda: list(planned(window, 2048))),
        ("numpy", lambda: ends_with_numpy(window, 2048, CPU_RUN_COST)),
    ]:
        seconds = []
        for _ in range(5):
            began = time.perf_counter()
            count = len(function())
            seconds.append(time.perf_counter() - began)
        result[name] = {"ms": 1e3 * statistics.median(seconds), "batches": count}
    return result


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="bundle", help="an exported bundle")
    parser.add_argument("--data", type=Path, required=True, help="the evaluation data")
    parser.add_argument("--texts", type=int, default=1500)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    encoder = Encoder.load(arguments.model, threads=arguments.threads)
    texts = mixed_texts(arguments.data, arguments.texts)
    lengths = np.array([len(ids) for ids in encoder.tokenize(texts)])
    print(
        f"{len(texts)} texts of {lengths.min()} to {lengths.max()} tokens, mean "
        f"{lengths.mean():.0f}"
    )

    result = {"run_cost": run_cost(encoder, 10 * arguments.repeats)}
    print("a run costs {run_ms:.2f} ms and {token_ms:.3f} ms a token: {run_cost_tokens:.0f} tokens"
          .format(**result["run_cost"]))  # fmt: skip

    result["padding"] = {}
    for count in (16, 64, 256, len(texts)):
        row = {
            name: padding(lengths[:count], plan, 2048)
            for name, plan in (("filled", filled), ("planned", planned))
        }
        result["padding"][count] = row
        print(
            f"{count:>6} texts: "
            + ", ".join(
                f"{name} {100 * r['padding']:.1f} % in {r['runs']} runs" for name, r in row.items()
            )
        )

    result["planner"] = planner(lengths)
    print(
        ", ".join(
            f"{name} plans a window in {r['ms']:.1f} ms" for name, r in result["planner"].items()
        )
    )

    result["texts_per_second"] = budgets(encoder, texts, arguments.repeats)
    for budget, rate in result["texts_per_second"].items():
        print(f"budget {budget:>6}: {rate:.1f} texts/s")
    if arguments.json:
        arguments.json.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
