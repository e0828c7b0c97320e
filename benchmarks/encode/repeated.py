"""Measure the cost of repeated texts: texts a second where 0, 50 and 90 % of a call are repeated.

    python benchmarks/encode/repeated.py --data DATA [--model BUNDLE] [--texts N] [--rounds R]
                                         [--threads T] [--json FILE]

The texts of a call are sentences. All calls have the same number of texts, and take turns:

1. `distinct`: N sentences, none of them equal: what the others would cost without equal rows.
2. `50 %`, `90 %`: of N texts this share are repetitions of others, in any order.
3. `cache, first` and `cache, again`: the distinct sentences with a new cache file, and once more.

It also says which part of a call of 1,000 distinct words the search for equal rows takes, and how
many texts a second a single short text makes, which does not search.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np

from mirror_rt import Encoder
from mirror_rt.pipeline.rows_to_run import RowsToRun

SHARES = (0.5, 0.9)


def calls(sentences, n):
    """Return the texts of each call by its name."""
    rng = np.random.default_rng(0)
    found = {"distinct": sentences[:n]}
    for share in SHARES:
        kept = sentences[: round((1 - share) * n)]
        texts = kept + [kept[i] for i in rng.integers(len(kept), size=n - len(kept))]
        found[f"{share:.0%}".replace("%", " %")] = [texts[i] for i in rng.permutation(n)]
    return found


def seconds(work):
    """Return how long a call takes."""
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def measure(arguments, sentences):
    """Return the median texts a second of every call."""
    n, load = arguments.texts, {"threads": arguments.threads}
    times: dict[str, list[float]] = {}
    with Encoder.load(arguments.model, **load) as encoder:
        encoder.warmup()
        for _ in range(arguments.rounds):
            for name, texts in calls(sentences, n).items():
                took = seconds(lambda texts=texts: encoder.encode(texts, show_progress_bar=False))
                times.setdefault(name, []).append(took)
            with tempfile.TemporaryDirectory() as folder:
                path = Path(folder) / "vectors.cache"
                with Encoder.load(arguments.model, cache=path, **load) as cached:
                    for name in ("cache, first", "cache, again"):
                        took = seconds(
                            lambda: cached.encode(sentences[:n], show_progress_bar=False)
                        )
                        times.setdefault(name, []).append(took)
    return {name: n / statistics.median(found) for name, found in times.items()}


def overhead(arguments, words):
    """Return the seconds of a call of 1,000 words, of its search, and of a single word."""
    with Encoder.load(arguments.model, threads=arguments.threads) as encoder:
        rows = encoder.pipeline.tokenizer(words)[0]
        rounds = range(arguments.rounds)
        call = [seconds(lambda: encoder.encode(words, show_progress_bar=False)) for _ in rounds]
        search = [seconds(lambda: RowsToRun(rows)) for _ in range(100)]
        single = [seconds(lambda: encoder.encode(words[0])) for _ in range(300)]
    return {
        "call_seconds": statistics.median(call),
        "search_seconds": statistics.median(search),
        "single_seconds": statistics.median(single),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--model", default="all-MiniLM-L6-v2")
    parser.add_argument("--texts", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    sentences, words = (
        list(dict.fromkeys((arguments.data / kind / "en.txt").read_text("utf-8").splitlines()))
        for kind in ("sentences", "words")
    )
    if len(sentences) < arguments.texts or len(words) < 1000:
        parser.error(f"{arguments.data} has too few distinct texts")
    speeds = measure(arguments, sentences)
    for name, speed in speeds.items():
        print(f"{name:<14}{speed:10.0f} texts/s {speed / speeds['distinct']:8.2f} of distinct")
    cost = overhead(arguments, words[:1000])
    share = cost["search_seconds"] / cost["call_seconds"]
    print(
        f"search among 1,000 words: {1e6 * cost['search_seconds']:.0f} us, {share:.3%} of the call"
    )
    print(f"a single word: {1e3 * cost['single_seconds']:.2f} ms")
    if arguments.json:
        arguments.json.write_text(
            json.dumps({"texts_per_second": speeds, **cost}, indent=2), encoding="utf-8"
        )


if __name__ == "__main__":
    main()
