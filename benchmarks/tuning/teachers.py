"""Teach one encoder all languages by a tuned English one, and score every stage.

    python benchmarks/tuning/teachers.py --student MODEL --teacher all-mpnet-base-v2 --data DIR \
        --work FOLDER [--columns COLUMN ...] [--json FILE]

DIR holds words/LANG.txt, multisimlex/LANG.tsv, sts/stsb-LANG-test.tsv and, for the last column,
dictionaries bli/en-LANG.train.tsv. The commands of the product do the work, and what FOLDER has is
kept, so the run can be repeated after a kill. The columns: the student `before`; tuned on the words
of each language `by itself` (`word-plus`); taught `by the teacher`, which is tuned first, with
English words alone; and `by everything`: with all dictionaries, half of whose loss contrasts pairs.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path

from mirror_rt.evaluation import evaluate_similarity, read_scored_pairs
from mirror_rt.io.tables import markdown_table
from mirror_train import TorchEncoder

COLUMNS = ("before", "by itself", "by the teacher", "by everything")


def tune(out, *arguments):
    """Run `mirror-rt tune` unless `out` is there; return the seconds that are written beside it."""
    seconds = out.parent / f"{out.name}.seconds"
    if not out.exists():
        began = time.perf_counter()
        call = [sys.executable, "-m", "mirror_rt.cli", "tune", *arguments, "--out", out]
        subprocess.run(list(map(str, call)), check=True)
        seconds.write_text(f"{time.perf_counter() - began:.0f}")
    return int(seconds.read_text())


def dictionary_pairs(data, work):
    """Write English words, each with itself, and the dictionaries; return file and names."""
    dictionaries = sorted(data.glob("bli/en-*.train.tsv"))
    words = (data / "words" / "en.txt").read_text(encoding="utf-8").split("\n")
    rows = [f"{word}\t{word}" for word in words if word]
    for path in dictionaries:
        rows += [line for line in path.read_text(encoding="utf-8").split("\n") if line]
    file = work / "everything.tsv"
    file.write_text("\n".join(dict.fromkeys(rows)) + "\n", encoding="utf-8")
    return file, [path.name for path in dictionaries]


def sets_of(data):
    """Return the sets of scored pairs: name -> language and path."""
    return {
        f"{name}, {language}": (language, path)
        for name, pattern, cut in (
            ("Multi-SimLex", "multisimlex/*.tsv", slice(None)),
            ("STS-B", "sts/stsb-*-test.tsv", slice(5, -5)),
        )
        for path in sorted(data.glob(pattern))
        for language in [path.stem[cut]]
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--student", required=True)
    parser.add_argument("--teacher", default="all-mpnet-base-v2")
    parser.add_argument("--data", required=True, type=Path)
    parser.add_argument("--work", required=True, type=Path)
    parser.add_argument("--columns", nargs="+", choices=COLUMNS, default=COLUMNS)
    parser.add_argument("--json", type=Path, help="write the figures here, too")
    arguments = parser.parse_args()
    student, data, work = arguments.student, arguments.data, arguments.work
    work.mkdir(parents=True, exist_ok=True)
    english, teacher = data / "words" / "en.txt", work / "teacher"
    found, seconds = sets_of(data), {}

    def run(name, folder, *options):
        seconds[name] = tune(folder, *options)
        return folder

    def taught(name, folder, *options):
        if "teacher" not in seconds:
            run("teacher", teacher, arguments.teacher, "--recipe", "word", "--data", english)
        return run(name, work / folder, student, "--teacher", teacher, "--data", *options)

    encoders = []  # name of a column, language or None for all, folder
    if "before" in arguments.columns:
        encoders.append(("before", None, student))
    if "by itself" in arguments.columns:
        for words in sorted((data / "words").glob("*.txt")):
            one = words.stem
            if one in {language for language, _ in found.values()}:
                options = (student, "--recipe", "word-plus", "--data", words, "--lang", one)
                folder = run(f"by itself, {one}", work / f"own-{one}", *options)
                encoders.append(("by itself", one, folder))
    if "by the teacher" in arguments.columns:
        encoders.append(("by the teacher", None, taught("by the teacher", "taught", english)))
    if "by everything" in arguments.columns:
        pairs, dictionaries = dictionary_pairs(data, work)
        options = (pairs, "--teacher-weight", "0.5")
        encoders.append(("by everything", None, taught("by everything", "everything", *options)))
        print("dictionaries:", ", ".join(dictionaries) or "none")
    rows = {name: {} for name in found}
    for column, only, folder in encoders:
        encoder = TorchEncoder.load(folder)
        for name, (language, path) in found.items():
            if only in (None, language):
                rows[name][column] = evaluate_similarity(encoder, read_scored_pairs(path))
    lines = [
        [name, *(f"{row[column]:.3f}" if column in row else "" for column in arguments.columns)]
        for name, row in rows.items()
    ]
    print(markdown_table(["set", *arguments.columns], lines))
    print("seconds:", ", ".join(f"{name} {taken}" for name, taken in seconds.items()))
    if arguments.json:
        result = {"spearman": rows, "seconds": seconds}
        arguments.json.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
