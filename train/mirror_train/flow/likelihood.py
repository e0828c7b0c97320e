"""BERT-flow (Li et al. 2020): fit a flow to the vectors of a frozen encoder."""

from __future__ import annotations

import dataclasses

from mirror_rt.io.atomic import check_free
from mirror_train.compute.launch import check_one_process
from mirror_train.compute.precision import resolve_device
from mirror_train.data.training_data import TrainingData
from mirror_train.flow.fitting import fit_flow, initial_flow
from mirror_train.flow.recipe import FlowConfig
from mirror_train.flow.run import check_batch, frozen_head, text_vectors, tuned_level
from mirror_train.model.glow import check_flow_size
from mirror_train.model.pooling_head import Head
from mirror_train.model.pretrained import load_pretrained
from mirror_train.training.output_folder import TuneReport, check_disk, write_folder
from mirror_train.training.step_bar import shows_bars, step_bar


def tune_flow(data: TrainingData, config: FlowConfig) -> TuneReport:
    """Fit a flow to an encoder's vectors of `data`, and write both as `config.out`.

    Every string is encoded once, without dropout; the encoder does not change.

    Raises:
        ConfigError: an option cannot be used, or the vectors have an odd number of dimensions.
        DataError: there are fewer strings than one batch holds.
        ModelError: the model cannot be loaded, no flow can follow it, it gives every string the
            same vector, or the loss diverges.
        OutputExistsError: `out` exists.
        OSError: the disk cannot hold the result (checked before the work), or a write failed.
    """
    check_one_process("mirror-rt train flow")
    check_free(config.out, overwrite=config.overwrite)
    check_batch(data, config.recipe.batch_size)
    device, show = resolve_device(config.device), shows_bars(config.show_progress_bar)
    base = load_pretrained(config.model, **config.load_options())
    check_disk(base, config.out)
    head = frozen_head(base, config.pooling)
    dimension = head.dimension(base.dimension)
    check_flow_size(dimension)
    vectors = text_vectors(base, head, data, device=device, show=show)
    flow = initial_flow(dimension, config.recipe, seed=config.seed, vectors=vectors)
    with step_bar(config.recipe.steps, show, "flow") as on_step:
        stats = fit_flow(
            flow, vectors, config.recipe, seed=config.seed, device=device, on_step=on_step
        )
    return write_folder(
        base,
        Head(head.poolings, [*head.layers, flow]),
        stats,
        config,
        recipe={"system": "flow"} | dataclasses.asdict(config.recipe),
        data=data.summary(),
        training={"precision": "fp32", "device": device.type},
        level=tuned_level(base.folder),
        language=data.language,
    )
