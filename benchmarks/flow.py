"""BERT-flow and BERT-CF with the ablations of its section 6.1, from one base, in one table.

    python benchmarks/flow.py --model MODEL --data DIR --work FOLDER [--steps 2000] [--only cf,flow]

DIR holds sentences/LANG.txt (strings to tune on), sts/stsb-LANG-{dev,test}.tsv. The commands of the
product do the work: `tune`, `flow`, `cf`, and `export`, which compares each bundle with PyTorch;
what FOLDER already has is kept, so that a run can be repeated (a FOLDER is for one set of options).
Every bundle is scored by Spearman's rho on both sets, with a paired bootstrap interval of its
difference to the base, and by the geometry of the test set's sentences. FOLDER/flow.json holds the
figures, and the table is printed.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

from mirror_rt import Encoder, Manifest
from mirror_rt.evaluation import evaluate_geometry, read_scored_pairs
from mirror_rt.evaluation.bootstrap import difference, replicates
from mirror_rt.evaluation.similarity import cosines
from mirror_rt.evaluation.statistics import RankCorrelation

# Name in the paper's tables -> command; "base" is exported as it is.
SYSTEMS = {
    "base": [],
    "flow": ["flow"],
    "SimCSE": ["tune", "--recipe", "cf", "--span-length", "0"],
    "Mirror": ["tune", "--recipe", "cf"],
    "BERT-CF": ["cf"],
    "SimCSE-joint": ["cf", "--views", "simcse"],
    "joint": ["cf", "--joint"],
    "Mirror-flow": ["cf", "--no-regulariser"],
}
SAMPLES = 1000


def run(*line):
    """Run `mirror-rt`; return its seconds and its peak memory in MiB."""
    began = time.perf_counter()
    line = [sys.executable, "-m", "mirror_rt.cli", *map(str, line)]
    process = subprocess.Popen(line)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if status:
        sys.exit(f"{' '.join(line)} failed")
    return {"seconds": round(time.perf_counter() - began, 1), "peak_mib": usage.ru_maxrss // 1024}


def make(name, arguments, strings):
    """The bundle of a system, made unless it is there; what its training took."""
    folder = arguments.work / name
    out, bundle, record = folder / "out", folder / "bundle", folder / "training.json"
    folder.mkdir(parents=True, exist_ok=True)
    pooling = ["--pooling", arguments.pooling]
    line = SYSTEMS[name]
    if line and not record.exists():
        line = [*line, "--model", arguments.model, "--data", strings, "--out", out, *pooling]
        line += ["--seed", arguments.seed, "--overwrite"]
        if line[0] != "tune" and arguments.steps:
            line += ["--steps", arguments.steps]
        record.write_text(json.dumps(run(*line)))
    if not bundle.exists():
        source = [out] if line else [arguments.model, *pooling]
        run("export", *source, "--out", bundle)
    return bundle, json.loads(record.read_text()) if record.exists() else {}


def score(bundle, sets, *, seed):
    """Correlations with their bootstrap replicates, and the geometry of the test set's texts."""
    encoder = Encoder.load(bundle)
    found = {}
    for name, pairs in sets.items():
        rho = RankCorrelation(cosines(encoder, pairs.first, pairs.second), pairs.scores)
        n = len(pairs.scores)
        found[name] = rho(np.ones(n)), replicates(rho, n, samples=SAMPLES, seed=seed, name=name)
    texts = list(dict.fromkeys([*sets["test"].first, *sets["test"].second]))
    return found, evaluate_geometry(encoder, texts, seed=seed)


def row(name, arguments, strings, sets, base):
    """The figures of a system; `base` has the correlations of the base."""
    bundle, training = make(name, arguments, strings)
    found, geometry = score(bundle, sets, seed=arguments.seed)
    base = base or found
    values = {"system": name, "training": training, "geometry": dataclasses.asdict(geometry)}
    values["parity"] = Manifest.read(bundle).variant("fp32").parity
    for split, (rho, samples) in found.items():
        change = difference(rho, base[split][0], samples, base[split][1])
        values[split] = {"spearman": rho, "change": change.value, "shown": change.shown}
        if change.interval:
            values[split]["interval"] = dataclasses.astuple(change.interval)
    return values, found


def cell(values):
    """Rho times 100, and the interval of its difference to the base."""
    low, high = values["interval"]
    return f"{100 * values['spearman']:.1f} ({100 * low:+.1f} .. {100 * high:+.1f})"


def table(rows):
    """Markdown."""
    print("| system | STS-B dev | STS-B test | isotropy | mean cosine | alignment | uniformity | "
          "seconds | peak MiB |\n" + "|---" * 9 + "|")  # fmt: skip
    for values in rows:
        geometry, training = values["geometry"], values["training"]
        cells = [values["system"], cell(values["dev"]), cell(values["test"])]
        names = ("isotropy_score_normalized", "mean_cosine", "alignment", "uniformity")
        cells += [f"{geometry[name]:.3f}" for name in names]
        cells += [str(training.get(name, "")) for name in ("seconds", "peak_mib")]
        print("| " + " | ".join(cells) + " |")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", required=True)
    parser.add_argument("--data", required=True, type=Path)
    parser.add_argument("--work", required=True, type=Path)
    parser.add_argument("--lang", default="en")
    parser.add_argument("--pooling", default="auto")
    parser.add_argument("--steps", type=int, help="of each flow (default: the command's)")
    parser.add_argument("--seed", type=int, default=42)
    parser.add_argument("--only", help=f"some of {','.join(SYSTEMS)}; base is always there")
    arguments = parser.parse_args()
    strings = arguments.data / "sentences" / f"{arguments.lang}.txt"
    sets = {
        split: read_scored_pairs(arguments.data / "sts" / f"stsb-{arguments.lang}-{split}.tsv")
        for split in ("dev", "test")
    }
    names = arguments.only.split(",") if arguments.only else list(SYSTEMS)
    rows, base = [], None
    for name in ["base", *(name for name in names if name != "base")]:
        values, found = row(name, arguments, strings, sets, base)
        base = base or found
        rows.append(values)
        (arguments.work / "flow.json").write_text(json.dumps(rows, indent=2) + "\n")
    table(rows)


if __name__ == "__main__":
    main()
