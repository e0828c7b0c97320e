"""Follow a run of tuning step by step: the score, and what is known without scores.

    python benchmarks/tuning/movement.py --base MODEL --data DATA --out FILE.json [--seeds 42]
        [--runs base:en:thesaurus base:fr:en-fr.tsv ...] [--steps 20 --every 5] [--plot FILE.png]

A run is BASE:LANGUAGE:PAIRS. BASE is `base`, the model of --base, or another model; PAIRS is
`thesaurus`, the one that is installed for the language ($MIRROR_RT_THESAURI), of which one pair in
20 and 50 at least are held out and the others come in any order, not in the tiers of `tune`,
`words`, its 10,000 most frequent words, or a table of pairs. The recipe is `word-plus` for words
and `synonyms` for pairs, without a budget. FILE keeps each run, and those that it has are not
repeated. Every few steps it gets

- rho: Spearman's correlation on DATA/multisimlex/LANGUAGE.tsv; even and odd: on the pairs with such
  ids, by which to choose and to test,
- mrr: the mean reciprocal rank of the held-out synonyms among the 2,500 most frequent words,
- kept: the share of each word's ten nearest, of the 1,000 most frequent words, that it has kept.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # for the other folders

from helpers import write_whole

from mirror_rt.evaluation import read_scored_pairs
from mirror_rt.evaluation.statistics import RankCorrelation
from mirror_rt.io.rows import read_table
from mirror_train.compute.precision import resolve_precision
from mirror_train.compute.processes import joined_processes
from mirror_train.data.batches import Batches
from mirror_train.data.strings import load_training_data, word_list
from mirror_train.data.thesaurus import FREQUENT, load_thesaurus
from mirror_train.data.training_data import TrainingData
from mirror_train.model.pooling_head import Head
from mirror_train.model.pretrained import load_pretrained
from mirror_train.model.torch_encoder import TorchEncoder
from mirror_train.recipes.recipe import load_recipe
from mirror_train.training.checkpoint import CheckpointStore
from mirror_train.training.loop import Selection
from mirror_train.training.mirror import mirror_trainer
from mirror_train.training.whitening import fit_whitening

CANDIDATES, NEIGHBOURHOOD, NEAREST = 2500, 1000, 10


def pairs_of(language, source):
    """Return the pairs to tune on, and those of a thesaurus that are held out."""
    if source == "words":
        return word_list(language), []
    if source != "thesaurus":
        return load_training_data(Path(source), language=language), []
    data = load_thesaurus(language, top=FREQUENT)
    pairs = list(zip(data.first, data.second, strict=True))
    chosen = np.random.default_rng(0).permutation(len(pairs))[: min(200, max(50, len(pairs) // 20))]
    held = [pairs[row] for row in chosen]
    words = {word for pair in held for word in pair}
    kept = [pair for pair in pairs if not words & {*pair}]
    return TrainingData.of_pairs(kept, data.source, language=language), held


class Measures:
    """What is measured of a model after some steps, beside what the base model had."""

    def __init__(self, encoder, scored, ids, frequent, held, precision):
        self.encoder, self.scored, self.held = encoder, scored, held
        everything = np.ones(len(ids), dtype=bool)
        self.halves = {"rho": everything, "even": ids % 2 == 0, "odd": ids % 2 == 1}
        self.bf16 = precision == "bf16"
        self.frequent = frequent[:CANDIDATES]
        words = [*self.frequent, *scored.first, *scored.second, *(w for pair in held for w in pair)]
        self.rows = {word: row for row, word in enumerate(dict.fromkeys(words))}
        self.nearest = None

    def __call__(self):
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16, enabled=self.bf16):
            raw = self.encoder.encode([*self.rows], normalize_embeddings=False)
        z = np.asarray(raw, dtype=np.float32)
        z -= z[: len(self.frequent)].mean(axis=0)  # as a run's last act, `centre_again`
        z /= np.linalg.norm(z, axis=1, keepdims=True)
        found = self._rho(z) | {"kept": self._kept(z[:NEIGHBOURHOOD])}
        return found | ({"mrr": self._mrr(z)} if self.held else {})

    def _rho(self, z):
        first, second = self.scored.first, self.scored.second
        pairs = zip(first, second, strict=True)
        cosines = np.array([z[self.rows[a]] @ z[self.rows[b]] for a, b in pairs])
        return {
            name: float(RankCorrelation(cosines[chosen], self.scored.scores[chosen])())
            for name, chosen in self.halves.items()
        }

    def _kept(self, z):
        cosines = z @ z.T
        np.fill_diagonal(cosines, -1)
        nearest = np.argsort(-cosines, axis=1)[:, :NEAREST]
        self.nearest = nearest if self.nearest is None else self.nearest
        pairs = zip(nearest, self.nearest, strict=True)
        return float(np.mean([len({*a} & {*b}) / NEAREST for a, b in pairs]))

    def _mrr(self, z):
        ranks = []
        for pair in self.held:
            for word, answer in (pair, pair[::-1]):
                own = z[self.rows[word]]
                nearer = z[: len(self.frequent)] @ own > z[self.rows[answer]] @ own
                others = {self.frequent[row] for row in np.flatnonzero(nearer)} - {word, answer}
                ranks.append(1 + len(others))
        return float(np.mean(1 / np.array(ranks)))


def follow(model, language, source, seed, arguments):
    """Tune, and return what was measured before the first step and after every few."""
    data, held = pairs_of(language, source)
    name = "word-plus" if source == "words" else "synonyms"
    recipe = load_recipe(name).replace(steps=arguments.steps)
    path = arguments.data / "multisimlex" / f"{language}.tsv"
    scored = read_scored_pairs(path)
    ids = np.array([int(cell) for cell in read_table(path).column("pair_id")])
    with joined_processes("cpu") as processes:
        precision = resolve_precision("auto", processes.device)
        base = load_pretrained(model, dropout=recipe.dropout)
        plain = TorchEncoder(base, head=Head([recipe.fixed_pooling]), device=processes.device)
        layer = fit_whitening(base, data, recipe, seed=seed, device=processes.device)
        head = Head([recipe.fixed_pooling], [layer])
        batches = Batches(
            data, recipe, loss_batch=recipe.batch_size, seed=seed, mask_token=base.mask_token,
            processes=processes,
        )  # fmt: skip
        trainer = mirror_trainer(
            base, batches, recipe, precision=precision, processes=processes, layers=head.layers
        )
        frequent = word_list(language).first
        encoder = TorchEncoder(base, head=head, device=processes.device)
        measure = Measures(encoder, scored, ids, frequent, held, precision)
        base.model.eval()
        vectors = np.asarray(plain.encode(frequent[:NEIGHBOURHOOD], normalize_embeddings=False))
        curve = [measure()]
        trainer.selection = Selection(lambda: (0.0, curve.append(measure())), arguments.every)
        trainer.run(CheckpointStore(Path(tempfile.mkdtemp()) / "out", {}))
    steps = [min(number * arguments.every, arguments.steps) for number in range(len(curve))]
    rows = [
        {"movement": round(step * recipe.learning_rate, 9)} | found
        for step, found in zip(steps, curve, strict=True)
    ]
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    cosines = (unit @ unit.T)[np.triu_indices(len(unit), 1)]
    return {"pairs": len(data), "room": float(1 - cosines.mean()), "curve": rows}


def plot(runs, path):
    """Draw the score of each run against what its weights have moved: pairs, and words beside."""
    from matplotlib.figure import Figure

    words = {name: run for name, run in runs.items() if name.endswith(":words")}
    pairs = {name: run for name, run in runs.items() if name not in words}
    drawn = {title: found for title, found in (("pairs", pairs), ("words", words)) if found}
    figure = Figure(figsize=(6.2 * len(drawn), 4.2), layout="constrained")
    every = figure.subplots(1, len(drawn), sharey=True, squeeze=False)[0]
    for axes, (title, found) in zip(every, drawn.items(), strict=True):
        for name, run in found.items():
            x = [1e4 * row["movement"] for row in run["curve"]]
            (line,) = axes.plot(x, [row["rho"] for row in run["curve"]], marker="o", markersize=3)
            axes.annotate(name.removesuffix(":words"), (x[-1], run["curve"][-1]["rho"]),
                          xytext=(5, -3), textcoords="offset points", color=line.get_color(),
                          fontsize=8)  # fmt: skip
        axes.set(title=title, xlabel="sum of the learning rates, 1e-4", ylabel="Spearman's rho")
        axes.margins(x=0.2)
        axes.set_xlim(left=0)
        axes.grid(alpha=0.3)
    figure.savefig(path, dpi=110)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--base", required=True)
    parser.add_argument("--data", required=True, type=Path)
    parser.add_argument("--out", required=True, type=Path)
    parser.add_argument("--runs", nargs="+", default=[], metavar="BASE:LANGUAGE:PAIRS")
    parser.add_argument("--seeds", nargs="+", type=int, default=[42])
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--every", type=int, default=5)
    parser.add_argument("--plot", type=Path, help="draw the runs of FILE that have the first seed")
    arguments = parser.parse_args()
    runs = json.loads(arguments.out.read_text(encoding="utf-8")) if arguments.out.exists() else {}
    for run in arguments.runs:
        model, language, source = run.split(":", 2)
        for seed in arguments.seeds:
            name = f"{model}:{language}:{Path(source).name}:{seed}"
            if name not in runs:
                known = arguments.base if model == "base" else model
                runs[name] = follow(known, language, source, seed, arguments)
                write_whole(arguments.out, json.dumps(runs, indent=1) + "\n")
    for name, run in runs.items():
        print(f"{name}: {run['pairs']} pairs, room {run['room']:.3f}")
        for row in run["curve"]:
            print("  ", *(f"{key} {value:.4g}" for key, value in row.items()))
    if arguments.plot:
        suffix = f":{arguments.seeds[0]}"
        drawn = {n.removesuffix(suffix): run for n, run in runs.items() if n.endswith(suffix)}
        plot({n.removeprefix("base:"): run for n, run in drawn.items()}, arguments.plot)


if __name__ == "__main__":
    main()
