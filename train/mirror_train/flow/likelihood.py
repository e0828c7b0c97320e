"""BERT-flow (Li et al. 2020): fit a flow to the vectors of a frozen encoder."""

from __future__ import annotations

import dataclasses
from typing import cast, get_args

import numpy as np

from mirror_rt.bundle.manifest import Pooling
from mirror_rt.encoding.batch_encoder import Vectors
from mirror_rt.errors import DataError, ModelError
from mirror_train.data.training_data import TrainingData
from mirror_train.flow.steps import LikelihoodSteps, flow_trainer, initial_flow
from mirror_train.model.declared_modules import declared_head
from mirror_train.model.glow import check_flow_size
from mirror_train.model.pooling_head import Head
from mirror_train.model.pretrained import Pretrained
from mirror_train.model.torch_encoder import TorchEncoder
from mirror_train.training.loop import encoder_forward
from mirror_train.training.run import Run, TuneReport, begun
from mirror_train.training.run_config import FlowConfig


def tune_flow(data: TrainingData, config: FlowConfig) -> TuneReport:
    """Fit a flow to an encoder's vectors of `data`, and write both as `config.out`.

    Every string is encoded once, without dropout; the encoder does not change.

    Raises:
        ConfigError: an option cannot be used, the vectors have an odd number of dimensions, or a
            checkpoint is of another run.
        DataError: there are fewer strings than one batch holds.
        ModelError: the model cannot be loaded, no flow can follow it, it gives every string the
            same vector, or the loss diverges.
        OutputExistsError: `out` or a checkpoint of an earlier run exists.
        Interrupted: training was stopped by Ctrl-C or SIGTERM; a checkpoint was written.
        OSError: the disk cannot hold the result (checked before the work), or a write failed.
    """
    with begun(config, "fp32") as run:
        recipe = config.recipe
        check_batch(data, recipe.batch_size)
        run.processes.own_rows(recipe.batch_size)
        base = run.load(dropout=None)
        head = frozen_head(base, config.pooling)
        dimension = head.dimension(base.dimension)
        check_flow_size(dimension, recipe.levels)
        fields = dataclasses.asdict(recipe)
        run.start(data.sha256(), fields | {"pooling": head.pooling})
        vectors = text_vectors(run, base, head, data)
        flow = initial_flow(dimension, recipe, seed=config.seed, vectors=vectors)
        base.model.requires_grad_(False)
        trainer = flow_trainer(
            encoder_forward(base, head, run.device, run.precision),
            flow,
            LikelihoodSteps(flow, vectors, recipe, config.seed, run.processes),
            recipe,
            seed=config.seed,
            processes=run.processes,
        )
        flowed = Head(head.poolings, [*head.layers, flow])
        run.train(trainer, "flow", TorchEncoder(base, head=flowed, device=run.device))
        return run.write(
            flowed,
            trainer.stats,
            recipe={"system": "flow"} | fields,
            data=data.summary(),
            training={},
            level=None if (tuned := base.description.manifest) is None else tuned.level,
            language=data.language,
        )


def check_batch(data: TrainingData, batch_size: int, option: str = "--batch-size") -> None:
    """Raise DataError for fewer strings than a batch has; `option` is what sets its size."""
    count = min(len(data), len({*data.first, *data.second}))  # pairs may share strings
    if count < batch_size:
        hint = f"pass {option} {count} or less" if count > 1 else "give at least 2"
        raise DataError(
            f"{data.source} has too few different strings, {count}, for a batch of {batch_size}: "
            f"{hint}"
        )


def frozen_head(base: Pretrained, pooling: str) -> Head:
    """Return the head that a flow follows: a pooling alone, or for `auto` the one that is declared.

    Where `auto` finds no declared head, it is the mean, as it is for `paper`. What no flow can
    follow is refused.
    """
    given = [] if pooling in ("auto", "paper") else [cast(Pooling, pooling)]
    head = declared_head(base.description) if pooling == "auto" else Head(given or ["mean"])
    head = head or Head(["mean"])
    if head.pooling not in get_args(Pooling) or head.pooling == "mean-with-padding":
        raise ModelError(
            f"{base.name} declares the pooling {head.pooling}, which a flow cannot follow: pass "
            "--pooling cls or --pooling mean"
        )
    base.check_special_tokens(head.poolings)
    return head


def text_vectors(run: Run, model: Pretrained, head: Head, data: TrainingData) -> Vectors:
    """Return the head's vectors of all different strings of `data`, float32 [n, D]."""
    strings = list(dict.fromkeys([*data.first, *data.second]))
    encoder = TorchEncoder(model, head=head, device=run.device)
    vectors = encoder.encode(strings, normalize_embeddings=False, show_progress_bar=run.shows_bars)
    return np.asarray(vectors, dtype=np.float32)
