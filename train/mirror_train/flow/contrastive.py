"""BERT-CF (Hu): tune by Mirror-BERT, then fit a flow with Mirror-BERT's loss as regulariser."""

from __future__ import annotations

import dataclasses
import shutil
from typing import Any

from mirror_rt.bundle.manifest import Layout, Manifest
from mirror_rt.errors import OutputExistsError
from mirror_rt.io.atomic import check_free
from mirror_train.compute.launch import check_one_process
from mirror_train.compute.precision import Precision, resolve_device, resolve_precision
from mirror_train.compute.processes import Processes
from mirror_train.data.batches import Batches
from mirror_train.data.training_data import TrainingData
from mirror_train.flow.fitting import RegularisedFit, fit_flow, initial_flow
from mirror_train.flow.recipe import CfConfig
from mirror_train.flow.run import check_batch, text_vectors
from mirror_train.model.glow import Flow, check_flow_size
from mirror_train.model.pooling_head import Head
from mirror_train.model.pretrained import Pretrained, load_pretrained
from mirror_train.training.output_folder import TuneReport, check_disk, write_folder
from mirror_train.training.run_config import TuneConfig, check_same_run, recorded_run
from mirror_train.training.step_bar import shows_bars, step_bar
from mirror_train.training.trainer import TrainingStats
from mirror_train.training.tune import tune, tuned_pooling


def tune_cf(data: TrainingData, config: CfConfig) -> TuneReport:
    """Tune an encoder by Mirror-BERT, fit a flow to it with the same loss, and write both.

    The report's losses are those of the flow's steps.

    Raises:
        ConfigError: an option cannot be used, the vectors have an odd number of dimensions, or
            the files to resume from are of another run.
        DataError: there are fewer strings than one batch holds.
        ModelError: the base model cannot be loaded, or a loss diverges.
        OutputExistsError: `out` or the files of an earlier run exist.
        Interrupted: Ctrl-C in the first step; a checkpoint was written.
        KeyboardInterrupt: Ctrl-C in the second step; the result of the first is in OUT.mirror.
        OSError: the disk cannot hold the result (checked before the work), or a write failed.
    """
    check_one_process("mirror-rt train cf")
    check_free(config.out, overwrite=config.overwrite)
    check_batch(data, config.recipe.flow.batch_size)
    if not config.recipe.joint:
        check_batch(data, config.recipe.mirror.batch_size, "--mirror-batch-size")
    device = resolve_device(config.device)
    base = _load(config.model, config)
    check_flow_size(base.dimension)
    finished = config.resume and (config.mirror_out / Layout.manifest).is_file()
    # The result of a first step that is still to come is there while that of the run is written.
    check_disk(base, config.out, copies=1 if config.recipe.joint or finished else 2)
    config = _with_pooling(base, config)
    precision = resolve_precision(config.precision, device)
    encoder: Pretrained = base
    training: dict[str, Any] = {}
    if not config.recipe.joint:
        encoder, training = _first_step(data, config, base, finished=finished)
    try:
        flow, stats = _second_step(data, config, encoder, Processes(device), precision)
    except KeyboardInterrupt as error:
        if config.recipe.joint:
            raise
        raise KeyboardInterrupt(
            f"interrupted while the flow was fitted; {config.mirror_out} holds the tuned encoder: "
            "continue with --resume"
        ) from error
    report = write_folder(
        base,
        Head([config.recipe.mirror.fixed_pooling], [flow]),
        stats,
        config,
        recipe={"system": "cf"} | config.recipe.to_dict(),
        data=data.summary(),
        training={"precision": precision, "device": device.type} | training,
        level=config.recipe.mirror.level,
        language=data.language,
        tuned=encoder,
    )
    shutil.rmtree(config.mirror_out, ignore_errors=True)
    return report


def _load(model: str, config: CfConfig) -> Pretrained:
    dropout = config.recipe.mirror.dropout
    return load_pretrained(model, dropout=dropout, **config.load_options(model))


def _with_pooling(base: Pretrained, config: CfConfig) -> CfConfig:
    """Return the configuration with the pooling that `mirror-rt tune` would choose."""
    pooling = tuned_pooling(base, _mirror_config(config))
    mirror = config.recipe.mirror.replace(pooling=pooling)
    base.check_special_tokens([pooling])
    recipe = dataclasses.replace(config.recipe, mirror=mirror)
    return dataclasses.replace(config, recipe=recipe)


def _first_step(
    data: TrainingData, config: CfConfig, base: Pretrained, *, finished: bool
) -> tuple[Pretrained, dict[str, Any]]:
    """Return the encoder after Mirror-BERT, and what mirror.json records of that step."""
    out = config.mirror_out
    if finished:
        manifest = Manifest.read(out, "mirror_rt encoder")
        _check_same_run(manifest, data, config, base)
    else:
        if out.exists() and not config.overwrite:
            raise OutputExistsError(
                f"{out} is left of an earlier run: continue it with --resume, or start again with "
                "--overwrite"
            )
        tuned = tune(data, _mirror_config(config), base=base)
        manifest = tuned.manifest
    training = manifest.training or {}
    kept = ("steps", "loss_first", "loss_last", "seconds")
    return _load(str(out), config), {f"mirror_{name}": training.get(name) for name in kept}


def _mirror_config(config: CfConfig) -> TuneConfig:
    options = config.run_options() | {"out": config.mirror_out}
    return TuneConfig(
        recipe=config.recipe.mirror,
        pooling=config.pooling,
        precision=config.precision,
        resume=config.resume,
        **options,
    )


def _check_same_run(
    manifest: Manifest, data: TrainingData, config: CfConfig, base: Pretrained
) -> None:
    """Raise ConfigError unless the first step's result in OUT.mirror belongs to this run."""
    manifest.verify(config.mirror_out)
    wanted = {"model": base.weights_sha256(), "data": data.sha256(), "seed": config.seed}
    wanted |= dataclasses.asdict(config.recipe.mirror)
    check_same_run(config.mirror_out, recorded_run(manifest, "weights_sha256"), wanted)


def _second_step(
    data: TrainingData,
    config: CfConfig,
    encoder: Pretrained,
    processes: Processes,
    precision: Precision,
) -> tuple[Flow, TrainingStats]:
    recipe, seed, device = config.recipe, config.seed, processes.device
    show = shows_bars(config.show_progress_bar)
    head = Head([recipe.mirror.fixed_pooling])
    vectors = text_vectors(encoder, head, data, device=device, show=show)
    flow = initial_flow(encoder.dimension, recipe.flow, seed=seed, vectors=vectors)
    with step_bar(recipe.flow.steps, show, "flow") as on_step:
        if not recipe.mirror_weight:
            return flow, fit_flow(
                flow, vectors, recipe.flow, seed=seed, device=device, on_step=on_step
            )
        batches = Batches(
            data,
            recipe.mirror,
            loss_batch=recipe.flow.batch_size,
            seed=seed,
            mask_token=encoder.mask_token,
            processes=processes,
        )
        fit = RegularisedFit(encoder, flow, batches, recipe, precision=precision, device=device)
        return flow, fit.run(on_step)
