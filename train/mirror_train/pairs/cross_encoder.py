"""Train a cross-encoder on labelled pairs: by scores, or by classes."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from mirror_rt.errors import ConfigError, DataError, Setting
from mirror_rt.evaluation import ScoredPairs, spearman
from mirror_rt.tokens.padding import RaggedTokens
from mirror_train.data.labelled_examples import Examples
from mirror_train.model.cross_encoder import (
    LogitHead,
    PairTokens,
    TorchCrossEncoder,
    as_classifier,
)
from mirror_train.model.pooling_head import Head
from mirror_train.pairs.passes import TaskBatches
from mirror_train.recipes.cross_encoders import CrossEncoderRecipe
from mirror_train.training.loop import Part, Trainer, encoder_forward
from mirror_train.training.run import Run, TuneReport, begun
from mirror_train.training.run_config import CrossEncoderConfig


def tune_cross_encoder(
    pairs: Examples, config: CrossEncoderConfig, *, teacher: str | None = None
) -> TuneReport:
    """Train a cross-encoder from an encoder's weights, and write it to `config.out`.

    The folder is one of transformers' AutoModelForSequenceClassification, with the activation that
    sentence-transformers' CrossEncoder reads. Pairs with scores train one logit by the binary
    cross-entropy of their scores, scaled to 0 .. 1 (Trans-Encoder, Eq. 1); those with classes train
    a logit of each class. `teacher` names the model that the scores are from, if one gave them.

    Raises:
        ConfigError: an option cannot be used, or there are no pairs but texts.
        DataError: a score is out of range, all are equal, or a class has no rows.
        ModelError: the base model cannot be loaded, or the loss diverges.
        OutputExistsError: `config.out` or a checkpoint of an earlier run exists.
        Interrupted: training was stopped by Ctrl-C or SIGTERM; a checkpoint was written.
    """
    recipe, rows = config.recipe, _targets(pairs, config)
    with begun(config, config.precision) as run:
        base = run.load(dropout=recipe.dropout)
        run.base = base = as_classifier(base, pairs.labels, seed=config.seed)
        head = LogitHead()
        loss = functional.cross_entropy if pairs.labels else binary_cross_entropy
        hashes = data_hash(pairs, teacher)
        run.start(hashes, dataclasses.asdict(recipe))
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
    return functional.binary_cross_entropy_with_logits(logits[:, 0], targets.to(logits.dtype))


class PairSteps:
    """The steps of a run on pairs and their targets: each has one part, a batch of the pairs.

    `tokenize` takes the 2n texts of a batch, n and then their partners, and `loss` what comes of
    them, in float32, with the targets [n].
    """

    def __init__(
        self,
        total: int,
        batches: TaskBatches,
        tokenize: Callable[[list[str]], RaggedTokens],
        loss: Callable[[Tensor, Tensor], Tensor],
        run: Run,
    ) -> None:
        self._total, self._batches, self._processes = total, batches, run.processes
        self._tokenize, self._loss = tokenize, loss

    def __len__(self) -> int:
        return self._total

    def __getitem__(self, step: int) -> list[Part]:
        own = self._batches[step].share(self._processes)
        targets = torch.from_numpy(own.targets).to(self._processes.device)
        return [Part(self._tokenize(own.texts), lambda z: self._loss(z.float(), targets))]


def pair_trainer(
    run: Run,
    head: Head,
    rows: Examples,
    tokenize: Callable[[list[str]], RaggedTokens],
    loss: Callable[[Tensor, Tensor], Tensor],
    recipe: CrossEncoderRecipe,
) -> Trainer:
    """Return the trainer of the run's model and its head by `PairSteps`."""
    run.base.check_length(recipe.max_length)
    run.processes.own_rows(recipe.batch_size)
    modules = nn.ModuleDict({"encoder": run.base.model, "head": head}).requires_grad_(True)
    forward = encoder_forward(run.base, head, run.device, run.precision)
    seed, size = run.config.seed, recipe.batch_size
    steps = recipe.steps or math.ceil(recipe.epochs * len(rows) / size)
    return Trainer(
        steps=PairSteps(steps, TaskBatches("pairs", rows, size, (seed,)), tokenize, loss, run),
        forward=forward,
        modules=modules,
        optimizer=torch.optim.AdamW(
            list(modules.parameters()),
            lr=recipe.learning_rate,
            weight_decay=recipe.weight_decay,
            fused=True,
        ),
        seed=seed,
        processes=run.processes,
        precision=run.precision,
        warm_up=recipe.warm_up,
        decay=recipe.decay,
    )


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
    """Return what identifies the data of a run: of scores that a model gave, the model."""
    if teacher is None:
        return pairs.sha256()
    return f"{dataclasses.replace(pairs, targets=np.zeros(len(pairs))).sha256()} by {teacher}"


def score_correlation(model: TorchCrossEncoder, pairs: ScoredPairs) -> float:
    """Return Spearman's rho between a cross-encoder's logits and human scores."""
    return spearman(model.logits(pairs.first, pairs.second)[:, 0], pairs.scores)


def _targets(pairs: Examples, config: CrossEncoderConfig) -> Examples:
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
