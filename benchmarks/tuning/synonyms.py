"""Tune on synonyms with several seeds, and score both halves of Multi-SimLex.

    python benchmarks/tuning/synonyms.py --base MODEL --data DATA --dictionary INDEX --work FOLDER
        [--seeds 42 43 44] [--runs NAME ...] [--json FILE] [options of `mirror-rt tune`]

`mirror-rt tune` does the work, in a process for each run and seed: on the thesaurus that is
installed for a language ($MIRROR_RT_THESAURI), on the translations of INDEX (FreeDict's
freedict-eng-fra.index), and with the recipe `word-plus` on DATA/words. --base is the model of all
runs but those named `minilm`, which start from all-MiniLM-L6-v2. FOLDER keeps the cosines of each
run, and the runs that it has are not repeated. FILE gets each seed's scores, and what `mirror.json`
records of its training.

Even ids of DATA/multisimlex are the development half, odd ones the test half. A score is the mean
of Spearman's rho over the seeds, with the least and the most of them in parentheses; its interval
of 95 %, in brackets, is that of the mean over samples of the pairs. The gain over `word-plus` is on
the same pairs.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # for the other folders

from helpers import write_whole

from mirror_rt.evaluation.bootstrap import difference, interval, replicates
from mirror_rt.evaluation.readers.pairs import read_scored_pairs
from mirror_rt.evaluation.similarity import cosines
from mirror_rt.evaluation.statistics import RankCorrelation
from mirror_rt.io.rows import read_table
from mirror_train import TorchEncoder
from mirror_train.data.freedict import read_freedict

SAMPLES = 1000
HALVES = {"development": (0,), "test": (1,), "both": (0, 1)}  # the ids' remainders by two
# The base, the language and the strings of each run; what matters most goes first.
RUNS = {
    "-".join(run): run
    for run in (
        ("minilm", "en", "thesaurus"),
        ("base", "fr", "dictionary"),
        ("base", "ru", "thesaurus"),
        ("base", "en", "thesaurus"),
        ("base", "ar", "thesaurus"),
        ("base", "fr", "thesaurus"),
        ("base", "es", "thesaurus"),
        ("base", "pl", "thesaurus"),
        *(("base", language, "word-plus") for language in ("ar", "ru", "fr", "en")),
        ("minilm", "en", "word-plus"),
    )
}


class Scores(NamedTuple):
    """Spearman's rho of each seed, and of their mean the replicates over samples of the pairs."""

    seeds: list[float]
    samples: np.ndarray

    @property
    def mean(self):
        return float(np.mean(self.seeds))

    def __str__(self):
        reach = interval(self.samples)
        return (
            f"{self.mean:.3f} ({min(self.seeds):.3f} to {max(self.seeds):.3f}) "
            f"[{reach.low:.3f}, {reach.high:.3f}]"
        )


def write_translations(index, path):
    """Write the entries of a dictionary, each word once on either side."""
    pairs = {}
    for word, translation in read_freedict(index, ("en", "fr")):
        if word not in pairs and translation not in pairs.values():
            pairs[word] = translation
    write_whole(path, "".join(f"{word}\t{other}\n" for word, other in pairs.items()))


def strings(run, arguments):
    """Return the options of `mirror-rt tune` that name a run's strings and recipe."""
    _, language, source = RUNS[run]
    if source == "thesaurus":
        return ["--thesaurus", language]
    if source == "word-plus":
        words = arguments.data / "words" / f"{language}.txt"
        return ["--recipe", "word-plus", "--data", words, "--lang", language]
    table = arguments.work / "en-fr.tsv"
    if not table.exists():
        write_translations(arguments.dictionary, table)
    return ["--recipe", "synonyms", "--data", table, "--lang", language, "--epochs", 1]


def tuned_cosines(run, seed, arguments, options):
    """Return the cosines of the pairs after tuning, which are kept; the model is not."""
    kept = arguments.work / f"{run}-{seed}.json"
    if kept.exists():
        return np.array(json.loads(kept.read_text(encoding="utf-8"))["cosines"])
    base, language, _ = RUNS[run]
    model = arguments.base if base == "base" else "all-MiniLM-L6-v2"
    out = arguments.work / f"{run}-{seed}"
    line = ["tune", model, *strings(run, arguments), "--seed", seed, "--out", out, "--overwrite"]
    subprocess.run(
        [sys.executable, "-m", "mirror_rt.cli", *map(str, line), *options],
        check=True,
        stdout=subprocess.DEVNULL,
    )
    pairs = read_scored_pairs(arguments.data / "multisimlex" / f"{language}.tsv")
    found = cosines(TorchEncoder.load(out), pairs.first, pairs.second)
    manifest = json.loads((out / "mirror.json").read_text(encoding="utf-8"))
    what = {"recipe": manifest["recipe"], "training": manifest["training"]}
    write_whole(kept, json.dumps(what | {"cosines": found.tolist()}))
    shutil.rmtree(out)
    return found


def score(run, half, arguments, options):
    """Return the scores of a run on the pairs of a half."""
    language = RUNS[run][1]
    path = arguments.data / "multisimlex" / f"{language}.tsv"
    ids = np.array([int(cell) for cell in read_table(path).column("pair_id")])
    rows = np.flatnonzero(np.isin(ids % 2, HALVES[half]))
    human = read_scored_pairs(path).scores[rows]
    seeds = [
        RankCorrelation(tuned_cosines(run, seed, arguments, options)[rows], human)
        for seed in arguments.seeds
    ]
    samples = replicates(
        lambda weights: float(np.mean([one(weights) for one in seeds])),
        len(rows),
        samples=SAMPLES,
        seed=0,
        name=f"{language}-{half}",
    )
    return Scores([one() for one in seeds], samples)


def gain(run, half, found):
    """Return what a run gains over `word-plus`, or nothing where that was not run."""
    plain = "-".join((*RUNS[run][:2], "word-plus"))
    if plain == run or plain not in found:
        return ""
    one, other = found[run][half], found[plain][half]
    gained = difference(one.mean, other.mean, one.samples, other.samples)
    return f"{gained.value:+.3f} [{gained.interval.low:.3f}, {gained.interval.high:.3f}]"


def record(runs, found, arguments):
    """Return each run's scores by seed, and what `mirror.json` records of its training."""
    rows = {}
    for run in runs:
        for row, seed in enumerate(arguments.seeds):
            kept = json.loads((arguments.work / f"{run}-{seed}.json").read_text(encoding="utf-8"))
            scores = {half: round(found[run][half].seeds[row], 4) for half in HALVES}
            rows[f"{run}-{seed}"] = scores | {"training": kept["training"]}
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--base", required=True)
    parser.add_argument("--data", required=True, type=Path)
    parser.add_argument("--dictionary", required=True, type=Path)
    parser.add_argument("--work", required=True, type=Path)
    parser.add_argument("--seeds", nargs="+", type=int, default=[42, 43, 44])
    parser.add_argument("--runs", nargs="+", choices=RUNS, default=list(RUNS))
    parser.add_argument("--json", type=Path)
    arguments, options = parser.parse_known_args()
    arguments.work.mkdir(parents=True, exist_ok=True)
    found = {}
    print("| run | half | mean (seeds) [pairs] | gain over word-plus |\n|---|---|---|---|")
    for run in arguments.runs:
        found[run] = {half: score(run, half, arguments, options) for half in HALVES}
        for half, scores in found[run].items():
            print(f"| {run} | {half} | {scores} | |", flush=True)
    if arguments.json:
        rows = record(arguments.runs, found, arguments)
        write_whole(arguments.json, json.dumps(rows, indent=1) + "\n")
    for run in found:
        for half in HALVES:
            if text := gain(run, half, found):
                print(f"| {run} | {half} | | {text} |")


if __name__ == "__main__":
    main()
