"""Choose how a joint run follows its teacher without human scores, and show what they would say.

    python benchmarks/tuning/teacher_options.py --student MODEL --teacher MODEL --data DIR \
        --dictionary FILE [FILE ...] --work FOLDER [--chosen-on en,ru,zh,ar] [--steps 100] \
        [--options OPTIONS] [--run NAME=OPTIONS ...] [--scored PAIRS] [--seeds 3] [--json FILE]

Each candidate is the command of the product with options of its own beside OPTIONS, on words of
these languages (DIR/words/TAG.txt) and these dictionaries (en-TAG.*, WORD tab WORD) alone, with one
seed. `--uncentred` as an option leaves the mean of the teacher's vectors on. From every dictionary
300 words with their translations are kept from all candidates. They are what is measured by:

- agreement, which chooses: Spearman's rho of the teacher's cosines of any two of the words, and of
  the candidate's cosines of their translations, and of the words themselves; the mean of these;
- found: how near the translation of a word is found among the others, the mean of 1 / rank.

Beside them stand human scores, DIR/multisimlex/TAG.tsv, of those languages and of all others, which
nothing was tuned or chosen on. Then the candidate that is chosen and the first are tuned with
further seeds, and compared with bootstrap intervals. The candidates keep their folders and rows in
FOLDER: after a kill, the same command goes on from the last checkpoint.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from functools import cache
from pathlib import Path

import numpy as np
from teachers import sets_of, tune

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # for the other folders

from helpers import write_whole

from mirror_rt import Encoder
from mirror_rt.evaluation import read_scored_pairs
from mirror_rt.evaluation.bootstrap import interval, replicates
from mirror_rt.evaluation.readers.tables import read_lexicon
from mirror_rt.evaluation.similarity import cosines
from mirror_rt.evaluation.statistics import RankCorrelation, spearman
from mirror_rt.io.tables import markdown_table
from mirror_train.languages.joint import HeldOut

KEPT, SAMPLES = 300, 1000
CANDIDATES = (
    "as it is=",
    "temperature .05=--temperature 0.05",
    "temperature .2=--temperature 0.2",
    "weight .25=--teacher-weight 0.25",
    "weight .75=--teacher-weight 0.75",
    "uncentred=--uncentred",
    "half the steps=--steps {half}",
    "twice the steps=--steps {twice}",
    "last four layers=--frozen-layers 8",
)
UNCENTRED = (
    "import sys\n"
    "from mirror_train.training import teacher\n"
    "teacher.centred = lambda vectors: vectors\n"
    "from mirror_rt.cli import main\n"
    "sys.exit(main())\n"
)


class Unseen:
    """Words with translations that no candidate is tuned on, and the strings that are left."""

    def __init__(self, data, dictionaries, languages, work):
        self.held, self.files = {}, []
        for path in dictionaries:
            entries = list(dict(reversed(read_lexicon(path))).items())  # first translations
            rows = np.random.default_rng(0).permutation(len(entries))[:KEPT]
            self.held[path.stem[3:5]] = [entries[row] for row in sorted(rows)]
        kept = {word for held in self.held.values() for pair in held for word in pair}
        for path in dictionaries:
            lines = ["\t".join(pair) for pair in read_lexicon(path) if not kept & {*pair}]
            self.files.append(work / path.name)
            write_whole(self.files[-1], "\n".join(lines) + "\n")
        self.words = work / "words"
        self.words.mkdir(exist_ok=True)
        for one in languages:
            lines = (data / "words" / f"{one}.txt").read_text(encoding="utf-8").split("\n")
            left = [line for line in lines if line and line not in kept]
            write_whole(self.words / f"{one}.txt", "\n".join(left) + "\n")

    def criteria(self, encoder, teacher):
        """Return agreement and found, of the mean over languages and of each."""
        agreed, found = {}, {}
        for language, held in self.held.items():
            words, translations = map(list, zip(*held, strict=True))
            wanted = similarities(teacher, words)
            agreed[f"en of {language}"] = spearman(similarities(encoder, words), wanted)
            agreed[language] = spearman(similarities(encoder, translations), wanted)
            among = list(dict.fromkeys(translations))
            found[language] = HeldOut(language, held, among).reciprocal_rank(encoder)
        means = {"agreement": agreed, "found": found}
        each = {f"{kind}, {one}": value for kind, of in means.items() for one, value in of.items()}
        return {kind: float(np.mean([*of.values()])) for kind, of in means.items()} | each


def similarities(encoder, texts):
    """Return the cosines of every two texts, as a list."""
    x = encoder.encode(texts, normalize_embeddings=True)
    return (x @ x.T)[np.triu_indices(len(texts), 1)]


def human_scores(encoder, sets, most):
    """Return value and bootstrap replicates of each set, of which at most so many pairs count."""
    found = {}
    for language, path in sets.values():
        pairs = read_scored_pairs(path)
        rows = np.random.default_rng(0).permutation(len(pairs.scores))[:most]
        first, second = ([side[row] for row in rows] for side in (pairs.first, pairs.second))
        measure = RankCorrelation(cosines(encoder, first, second), np.array(pairs.scores)[rows])
        drawn = replicates(measure, len(rows), samples=SAMPLES, seed=0, name=language)
        found[language] = {"value": measure(), "replicates": drawn.tolist()}
    return found


class Study:
    """The candidates, each of which is tuned and measured once for each seed."""

    def __init__(self, arguments):
        self.given = arguments
        self.languages = arguments.chosen_on.split(",")
        self.work = arguments.work
        self.work.mkdir(parents=True, exist_ok=True)
        found = sets_of(arguments.data)
        self.sets = {name: one for name, one in found.items() if name.startswith("Multi-SimLex")}
        self.unseen = Unseen(arguments.data, arguments.dictionary, self.languages, self.work)
        runs = arguments.run or CANDIDATES
        self.options = {name: options for name, _, options in (one.partition("=") for one in runs)}
        self.teacher = cache(lambda: Encoder.load(arguments.teacher))

    def tuned(self, name, seed):
        """Tune a candidate unless that was done; return its folder and the seconds it took."""
        out = self.work / f"{name.replace(' ', '-')}-{seed}"
        steps = self.given.steps
        own = self.options[name].format(half=steps // 2, twice=2 * steps)
        words = shlex.split(f"--steps {steps} {self.given.options} {own}")
        code = ("-c", UNCENTRED) if "--uncentred" in words else ("-m", "mirror_rt.cli")
        dictionaries = [part for path in self.unseen.files for part in ("--dictionary", path)]
        seconds = tune(
            out, self.given.student, "--lang", self.given.chosen_on, "--joint", "--words",
            self.unseen.words, *dictionaries, "--teacher", self.given.teacher, "--seed", seed,
            *(word for word in words if word != "--uncentred"), "--resume", "--checkpoint-every",
            self.given.checkpoint_every, code=code,
        )  # fmt: skip
        return out, seconds

    def row(self, name, seed=None):
        """Return the figures of a candidate, or of the student as it is, which are kept."""
        path = self.work / f"{name.replace(' ', '-')}-{seed}.json"
        if not path.exists():
            folder, seconds = (self.given.student, 0) if seed is None else self.tuned(name, seed)
            encoder = Encoder.load(folder)
            criteria = self.unseen.criteria(encoder, self.teacher())
            sets = human_scores(encoder, self.sets, self.given.scored)
            encoder.close()
            figures = {"criteria": criteria, "sets": sets, "seconds": seconds}
            write_whole(path, json.dumps(figures))
        return json.loads(path.read_text(encoding="utf-8"))

    def mean(self, row, others):
        """Return the mean human score of the languages chosen on, or of all others."""
        return np.mean([row["sets"][one]["value"] for one in self.of(row, others)])

    def of(self, row, others):
        """Return the languages chosen on that have scores, or all others that have."""
        return [one for one in row["sets"] if (one in self.languages) != others]

    def ranked(self):
        """Measure the student and each candidate with one seed; return the rows, best first."""
        rows = {"student": self.row("student")}
        rows |= {name: self.row(name, 0) for name in self.options}
        return dict(sorted(rows.items(), key=lambda one: -one[1]["criteria"]["agreement"]))

    def over_seeds(self, name):
        """Return the mean value and replicates of all seeds, of each set and of the others' mean.

        Each is an array: the value, then the replicates.
        """
        rows = [self.row(name, seed) for seed in range(self.given.seeds)]
        found = {
            one: np.mean([(row["sets"][one]["value"], *row["sets"][one]["replicates"])
                          for row in rows], axis=0)
            for one in rows[0]["sets"]
        }  # fmt: skip
        others = [found[one] for one in self.of(rows[0], others=True)]
        return found | {"the others": np.mean(others, axis=0)}

    def compared(self, chosen, first):
        """Return [value, low, high] of both in each language, and of their difference."""
        sides = {name: self.over_seeds(name) for name in dict.fromkeys((first, chosen))}
        if chosen != first:
            by = sides[first]
            sides["difference"] = {one: row - by[one] for one, row in sides[chosen].items()}
        return {
            name: {one: [row[0], (kept := interval(row[1:])).low, kept.high]
                   for one, row in side.items()}
            for name, side in sides.items()
        }  # fmt: skip


def correlations(study, rows):
    """Return rho of each criterion, over the candidates, with both means of human scores."""
    candidates = [row for name, row in rows.items() if name != "student"]
    found = []
    for kind in ("agreement", "found"):
        by = [row["criteria"][kind] for row in candidates]
        means = [[study.mean(row, others) for row in candidates] for others in (False, True)]
        found.append([kind, *(f"{spearman(by, human):+.2f}" for human in means)])
    return found


def tables(study, rows, compared):
    """Return the tables of the candidates, of the criteria, and of those with further seeds."""
    means = [study.given.chosen_on, "the others"]
    languages = [*study.of(rows["student"], False), *study.of(rows["student"], True)]
    cells = [
        [name, *(f"{row['criteria'][kind]:.3f}" for kind in ("agreement", "found")),
         *(f"{study.mean(row, others):.3f}" for others in (False, True)),
         *(f"{row['sets'][one]['value']:.3f}" for one in languages)]
        for name, row in rows.items()
    ]  # fmt: skip
    seeds = [
        [one, *("{:.3f} [{:.3f}, {:.3f}]".format(*side[one]) for side in compared.values())]
        for one in [*languages, "the others"]
    ]
    return [
        markdown_table(["candidate", "agreement", "found", *means, *languages], cells),
        markdown_table(["rho of the criterion with", *means], correlations(study, rows)),
        markdown_table([f"{study.given.seeds} seeds", *compared], seeds),
    ]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--student", required=True)
    parser.add_argument("--teacher", required=True)
    parser.add_argument("--data", required=True, type=Path)
    parser.add_argument("--dictionary", required=True, type=Path, nargs="+")
    parser.add_argument("--work", required=True, type=Path)
    parser.add_argument("--chosen-on", default="en,ru,zh,ar", metavar="TAG,TAG")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--scored", type=int, help="pairs of each set of human scores")
    parser.add_argument("--options", default="", help="of every candidate")
    parser.add_argument("--run", action="append", metavar="NAME=OPTIONS")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--checkpoint-every", type=int, default=10)
    parser.add_argument("--json", type=Path, help="write the figures here, too")
    arguments = parser.parse_args()
    study = Study(arguments)
    rows = study.ranked()
    first = next(iter(study.options))
    chosen = next(name for name in rows if name != "student")
    compared = study.compared(chosen, first)
    print(*tables(study, rows, compared), f"chosen: {chosen}", sep="\n\n")
    if arguments.json:
        for row in rows.values():
            row["sets"] = {language: one["value"] for language, one in row["sets"].items()}
        result = {"rows": rows, "chosen": chosen, "compared": compared}
        write_whole(arguments.json, json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
