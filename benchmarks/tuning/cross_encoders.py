"""Measure cross-encoders that `mirror-rt train` has made, on pairs that they have not seen.

    python benchmarks/tuning/cross_encoders.py data DATA --out SETS
    python benchmarks/tuning/cross_encoders.py evaluate DATA MODEL [MODEL ...]

`data` writes SETS/labelled.tsv (pairs of the STS benchmark with their scores), SETS/both.tsv (these
and SICK's, whose scores of 1 to 5 become 0 to 5) and SETS/pairs.tsv (without scores, each pair
once). No text of them is in the development or test set of the STS benchmark:
DATA/pairs/sts-train.csv mixes the benchmark's three parts, and SICK shares captions. `evaluate`
prints Spearman's rho on the test set with a 95 % interval, and how much it is above that of the
first model (2,000 paired bootstrap samples). A MODEL is a folder, of an encoder or of a
cross-encoder; the latter is run by sentence-transformers.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np
import numpy.typing as npt

from mirror_rt.evaluation import ScoredPairs, read_scored_pairs
from mirror_rt.evaluation.bootstrap import difference, interval, replicates
from mirror_rt.evaluation.similarity import cosines
from mirror_rt.evaluation.statistics import RankCorrelation
from mirror_rt.io.atomic import new_folder
from mirror_train.data.labelled_readers import read_similarity
from mirror_train.data.pair_data import read_unlabelled_pairs
from mirror_train.model.torch_encoder import TorchEncoder

SAMPLES = 2000


def plain(text: str) -> str:
    """Return a text without case, spaces and punctuation, in which published copies differ."""
    return "".join(filter(str.isalnum, text.lower()))


def write_sets(data: Path, out: Path, *, sick: int) -> None:
    """Write the training sets; `sick` is the number of SICK's pairs, drawn at random."""
    held = [read_scored_pairs(data / f"sts/stsb-en-{part}.tsv") for part in ("dev", "test")]
    seen = {plain(text) for pairs in held for text in (*pairs.first, *pairs.second)}

    def kept(first: list[str], second: list[str]) -> list[int]:
        return [
            i
            for i, pair in enumerate(zip(first, second, strict=True))
            if not {*map(plain, pair)} & seen and not any("\t" in text for text in pair)
        ]

    sts = read_similarity(data / "pairs/sts-train.csv")
    sts = sts.take(kept(sts.first, sts.second or []))
    other = read_unlabelled_pairs(data / "sts/sick-r-all.tsv")
    scored = read_scored_pairs(data / "sts/sick-r-all.tsv")
    rated = [
        f"{scored.first[i]}\t{scored.second[i]}\t{(scored.scores[i] - 1) / 4 * 5:.3f}"
        for i in kept(list(scored.first), list(scored.second))
    ]
    rows = np.random.default_rng(0).permutation(kept(other.first, other.second or []))
    other = other.take(rows[:sick])
    with new_folder(out, overwrite=False) as folder:
        lines = [f"{a}\t{b}\t{y:g}" for (a, b), y in zip(sts.items(), sts.targets, strict=True)]
        header = "sentence1\tsentence2\tscore"
        (folder / "labelled.tsv").write_text("\n".join([header, *lines, ""]), encoding="utf-8")
        (folder / "both.tsv").write_text("\n".join([header, *lines, *rated, ""]), encoding="utf-8")
        lines = [f"{a}\t{b}" for a, b in [*sts.items(), *other.items()]]
        (folder / "pairs.tsv").write_text("\n".join([*lines, ""]), encoding="utf-8")
    print(f"{out}: {len(sts)} labelled pairs, and {len(lines)} pairs without labels")


def scores(model: Path, pairs: ScoredPairs) -> npt.NDArray[np.float64]:
    """Return what a model says of each pair, float64 [n]."""
    config = json.loads((model / "config.json").read_text(encoding="utf-8"))
    if not config["architectures"][0].endswith("ForSequenceClassification"):
        return cosines(TorchEncoder.load(model, device="cpu"), pairs.first, pairs.second)
    from sentence_transformers import CrossEncoder

    found = CrossEncoder(str(model), device="cpu").predict(
        list(zip(pairs.first, pairs.second, strict=True)), show_progress_bar=False
    )
    return np.asarray(found, np.float64)


def evaluate(data: Path, models: list[Path]) -> None:
    """Print a row for each model."""
    pairs = read_scored_pairs(data / "sts/stsb-en-test.tsv")
    first = None
    print("| model | STS-B en test | above the first |\n|---|---|---|")
    for model in models:
        rho = RankCorrelation(scores(model, pairs), pairs.scores)
        found = replicates(rho, len(pairs.scores), samples=SAMPLES, seed=0, name="stsb-en")
        own, gain = interval(found), "-"
        if first is not None:
            more = difference(rho(), first[0], found, first[1])
            gain = f"{more.value:+.4f} [{more.interval.low:+.4f}, {more.interval.high:+.4f}]"
        first = first or (rho(), found)
        print(f"| {model} | {rho():.4f} [{own.low:.4f}, {own.high:.4f}] | {gain} |", flush=True)


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    sets = commands.add_parser("data")
    sets.add_argument("data", type=Path)
    sets.add_argument("--out", type=Path, required=True)
    sets.add_argument("--sick", type=int, default=10_000, help="pairs of SICK (default: all)")
    measured = commands.add_parser("evaluate")
    measured.add_argument("data", type=Path)
    measured.add_argument("models", type=Path, nargs="+")
    given = parser.parse_args()
    if given.command == "data":
        write_sets(given.data, given.out, sick=given.sick)
    else:
        evaluate(given.data, given.models)


if __name__ == "__main__":
    main()
