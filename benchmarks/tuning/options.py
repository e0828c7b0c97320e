"""Compare options of `mirror-rt tune` and `train`: human scores, and criteria that need none.

    python benchmarks/tuning/options.py COMPARISON [...] --data DIR --work FOLDER [--seeds 3] \
        [--runs NAME ...] [--options OPTIONS] [--model MODEL] [--teacher MODEL] [--steps N] \
        [--scored N] [--json FILE]

The comparisons are the tables of options.toml, which says what they hold. Every run is a command of
the product with each of the seeds 0, 1, ... A figure of a run is the mean of its seeds and their
range, beside it the difference to the first run, all with bootstrap intervals of 95 % over the
items of the set. A run that was cut goes on from its last checkpoint, and what FOLDER has is not
made again. First dimensions are scored as they are, and after the vectors were turned so that those
come first in which the strings kept from training vary most.

The criteria without scores are measured on strings that were not trained on: alignment and
uniformity (Wang and Isola 2020), their sum, and how near the second half of a string is found by
its first half among all (the mean of 1 / rank); and of dictionaries on the words that the command
holds out, how near their translations are found (the mean of 1 / rank). Where a table has `words`,
they are measured on words of dictionaries that all runs are kept from (held_out_words.py), and the
means of human scores are given of the languages that were tuned on, and of all others, on which
nothing was tuned or chosen. Where it has `choose`, a criterion, each run is made with seed 0, and
the first and the one that the criterion chooses with all seeds; rho of each criterion with the
human scores, over the runs, says whether it chooses well.
"""

from __future__ import annotations

import argparse
import json
import shlex
import subprocess
import sys
import time
import tomllib
from functools import cache
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # for the other folders

from held_out_words import NAMES, HeldOutWords
from helpers import write_whole

from mirror_rt import Encoder
from mirror_rt.evaluation import evaluate_geometry, read_scored_pairs
from mirror_rt.evaluation.bootstrap import interval, replicates
from mirror_rt.evaluation.models import EvaluatedModel
from mirror_rt.evaluation.readers.pairs import ScoredPairs
from mirror_rt.evaluation.readers.tables import read_lexicon
from mirror_rt.evaluation.statistics import spearman
from mirror_rt.evaluation.suites.base import SuiteOptions, language_of, scored_set
from mirror_rt.evaluation.suites.induction import find_lexicons
from mirror_rt.inference.load_options import LoadOptions
from mirror_rt.io.tables import markdown_table
from mirror_train.languages.joint import hold_out

TABLES = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
SAMPLES, CHECKPOINT_EVERY = 200, 8
MEANS = ("the languages tuned on", "the others")
# Runs the command line with the mean of the teacher's vectors left on, for `--uncentred` in a run.
UNCENTRED = (
    "import sys\n"
    "from mirror_train.training import teacher\n"
    "teacher.centred = lambda vectors: vectors\n"
    "from mirror_rt.cli import main\n"
    "sys.exit(main())\n"
)
LOWER = ("alignment", "uniformity", "their sum")  # criteria of which lower values are better


class First:
    """An encoder of which the first dimensions alone are kept, perhaps after a rotation [D, D]."""

    def __init__(self, encoder, size, rotation=None):
        self._encoder, self._size, self._rotation = encoder, size, rotation

    def encode(self, texts, **options):
        """Encode texts; who asks scales the vectors."""
        vectors = self._encoder.encode(texts)
        if self._rotation is not None:
            vectors = vectors @ self._rotation
        return vectors[:, : self._size]


def principal_directions(encoder, texts):
    """Return the directions of the vectors of texts, [D, D], that of the most variance first."""
    directions = np.linalg.eigh(np.cov(encoder.encode(texts), rowvar=False))[1]
    return directions[:, ::-1].astype(np.float32)


def found_halves(encoder, texts):
    """Return the mean of 1 / rank of each text's second half, by its first half."""
    halves = [text.split() for text in texts if len(text.split()) > 3]
    if not halves:
        return None
    sides = [
        encoder.encode([" ".join(part(words)) for words in halves])
        for part in (lambda w: w[: len(w) // 2], lambda w: w[len(w) // 2 :])
    ]
    cosines = sides[0] @ sides[1].T
    return float((1 / (1 + (cosines > cosines.diagonal()[:, None]).sum(1))).mean())


class Comparison:
    """A table of options.toml, with the folder of its runs."""

    def __init__(self, name, given):
        self.name, self.data, self.work, self.given = name, given.data, given.work / name, given
        self.table, data = TABLES[name], given.data
        self.work.mkdir(parents=True, exist_ok=True)
        self.model = LoadOptions().find(given.model or self.table["model"])
        self.unseen = self._strings() if "strings" in self.table else []
        scores = [path for one in self.table.get("scores", []) for path in sorted(data.glob(one))]
        self.sets = [self._scored(path) for path in scores]
        self.held, self.languages = None, self.table.get("words", [])
        if self.languages:
            files = [data / path for path in self.table["dictionaries"]]
            self.held = HeldOutWords(data, files, self.languages, self.work)
        self.teacher = cache(lambda: Encoder.load(self._teacher))
        wanted = self.table.get("lexicons", [])
        if wanted:
            found = find_lexicons(data, SuiteOptions()).sets
            self.sets += [one for one in found if one.name in wanted]

    def _scored(self, path):
        language = language_of(path)
        return scored_set(path.parent.name, path.stem, path, (language,), self._pairs)

    def _pairs(self, path):
        """Read scored pairs, of which as many are drawn as the call asks for."""
        pairs = read_scored_pairs(path)
        rows = np.random.default_rng(0).permutation(len(pairs.scores))[: self.given.scored]
        if self.given.scored is None:
            return pairs
        first, second = ([side[row] for row in rows] for side in (pairs.first, pairs.second))
        return ScoredPairs(first, second, pairs.scores[rows])

    @property
    def _teacher(self):
        return self.given.teacher or self.table.get("teacher")

    @property
    def _places(self):
        """Return the values of the names in braces, quoted for a command."""
        steps, held = self.given.steps or self.table.get("steps", 0), self.held
        files = () if held is None else held.files
        places = {
            "data": self.data, "strings": self.work / "strings.txt", "model": self.model,
            "words": None if held is None else held.words, "teacher": self._teacher,
            "steps": steps, "half": steps // 2, "twice": 2 * steps,
        }  # fmt: skip
        dictionaries = shlex.join(f"--dictionary={path}" for path in files)
        quoted = {name: shlex.quote(str(place)) for name, place in places.items()}
        return quoted | {"dictionaries": dictionaries}

    def _strings(self):
        """Write the strings to tune on; return those that are kept from it."""
        lines = (self.data / self.table["strings"]).read_text(encoding="utf-8").split("\n")
        texts = list(dict.fromkeys(line.strip() for line in lines if line.strip()))
        kept = self.table["unseen"]
        write_whole(self.work / "strings.txt", "\n".join(texts[:-kept]) + "\n")
        return texts[-kept:]

    def tune(self, name, seed):
        """Run the command of a run, to its end; return the folder that it wrote."""
        out = self.work / f"{name}-{seed}"
        line = " ".join([self.table["command"], self.given.options, self.table["runs"][name]])
        words = shlex.split(line.format(**self._places))
        code = ("-c", UNCENTRED) if "--uncentred" in words else ("-m", "mirror_rt.cli")
        kept = ("--resume", "--checkpoint-every", CHECKPOINT_EVERY)
        call = [sys.executable, *code, *(word for word in words if word != "--uncentred"),
                "--model", self.model, "--seed", seed, "--quiet", *kept, "--out", out]  # fmt: skip
        if not (out / "mirror.json").exists():
            print(shlex.join(map(str, call[1:])), file=sys.stderr)
            subprocess.run(list(map(str, call)), check=True, stdout=sys.stderr)
        return out

    def measure(self, name, seed=None):
        """Return the figures of a run, or of the base model, which are kept."""
        path = self.work / f"{name}-{seed}.json"
        if not path.exists():
            folder = self.model if seed is None else self.tune(name, seed)
            began, encoder = time.perf_counter(), Encoder.load(folder)
            found = {"sets": self._scores(encoder), "criteria": self._criteria(encoder, seed or 0)}
            write_whole(path, json.dumps(found | {"seconds": time.perf_counter() - began}))
        return json.loads(path.read_text(encoding="utf-8"))

    def _scores(self, encoder):
        """Return value and bootstrap replicates of each set, of all dimensions and the first."""
        whole = EvaluatedModel("whole", lambda language: encoder)
        models = {"": whole}
        for size in self.table.get("dimensions", []):
            turned = principal_directions(whole.of(None), self.unseen)
            for name, rotation in (("", None), (" of the most variance", turned)):
                part = First(whole.of(None), size, rotation)
                models[f", first {size}{name}"] = EvaluatedModel(
                    "part", lambda language, part=part: part
                )
        found = {}
        for one in self.sets:
            for suffix, model in models.items():
                outcome = one.measure(model).outcomes[-1]  # of lexicons VecMap's
                name = f"{one.suite}/{one.name}"
                samples = self.table.get("samples", SAMPLES)
                drawn = replicates(outcome.statistic, outcome.n, samples=samples, seed=0, name=name)
                found[name + suffix] = {"value": outcome.value, "replicates": drawn.tolist()}
        return found

    def _criteria(self, encoder, seed):
        found = {}
        if self.unseen:
            near = evaluate_geometry(encoder, self.unseen)
            both = near.alignment + near.uniformity
            found = dict(zip(LOWER, (near.alignment, near.uniformity, both), strict=True))
            found["halves"] = found_halves(encoder, self.unseen)
        for pair in self.table.get("lexicons", []):
            path = self.data / "bli" / f"{pair}.train.tsv"
            held = hold_out(path.name, read_lexicon(path), seed=seed)[1]
            found[f"held out, {pair}"] = held.reciprocal_rank(encoder)
        if self.held is not None:
            found |= self.held.criteria(encoder, self.teacher())
        return {name: value for name, value in found.items() if value is not None}

    def mean(self, results):
        """Return the means over the seeds of a run, and of the human scores of languages."""
        found = _mean(results)
        for title, names in self.grouped(found["sets"]).items():
            found["sets"][title] = _joined([found["sets"][name] for name in names])
        return found

    def grouped(self, sets):
        """Return the sets of the languages that are tuned on, and of the others."""
        if self.held is None:
            return {}
        own = [name for name in sets if name.partition("/")[2] in self.languages]
        both = dict(zip(MEANS, (own, [name for name in sets if name not in own]), strict=True))
        return {title: names for title, names in both.items() if names}

    def chosen(self, names):
        """Return the run that the criterion chooses with seed 0; None without a criterion."""
        by = self.table.get("choose")
        if by is None:
            return None
        return max(names, key=lambda name: self.measure(name, 0)["criteria"][by])

    def correlations(self, names):
        """Return rho of both criteria with the means of human scores, over the runs of seed 0."""
        rows = [self.mean([self.measure(name, 0)]) for name in names]
        titles = [title for title in MEANS if title in rows[0]["sets"]]
        found = []
        for kind in NAMES:
            by = [row["criteria"][kind] for row in rows]
            human = [[row["sets"][title]["value"] for row in rows] for title in titles]
            found.append([kind, *(f"{spearman(by, one):+.2f}" for one in human)])
        return markdown_table(["rho of the criterion with", *titles], found)

    def rows(self, runs, seeds):
        """Return name, mean figures and differences of the base model and of each run."""
        base = self.measure("base")
        found = {"base": self.mean([base])}
        first = next(iter(self.table["runs"]))
        names = (runs or [*self.table["runs"]]) if seeds else []
        chosen = self.chosen(names) if names else None
        for name in names:
            every = chosen is None or name in (first, chosen)
            drawn = range(seeds if every else 1)
            found[name] = self.mean([self.measure(name, seed) for seed in drawn])
        for name, row in found.items():
            for title, one in row["sets"].items():
                one["interval"] = _interval(one["replicates"])
                whole = row["sets"][title.partition(", first")[0]]
                if whole is not one:
                    drawn = np.divide(one["replicates"], whole["replicates"])
                    one["share of the whole"] = [one["value"] / whole["value"], *_interval(drawn)]
                if first in found and name not in (first, "base"):
                    by = found[first]["sets"][title]
                    drawn = np.subtract(one["replicates"], by["replicates"])
                    one["difference"] = [one["value"] - by["value"], *_interval(drawn)]
        return found


def _interval(drawn):
    found = interval(np.asarray(drawn))
    return found.low, found.high


def _mean(results):
    """Return the means over the seeds, with the least and the greatest value of each set."""
    sets = {}
    for title in results[0]["sets"]:
        values = [one["sets"][title]["value"] for one in results]
        drawn = np.mean([one["sets"][title]["replicates"] for one in results], axis=0)
        sets[title] = {"value": float(np.mean(values)), "least": min(values),
                       "most": max(values), "replicates": drawn.tolist()}  # fmt: skip
    criteria = {
        name: float(np.mean([one["criteria"][name] for one in results]))
        for name in results[0]["criteria"]
    }
    return {"sets": sets, "criteria": criteria, "seeds": len(results)}


def _joined(sets):
    """Return the mean of several sets of a run."""
    value = float(np.mean([one["value"] for one in sets]))
    drawn = np.mean([one["replicates"] for one in sets], axis=0).tolist()
    return {"value": value, "least": value, "most": value, "replicates": drawn}


def _cell(one):
    text = "{:.3f} [{:.3f}, {:.3f}]".format(one["value"], *one["interval"])
    if one["least"] < one["most"]:
        text += f", seeds {one['least']:.3f} to {one['most']:.3f}"
    if "share of the whole" in one:
        text += ", {:.1%} [{:.1%}, {:.1%}] of the whole".format(*one["share of the whole"])
    if "difference" in one:
        text += "; {:+.3f} [{:+.3f}, {:+.3f}]".format(*one["difference"])
    return text


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("comparisons", nargs="+", choices=list(TABLES), metavar="COMPARISON")
    parser.add_argument("--data", required=True, type=Path)
    parser.add_argument("--work", required=True, type=Path)
    parser.add_argument("--seeds", type=int, default=3, help="0: the base model alone")
    parser.add_argument("--runs", nargs="+", help="these alone (default: all)")
    parser.add_argument("--options", default="", help="of every run")
    parser.add_argument("--model", help="the base model, in place of the table's")
    parser.add_argument("--teacher", metavar="MODEL", help="in place of the table's")
    parser.add_argument("--steps", type=int, help="in place of the table's")
    parser.add_argument("--scored", type=int, help="pairs of each set of human scores")
    parser.add_argument("--json", type=Path, help="write the figures here, too")
    arguments = parser.parse_args()
    result = {}
    for name in arguments.comparisons:
        if not (arguments.model or "model" in TABLES[name]):
            parser.error(f"{name} has no base model of its own: pass --model")
        comparison = Comparison(name, arguments)
        rows = comparison.rows(arguments.runs, arguments.seeds)
        titles, criteria = ([*rows["base"][kind]] for kind in ("sets", "criteria"))
        criteria = [one for one in criteria if one.partition(", ")[0] not in NAMES or one in NAMES]
        cells = [
            [run, str(row["seeds"]), *(_cell(row["sets"][title]) for title in titles),
             *(f"{row['criteria'][title]:.3f}" for title in criteria)]
            for run, row in rows.items()
        ]  # fmt: skip
        print(f"{name}: {arguments.seeds} seeds\n")
        print(markdown_table([name, "seeds", *titles, *criteria], cells), "\n")
        names = [run for run in rows if run != "base"]
        if (chosen := comparison.chosen(names) if names else None) is not None:
            print(comparison.correlations(names), f"\n\nchosen: {chosen}\n")
        for row in rows.values():
            for one in row["sets"].values():
                del one["replicates"]
        result[name] = rows
    if arguments.json:
        write_whole(arguments.json, json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
