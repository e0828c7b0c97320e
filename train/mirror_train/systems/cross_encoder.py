"""Train a cross-encoder on labelled pairs: by scores, or by classes."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np

from mirror_rt.cli.parsing.options import Given, Group, Help
from mirror_rt.errors import ConfigError, DataError, Setting
from mirror_rt.evaluation import ScoredPairs, spearman
from mirror_rt.schema import least
from mirror_train.compute.launch import is_first_process
from mirror_train.data.labelled_examples import Examples
from mirror_train.data.pair_data import read_labelled_pairs
from mirror_train.data.passes import TaskBatches
from mirror_train.data.tasks import names_in
from mirror_train.recipes.recipe import Hyperparameters, NotNegative, Positive, Rate
from mirror_train.systems.options import Training, print_result, run_options
from mirror_train.systems.system import System
from mirror_train.training.run_config import TrainConfig

if TYPE_CHECKING:
    from torch import Tensor

    from mirror_rt.tokens.padding import RaggedTokens
    from mirror_train.model.cross_encoder import TorchCrossEncoder
    from mirror_train.model.pooling_head import Head
    from mirror_train.training.loop import Trainer
    from mirror_train.training.run import Run, TuneReport

# The option of the columns of two texts.
Columns = Annotated[
    str | None,
    Help("the columns of the two texts (default: text1 and text2, sentence1 and sentence2, and "
         "other usual names); numbers from 1 on for a table without a header", "A,B"),
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class PairRecipe(Hyperparameters):
    """The hyper-parameters of a cross-encoder's steps (defaults: Trans-Encoder's code)."""

    epochs: Positive = 1
    steps: Annotated[int | None, least(1)] = None
    batch_size: Annotated[int, least(1)] = 32
    learning_rate: Positive = 2e-5
    weight_decay: NotNegative = 0.01
    warm_up: Rate = 0.1
    decay: bool = True
    dropout: Rate = 0.1
    max_length: Annotated[int, least(5)] = 128


@dataclass(frozen=True, slots=True)
class CrossEncoderRecipe(PairRecipe):
    """The hyper-parameters of a cross-encoder that learns from labelled pairs.

    Attributes:
        both_orders: train on each pair in both orders, for texts of one kind.
        lowest: the score that becomes 0 (default: the whole number below all scores).
        highest: the score that becomes 1 (default: the whole number above all scores).
    """

    both_orders: bool = False
    lowest: float | None = None
    highest: float | None = None


@dataclass(frozen=True, kw_only=True)
class PairFile:
    """The labelled pairs to train on."""

    data: Annotated[Path, Help("a table of labelled pairs, with a header", "FILE")]
    fields: Columns = None
    label_field: Annotated[
        str | None, Help("the column of the label (default: score, label and other usual names)")
    ] = None
    labels: Annotated[
        str | None,
        Help("the classes in order, for labels that are numbers but no scores", "NAME,NAME"),
    ] = None

    def read(self) -> Examples:
        """Read the pairs, and print how many there are."""
        found = read_labelled_pairs(
            self.data,
            fields=names_in(self.fields),
            label_field=self.label_field,
            labels=names_in(self.labels),
        )
        kind = f"classes {', '.join(found.labels)}" if found.labels else "scores"
        if is_first_process():
            print(
                f"{found.source}: {len(found)} pairs with {kind} ({found.left_out} without a label "
                "or a text left out)"
            )
        return found


@dataclass(frozen=True, kw_only=True)
class TrainCrossEncoder(Training):
    """Train a cross-encoder on labelled pairs, from the weights of an encoder.

    Scores train one logit, classes one for each. The folder is that of an
    AutoModelForSequenceClassification, which 'mirror-rt export' takes; sentence-transformers loads
    it as a CrossEncoder. Ctrl-C writes a checkpoint.

    Examples:
        mirror-rt train cross-encoder --data scored.tsv --select dev.tsv --out cross
        mirror-rt train cross-encoder --data nli.tsv --labels no,yes --out cross
    """

    data: Annotated[PairFile, Group("pairs")]
    config: Annotated[Given[TrainConfig], run_options("precision")]
    recipe: Annotated[Given[CrossEncoderRecipe], Group("hyper-parameters")]

    def run(self) -> None:
        from mirror_train.systems import train

        config = self.settings("cross-encoder", self.config, self.recipe.make())
        print_result(train("cross-encoder", self.data.read(), config))


def train_cross_encoder(
    pairs: Examples, config: TrainConfig, *, teacher: str | None = None
) -> TuneReport:
    """Train a cross-encoder from an encoder's weights, and write it to `config.out`.

    The folder is one of transformers' AutoModelForSequenceClassification, with the activation that
    sentence-transformers' CrossEncoder reads. Pairs with scores train one logit by the binary
    cross-entropy of their scores, scaled to 0 .. 1 (Trans-Encoder, Eq. 1); those with classes train
    one logit for each by cross-entropy. `teacher` says which model gave the scores, in the place of
    people.
    """
    from torch.nn import functional

    from mirror_train.model.cross_encoder import (
        LogitHead,
        PairTokens,
        TorchCrossEncoder,
        as_classifier,
    )
    from mirror_train.training.run import begun

    recipe, rows = config.recipe, _targets(pairs, config)
    with begun(config, config.precision) as run:
        base = run.load(dropout=recipe.dropout)
        run.base = base = as_classifier(base, pairs.labels, seed=config.seed)
        head = LogitHead()
        loss = functional.cross_entropy if pairs.labels else binary_cross_entropy
        run.start(data_hash(pairs, teacher), dataclasses.asdict(recipe))
        tokenize = PairTokens(base, recipe.max_length)
        trainer = pair_trainer(run, head, rows, tokenize, loss, recipe)
        # In float32, as the weights are saved and read again, whatever they are trained in.
        forward = dataclasses.replace(trainer.forward, dtype=None)
        model = TorchCrossEncoder(forward, PairTokens(base, base.max_length))
        run.train(trainer, "cross-encoder", partial(score_correlation, model))
        return write_pairs(run, trainer, head, pairs, recipe, teacher)


def binary_cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    """Return the mean binary cross-entropy of logits [n, 1] and soft labels [n] in 0 .. 1.

    -(y log s(x) + (1 - y) log(1 - s(x))), where s is the sigmoid (Trans-Encoder, Eq. 1).
    """
    from torch.nn import functional

    return functional.binary_cross_entropy_with_logits(logits[:, 0], targets.to(logits.dtype))


def pair_trainer(
    run: Run,
    head: Head,
    rows: Examples,
    tokenize: Callable[[list[str]], RaggedTokens],
    loss: Callable[[Tensor, Tensor], Tensor],
    recipe: CrossEncoderRecipe,
) -> Trainer:
    """Return the trainer of the run's model and its head on pairs and their targets.

    `tokenize` takes the 2n texts of a batch, n and then their partners, and `loss` their
    vectors or logits, in float32, with the targets [n].
    """
    from mirror_train.training.labelled import labelled_steps

    run.base.check_length(recipe.max_length)
    run.processes.own_rows(recipe.batch_size)
    batches = TaskBatches("pairs", rows, recipe.batch_size, (run.config.seed,))
    total = recipe.steps or math.ceil(recipe.epochs * len(rows) / recipe.batch_size)
    steps = labelled_steps(
        total,
        lambda step: [batches[step]],
        tokenize,
        lambda _, z, targets: loss(z, targets),
        run.processes,
    )
    modules = {"encoder": run.base.model.requires_grad_(True), "head": head.requires_grad_(True)}
    return run.trainer(steps, head, modules, recipe)


def write_pairs(
    run: Run,
    trainer: Trainer,
    head: Head,
    pairs: Examples,
    recipe: CrossEncoderRecipe,
    teacher: str | None,
    **more: Any,
) -> TuneReport:
    """Write the model of a run on pairs; mirror.json has `more` fields of the recipe."""
    summary = pairs.summary() | {"sha256": data_hash(pairs, teacher), "strings": len(pairs)}
    system = "cross-encoder" if teacher is None else "trans-encoder"
    return run.write(
        head,
        trainer.stats,
        recipe={"system": system} | dataclasses.asdict(recipe) | more,
        data=summary | {"supervised_pairs": True, "labels_by": teacher or "the source"},
        training={"padding_percent": round(trainer.stats.padding_percent, 2)},
        level="sentence",
    )


def data_hash(pairs: Examples, teacher: str | None) -> str:
    """Return the identity of a run's data: of scores that a model gave, with the model's."""
    if teacher is None:
        return pairs.sha256()
    return f"{dataclasses.replace(pairs, targets=np.zeros(len(pairs))).sha256()} by {teacher}"


def score_correlation(model: TorchCrossEncoder, pairs: ScoredPairs) -> float:
    """Return Spearman's rho between a cross-encoder's logits and human scores."""
    return spearman(model.logits(pairs.first, pairs.second)[:, 0], pairs.scores)


def _targets(pairs: Examples, config: TrainConfig) -> Examples:
    """Return the rows to train on, with scores in 0 .. 1, or indices of classes."""
    recipe = config.recipe
    if pairs.second is None:
        raise ConfigError(
            f"{pairs.source} has single texts: a cross-encoder takes pairs (--fields A,B)"
        )
    if pairs.labels:
        pairs.check_classes()
        if config.select is not None or (recipe.lowest, recipe.highest) != (None, None):
            name = "select" if config.select is not None else "lowest or highest"
            raise ConfigError(Setting(name), f" goes with scores, and {pairs.source} has classes")
    else:
        pairs = dataclasses.replace(pairs, targets=_scaled(pairs, recipe))
    if not recipe.both_orders:
        return pairs
    assert pairs.second is not None
    return pairs + dataclasses.replace(pairs, first=pairs.second, second=pairs.first)


def _scaled(pairs: Examples, recipe: CrossEncoderRecipe) -> Any:
    """Return the scores, float64 [n], scaled from lowest .. highest to 0 .. 1."""
    low, high = recipe.lowest, recipe.highest
    if low is None or high is None:
        found = pairs.scale()
        low, high = found[0] if low is None else low, found[1] if high is None else high
    if low >= high:
        raise ConfigError(
            Setting("lowest"), f" {low:g} must be less than ", Setting("highest"), f", {high:g}"
        )
    for row in np.flatnonzero((pairs.targets < low) | (pairs.targets > high))[:1]:
        raise DataError(
            f"{pairs.source}: pair {row + 1} ({pairs.first[row]!r:.40}) has the score "
            f"{pairs.targets[row]:g}, expected {low:g} .. {high:g} (--lowest, --highest)"
        )
    return (pairs.targets - low) / (high - low)


SYSTEM = System(
    name="cross-encoder",
    title="train a cross-encoder on labelled pairs, to score or to rank others",
    paper="a cross-encoder's loss",
    recipe=CrossEncoderRecipe,
    run=train_cross_encoder,
    command=f"{__name__}:TrainCrossEncoder",
    labelled=True,
)
