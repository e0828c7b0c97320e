"""BERT-CF (Hu): tune by Mirror-BERT, then fit a flow with Mirror-BERT's loss as regulariser."""

from __future__ import annotations

import dataclasses
import shutil
from typing import Any

from mirror_rt.bundle.manifest import Layout, Manifest
from mirror_rt.errors import OutputExistsError
from mirror_train.data.batches import Batches
from mirror_train.data.training_data import TrainingData
from mirror_train.flow.likelihood import check_batch, text_vectors
from mirror_train.flow.steps import LikelihoodSteps, cf_trainer, flow_trainer, initial_flow
from mirror_train.model.glow import Flow, check_flow_size
from mirror_train.model.pooling_head import Head
from mirror_train.model.pretrained import Pretrained, load_pretrained
from mirror_train.model.torch_encoder import TorchEncoder
from mirror_train.training.checkpoint import Interrupted
from mirror_train.training.loop import Trainer, encoder_forward
from mirror_train.training.pooling import choose_pooling
from mirror_train.training.run import Run, TuneReport, begun
from mirror_train.training.run_config import CfConfig, TuneConfig, check_same_run, recorded_run
from mirror_train.training.tune import check_recipe, tune


def tune_cf(data: TrainingData, config: CfConfig) -> TuneReport:
    """Tune an encoder by Mirror-BERT, fit a flow to it with the same loss, and write both.

    The report's losses are those of the flow's steps.

    Raises:
        ConfigError: an option cannot be used, the vectors have an odd number of dimensions, or
            the files to resume from are of another run.
        DataError: there are fewer strings than one batch holds.
        ModelError: the base model cannot be loaded, or a loss diverges.
        OutputExistsError: `out` or the files of an earlier run exist.
        Interrupted: training was stopped by Ctrl-C or SIGTERM; a checkpoint was written.
        KeyboardInterrupt: Ctrl-C between the steps; the result of the first is in OUT.mirror.
        OSError: the disk cannot hold the result (checked before the work), or a write failed.
    """
    with begun(config, config.precision) as run:
        recipe = config.recipe
        check_batch(data, recipe.flow.batch_size)
        run.processes.own_rows(recipe.flow.batch_size)
        if not recipe.joint:
            check_batch(data, recipe.mirror.batch_size, "--mirror-batch-size")
        base = run.load(dropout=recipe.mirror.dropout)
        check_flow_size(base.dimension, recipe.flow.levels)
        config = _with_pooling(base, config)
        recipe = config.recipe
        check_recipe(recipe.mirror, data, base, run.processes.count)
        finished = config.resume and (config.mirror_out / Layout.manifest).is_file()
        # While the run's result is written, that of a first step still to come is on the disk.
        copies = 1 if recipe.joint or finished else 2
        run.start(data.sha256(), recipe.to_dict(), copies=copies)
        encoder: Pretrained = base
        training: dict[str, Any] = {}
        if not recipe.joint:
            encoder, training = _first_step(data, config, run, finished=finished)
        try:
            flow, trainer = _second_step(data, config, encoder, run)
        except KeyboardInterrupt as error:
            if recipe.joint or isinstance(error, Interrupted):
                raise
            raise KeyboardInterrupt(
                f"interrupted while the flow was fitted; {config.mirror_out} holds the tuned "
                "encoder: continue with --resume"
            ) from error
        report = run.write(
            Head([recipe.mirror.fixed_pooling], [flow]),
            trainer.stats,
            recipe={"system": "cf"} | recipe.to_dict(),
            data=data.summary(),
            training=training,
            level=recipe.mirror.level,
            language=data.language,
            tuned=encoder,
        )
        run.processes.in_first(lambda: shutil.rmtree(config.mirror_out, ignore_errors=True))
        return report


def _with_pooling(base: Pretrained, config: CfConfig) -> CfConfig:
    """Return the configuration with the pooling that `mirror-rt tune` would choose."""
    pooling = choose_pooling(base, _mirror_config(config)).pooling
    recipe = config.recipe.replace(mirror=config.recipe.mirror.replace(pooling=pooling))
    return dataclasses.replace(config, recipe=recipe)


def _first_step(
    data: TrainingData, config: CfConfig, run: Run, *, finished: bool
) -> tuple[Pretrained, dict[str, Any]]:
    """Return the encoder after Mirror-BERT, and what mirror.json records of that step."""
    out = config.mirror_out
    if finished:
        manifest = Manifest.read(out, "mirror_rt encoder")
        manifest.verify(out)
        wanted = {"model": run.base.weights_sha256(), "data": data.sha256(), "seed": config.seed}
        wanted |= {"select": config.selects} | dataclasses.asdict(config.recipe.mirror)
        check_same_run(out, recorded_run(manifest, "weights_sha256"), wanted)
    else:
        if out.exists() and not config.overwrite:
            raise OutputExistsError(
                f"{out} is left of an earlier run: continue it with --resume, or start again with "
                "--overwrite"
            )
        manifest = tune(data, _mirror_config(config), base=run.base).manifest
    training = manifest.training or {}
    kept = ("steps", "loss_first", "loss_last", "seconds", "best_step")
    dropout = config.recipe.mirror.dropout
    tuned = load_pretrained(str(out), dropout=dropout, **config.load_options(str(out)))
    return tuned, {f"mirror_{name}": training.get(name) for name in kept}


def _mirror_config(config: CfConfig) -> TuneConfig:
    options = config.run_options() | {"out": config.mirror_out}
    return TuneConfig(
        recipe=config.recipe.mirror,
        pooling=config.pooling,
        precision=config.precision,
        checkpoint_every=config.checkpoint_every,
        resume=config.resume,
        select=config.select,
        evaluate_every=config.evaluate_every,
        **options,
    )


def _second_step(
    data: TrainingData, config: CfConfig, encoder: Pretrained, run: Run
) -> tuple[Flow, Trainer]:
    """Fit the flow behind the tuned encoder; return it with its trainer."""
    recipe, seed, processes = config.recipe, config.seed, run.processes
    head = Head([recipe.mirror.fixed_pooling])
    vectors = text_vectors(run, encoder, head, data)
    flow = initial_flow(encoder.dimension, recipe.flow, seed=seed, vectors=vectors)
    if recipe.mirror_weight:
        batches = Batches(
            data,
            recipe.mirror,
            loss_batch=recipe.flow.batch_size,
            seed=seed,
            mask_token=encoder.mask_token,
            processes=processes,
        )
        trainer = cf_trainer(
            encoder, flow, batches, recipe, precision=run.precision, processes=processes
        )
    else:
        encoder.model.requires_grad_(False)
        steps = LikelihoodSteps(flow, vectors, recipe.flow, seed, processes)
        forward = encoder_forward(encoder, head, run.device, "fp32")
        trainer = flow_trainer(forward, flow, steps, recipe.flow, seed=seed, processes=processes)
    flowed = Head(head.poolings, [flow])
    run.train(trainer, "flow", TorchEncoder(encoder, head=flowed, device=run.device))
    return flow, trainer
