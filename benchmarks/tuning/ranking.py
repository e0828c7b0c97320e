"""Train a sparse and a late-interaction encoder on duplicate questions, and rank others by them.

    python benchmarks/tuning/ranking.py --data ../shared/data --system splade --steps 200 --out DIR
    python benchmarks/tuning/ranking.py --data ../shared/data --system colbert --steps 200 --out DIR

Pairs: those of DATA/pairs/quora-dev.csv that are marked as duplicates, the first question as the
query and the second as its document. Of 500 pairs, none of which shares a question with another,
directly or through others, the queries are held out. Each looks for its document among those of
all pairs. Reported: accuracy@1 and MRR@10, before training (the base model with a new head, which
one step at a rate of nearly 0 leaves as it is) and after it; of a sparse encoder the mean number
of words of a query and of a document, too. `dense` ranks by the cosines of the base model.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from mirror_rt import Encoder, MultiVectorEncoder, SparseEncoder
from mirror_rt.io.rows import read_table
from mirror_train import TrainConfig, TrainingData, TuneReport
from mirror_train.systems import ColbertRecipe, SpladeRecipe, train

HELD_OUT = 500
_PART = 1000  # documents
RECIPES = {
    "splade": SpladeRecipe(max_length=64),
    "colbert": ColbertRecipe(max_length=64),
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--system", choices=[*RECIPES, "dense"], required=True)
    parser.add_argument("--model", default="all-MiniLM-L6-v2")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--learning-rate", type=float, default=1e-4)
    parser.add_argument("--flops", type=float, help="of queries, and of documents 60 % of it")
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    training, queries, answers, documents = read_pairs(given.data / "pairs" / "quora-dev.csv")
    print(f"{len(training)} pairs, {len(queries)} queries held out, {len(documents)} documents")

    def report(label: str, score: Callable[[list[str], list[str]], Any]) -> None:
        scores = np.asarray(score(queries, documents))
        own = scores[np.arange(len(queries)), answers]
        ranks = 1 + (scores > own[:, None]).sum(axis=1)
        print(f"{label}: accuracy@1 {(ranks == 1).mean():.3f}, "
              f"MRR@10 {np.where(ranks <= 10, 1 / ranks, 0).mean():.3f}")  # fmt: skip

    if given.system == "dense":
        encoder = Encoder.load(given.model)
        report("dense", lambda a, b: encoder.encode(a) @ encoder.encode(b).T)
        return
    score = {"splade": sparse, "colbert": late}[given.system]
    for label, steps, rate in (
        ("before", 1, 1e-12),
        ("after", given.steps, given.learning_rate),
    ):
        recipe = RECIPES[given.system].replace(steps=steps, learning_rate=rate)
        if given.flops is not None:
            recipe = recipe.replace(query_flops=given.flops, document_flops=0.6 * given.flops)
        config = TrainConfig(out=given.out / label, model=given.model, recipe=recipe)
        began = time.perf_counter()
        made: TuneReport = train(given.system, training, config)
        print(f"{steps} steps in {time.perf_counter() - began:.0f} s, "
              f"loss {made.stats.losses[0]:.3f} -> {made.stats.losses[-1]:.3f}")  # fmt: skip
        report(f"{given.system} {label}", partial(score, given.out / label))


def read_pairs(path: Path) -> tuple[TrainingData, list[str], list[int], list[str]]:
    """Return pairs to train on, held-out queries, the rows of their documents, and these."""
    table = read_table(path)
    names = ("sentence1", "sentence2", "is_duplicate")
    rows = zip(*map(table.column, names), strict=True)
    pairs = list(dict.fromkeys((a, b) for a, b, same in rows if same == "1.0" and a != b))
    groups = TrainingData.of_pairs(pairs, path.name).group_ids or []
    sizes = np.bincount(groups)
    chosen = [row for row, group in enumerate(groups) if sizes[group] == 1][:HELD_OUT]
    documents = list(dict.fromkeys(b for _, b in pairs))
    places = {text: place for place, text in enumerate(documents)}
    rest = [pair for row, pair in enumerate(pairs) if row not in {*chosen}]
    return (
        TrainingData.of_pairs(rest, path.name, language="en"),
        [pairs[row][0] for row in chosen],
        [places[pairs[row][1]] for row in chosen],
        documents,
    )


def sparse(folder: Path, queries: list[str], documents: list[str]) -> Any:
    """Return the products of the weights of words."""
    with SparseEncoder.load(folder) as encoder:
        first = encoder.encode_query(queries)
        parts = [documents[start : start + _PART] for start in range(0, len(documents), _PART)]
        found, words, dense = [], 0, first.toarray()
        for part in parts:  # all words of all documents may have weights before training
            second = encoder.encode_document(part)
            words += len(second.indices)
            found.append(dense @ second.toarray().T)
    print(f"words with a weight: {len(first.indices) / len(queries):.0f} of a query, "
          f"{words / len(documents):.0f} of a document")  # fmt: skip
    return np.concatenate(found, axis=1)


def late(folder: Path, queries: list[str], documents: list[str]) -> Any:
    """Return MaxSim."""
    with MultiVectorEncoder.load(folder) as encoder:
        return encoder.similarity(encoder.encode_query(queries), encoder.encode_document(documents))


if __name__ == "__main__":
    main()
