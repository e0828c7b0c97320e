"""Tune one multilingual base for several languages, export a pack, and score every step.

    python benchmarks/tuning/languages.py --base MODEL --data DIR --work FOLDER [--langs fr,ru] \
        [--recipe word] [--precision fp32]

DIR holds words/LANG.txt (strings to tune on) and multisimlex/LANG.tsv (scored pairs). The commands
of the product do the work: `tune` for each language (models that FOLDER/tuned already has are kept,
so the run can be repeated), and one `export --all` for all of them. The table compares Spearman's
correlation of the base and the tuned model in PyTorch with that of every variant of the bundle.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path

from mirror_rt import Encoder
from mirror_rt.bundle.pack_index import PackIndex
from mirror_rt.evaluation import evaluate_similarity, read_scored_pairs
from mirror_rt.io.tables import markdown_table
from mirror_train import TorchEncoder

# The allowed difference between PyTorch's correlation and that of a variant.
ALLOWED = {"fp32": 0.002, "int8": 0.01}


def command(*arguments):
    """Run `mirror-rt`; return the seconds it took."""
    began = time.perf_counter()
    subprocess.run([sys.executable, "-m", "mirror_rt.cli", *map(str, arguments)], check=True)
    return round(time.perf_counter() - began, 1)


def tune(base, language, recipe, data, tuned):
    """Tune for one language and return the seconds; None if it was tuned before."""
    out = tuned / language
    if out.exists():
        return None
    return command(
        *("tune", "--model", base, "--recipe", recipe, "--language", language),
        *("--data", data / "words" / f"{language}.txt", "--out", out),
    )


def score(base, language, data, tuned, pack, variants):
    """Return Spearman's correlation of every stage for one language."""
    pairs = read_scored_pairs(data / "multisimlex" / f"{language}.tsv")
    scores = {
        "base": evaluate_similarity(TorchEncoder.load(base, pooling="mean"), pairs),
        "tuned": evaluate_similarity(TorchEncoder.load(tuned / language), pairs),
    }
    for variant in variants:
        encoder = Encoder.load(pack / language, variant=variant)
        scores[variant] = evaluate_similarity(encoder, pairs)
    return scores


def verdict(scores):
    """Return which of the promises a row of the table does not keep."""
    faults = [
        name
        for name, limit in ALLOWED.items()
        if name in scores and abs(scores[name] - scores["tuned"]) > limit
    ]
    below = [name for name in scores if name != "base" and scores[name] <= scores["base"]]
    return [f"{name} differs from PyTorch" for name in faults] + [
        f"{name} is not above the base" for name in below
    ]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--base", required=True, type=Path)
    parser.add_argument("--data", required=True, type=Path)
    parser.add_argument("--work", required=True, type=Path)
    parser.add_argument("--langs", default="en,fr,ru,zh,ar")
    parser.add_argument("--recipe", default="word-plus")
    parser.add_argument("--precision", default="fp32,int8")
    parser.add_argument("--json", type=Path, help="write the figures here, too")
    arguments = parser.parse_args()
    languages = arguments.langs.split(",")
    variants = arguments.precision.split(",")
    tuned, pack = arguments.work / "tuned", arguments.work / "pack"
    tuned.mkdir(parents=True, exist_ok=True)
    seconds = {
        language: tune(arguments.base, language, arguments.recipe, arguments.data, tuned)
        for language in languages
    }
    exported = command(
        *("export", "--all", tuned, "--out", pack, "--precision", arguments.precision),
        *("--parity-pairs", arguments.data / "multisimlex"),
        *(["--resume"] if pack.exists() else []),
    )
    rows = {
        language: score(arguments.base, language, arguments.data, tuned, pack, variants)
        for language in languages
    }
    columns = ["language", "base", "tuned, PyTorch", *(f"bundle {name}" for name in variants)]
    lines = [[name, *(f"{one:.4f}" for one in scores.values())] for name, scores in rows.items()]
    print(markdown_table(columns, lines))
    faults = [f"{name}: {fault}" for name, scores in rows.items() for fault in verdict(scores)]
    print(f"export: {exported} s, {len(PackIndex.read(pack).bundles)} bundles")
    if arguments.json:
        result = {"spearman": rows, "tune_seconds": seconds, "export_seconds": exported}
        arguments.json.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    if faults:
        sys.exit("\n".join(faults))


if __name__ == "__main__":
    main()
