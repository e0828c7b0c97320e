"""Compare options of `mirror-rt tune` on one model: human scores, and criteria that need none.

    python benchmarks/tuning/options.py --model MODEL --strings FILE --scores FILE [FILE ...] \
        --work FOLDER --run "plain=--recipe sentence" --run "crop=--recipe sentence --crop 0.5" \
        [--dimensions 64 128] [--unseen N] [--seeds 1]

The last N strings of FILE (1,000 by default) are not trained on; the criteria are measured on them:
alignment and uniformity (Wang and Isola 2020), their sum, and how near the second half of a string
is found by its first half among all (the mean of 1 / rank). The base model, as it declares its
pooling or by the mean, is the first row. What FOLDER has is kept.
"""

from __future__ import annotations

import argparse
import shlex
import subprocess
import sys
import time
from pathlib import Path

from mirror_rt.evaluation import evaluate_geometry, evaluate_similarity, read_scored_pairs
from mirror_rt.io.tables import markdown_table
from mirror_rt.vectors.normalization import normalize_rows
from mirror_train import TorchEncoder


class First:
    """An encoder of which the first dimensions alone are kept, as unit vectors."""

    def __init__(self, encoder, size):
        self._encoder, self._size = encoder, size

    def encode(self, texts, **options):
        """Encode texts, whatever the options say of the length of vectors."""
        return normalize_rows(self._encoder.encode(texts)[:, : self._size])


def found_halves(encoder, texts):
    """Return the mean of 1 / rank of each text's second half, by its first half."""
    halves = [text.split() for text in texts if len(text.split()) > 3]
    if not halves:
        return float("nan")
    sides = [
        encoder.encode([" ".join(part(words)) for words in halves])
        for part in (lambda w: w[: len(w) // 2], lambda w: w[len(w) // 2 :])
    ]
    cosines = sides[0] @ sides[1].T
    return (1 / (1 + (cosines > cosines.diagonal()[:, None]).sum(1))).mean()


def measure(encoder, sets, unseen, sizes):
    """Return the cells of a row."""
    cells = []
    for pairs in sets:
        parts = [First(encoder, size) for size in sizes]
        cells += [f"{evaluate_similarity(one, pairs):.3f}" for one in (encoder, *parts)]
    found = evaluate_geometry(encoder, unseen)
    both = found.alignment + found.uniformity
    criteria = (found.alignment, found.uniformity, both, found_halves(encoder, unseen))
    return [*cells, *(f"{value:.3f}" for value in criteria)]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", required=True)
    parser.add_argument("--strings", required=True, type=Path)
    parser.add_argument("--scores", required=True, type=Path, nargs="+")
    parser.add_argument("--work", required=True, type=Path)
    parser.add_argument("--run", action="append", default=[], metavar="NAME=OPTIONS")
    parser.add_argument("--dimensions", type=int, nargs="*", default=[])
    parser.add_argument("--unseen", type=int, default=1000)
    parser.add_argument("--seeds", type=int, default=1)
    arguments = parser.parse_args()
    work, unseen = arguments.work, arguments.unseen
    work.mkdir(parents=True, exist_ok=True)
    texts = [one for one in arguments.strings.read_text(encoding="utf-8").split("\n") if one]
    strings = work / "strings.txt"
    strings.write_text("\n".join(texts[:-unseen]) + "\n", encoding="utf-8")
    sets = [read_scored_pairs(path) for path in arguments.scores]

    def row(name, folder, seconds):
        encoder = TorchEncoder.load(folder)
        return [name, *measure(encoder, sets, texts[-unseen:], arguments.dimensions), seconds]

    rows = [row("base", arguments.model, "")]
    for run in arguments.run:
        name, _, options = run.partition("=")
        for seed in range(arguments.seeds):
            out, began = work / f"{name}-{seed}", time.perf_counter()
            if not out.exists():
                call = [sys.executable, "-m", "mirror_rt.cli", "tune", arguments.model, "--data",
                        strings, "--seed", seed, *shlex.split(options), "--out", out]  # fmt: skip
                subprocess.run(list(map(str, call)), check=True)
            rows.append(row(f"{name}, seed {seed}", out, f"{time.perf_counter() - began:.0f}"))
    named = [
        f"{path.parent.name}/{path.stem}{part}"
        for path in arguments.scores
        for part in ("", *(f", first {size}" for size in arguments.dimensions))
    ]
    criteria = ["alignment", "uniformity", "sum", "halves", "seconds"]
    print(markdown_table(["run", *named, *criteria], rows))


if __name__ == "__main__":
    main()
