"""Tune a base model on strings and write a folder that transformers can load."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from mirror_rt.bundle.manifest import Manifest, Pooling
from mirror_rt.errors import ConfigError, Setting
from mirror_rt.io.atomic import check_free
from mirror_train.compute.precision import Precision, resolve_precision
from mirror_train.compute.processes import Processes, joined_processes
from mirror_train.data.batches import Batches, check_loss_batch
from mirror_train.data.training_data import TrainingData
from mirror_train.model.declared_modules import declared_pooling
from mirror_train.model.pooling_head import Head
from mirror_train.model.pretrained import Pretrained, load_pretrained
from mirror_train.recipes.recipe import Recipe
from mirror_train.training.checkpoint import Checkpoint, CheckpointStore
from mirror_train.training.output_folder import TuneReport, check_disk, write_folder
from mirror_train.training.run_config import TuneConfig
from mirror_train.training.step_bar import step_bar
from mirror_train.training.trainer import Trainer, TrainingStats, pad_length
from mirror_train.training.whitening import centre_again, fit_whitening

__all__ = ["TuneReport", "load_base", "tune", "tuned_pooling"]


def tune(
    data: TrainingData,
    config: TuneConfig,
    *,
    base: Pretrained | None = None,
    on_base: Callable[[Pretrained], object] = lambda base: None,
) -> TuneReport:
    """Tune a masked language model on `data` by Mirror-BERT and write it to `config.out`.

    Processes that `torchrun` starts share one run: each takes its share of every batch, the loss
    contrasts the strings of all processes, and the first process writes the result. There,
    `on_base` is called with the base model before any work.

    Raises:
        ConfigError: an option cannot be used, or a checkpoint is of another run.
        DataError: there are fewer strings than one batch holds.
        ModelError: the base model cannot be loaded, or the loss diverges.
        OutputExistsError: `out` or a checkpoint of an earlier run exists.
        Interrupted: training was stopped by Ctrl-C or SIGTERM; a checkpoint was written.
        OSError: the disk cannot hold the result (checked before the work), or a write failed.
        ProcessGroupError: another process of the run has failed.
    """
    with joined_processes(config.device) as processes:
        return _tune(data, config, processes, base, on_base)


def load_base(config: TuneConfig) -> Pretrained:
    """Load the base model of a run, with the dropout of its recipe.

    Raises:
        ModelError: the model cannot be loaded.
    """
    return load_pretrained(config.model, dropout=config.recipe.dropout, **config.load_options())


def _tune(
    data: TrainingData,
    config: TuneConfig,
    processes: Processes,
    given: Pretrained | None,
    on_base: Callable[[Pretrained], object],
) -> TuneReport:
    processes.in_first(lambda: check_free(config.out, overwrite=config.overwrite))
    loss_batch = config.loss_batch or config.recipe.batch_size
    check_loss_batch(data, config.recipe, loss_batch, processes.count)
    precision = resolve_precision(config.precision, processes.device)
    base = given or processes.first_then_all(lambda: load_base(config))
    processes.in_first(lambda: on_base(base))
    recipe = config.recipe.replace(pooling=tuned_pooling(base, config))
    base.check_length(recipe.max_length)
    base.check_special_tokens([recipe.fixed_pooling])
    _check_whitening(recipe)
    _check_hard_negatives(data, recipe)
    run = _run_identity(data, base, recipe, config, precision, processes)
    store = CheckpointStore(config.out, run)
    checkpoint = processes.first_then_all(lambda: _starting_point(store, config))
    step = checkpoint.step if checkpoint else 0
    processes.check_alike(run | {"the step of the checkpoint, which all nodes must see": step})
    processes.in_first(lambda: _check_space(base, config, checkpoint))
    batches = Batches(
        data,
        recipe,
        loss_batch=loss_batch,
        seed=config.seed,
        mask_token=base.mask_token,
        processes=processes,
    )
    layer = fit_whitening(base, data, recipe, seed=config.seed, device=processes.device)
    head = Head([recipe.fixed_pooling], [] if layer is None else [layer])
    trainer = Trainer(
        base, batches, recipe, precision=precision, processes=processes, layers=head.layers
    )
    show = config.show_progress_bar if processes.rank == 0 else False
    done = checkpoint.step if checkpoint else 0
    with step_bar(len(batches), show, "tune", done=done, unit="string", size=loss_batch) as on_step:
        stats = trainer.run(
            store, checkpoint_every=config.checkpoint_every, resume_from=checkpoint, on_step=on_step
        )
    if layer is not None:
        centre_again(base, layer, data, recipe, seed=config.seed, device=processes.device)
    training = _training(run, stats, recipe, processes)

    def write() -> Manifest:
        report = write_folder(
            base,
            head,
            stats,
            config,
            recipe=dataclasses.asdict(recipe),
            data=data.summary(),
            training=training,
            level=recipe.level,
            language=data.language,
            pad_to=pad_length(recipe),
            weights_sha256=run["model"],
        )
        store.remove()
        return report.manifest

    return TuneReport(config.out, processes.in_first(write), stats)


def _training(
    run: dict[str, Any], stats: TrainingStats, recipe: Recipe, processes: Processes
) -> dict[str, Any]:
    loss_batch = run["loss_batch"] or recipe.batch_size
    return {
        "precision": run["precision"],
        "device": processes.device.type,
        "processes": processes.count,
        "loss_batch": loss_batch,
        "strings_per_second": round(loss_batch * len(stats.losses) / stats.seconds, 1),
        "padding_percent": round(stats.padding_percent, 2),
    }


def _starting_point(store: CheckpointStore, config: TuneConfig) -> Checkpoint | None:
    if config.resume:
        return store.load()
    if config.overwrite:
        store.remove()
    store.check_unused()
    return None


def _check_whitening(recipe: Recipe) -> None:
    if recipe.whitening and recipe.pooling == "mean-with-padding":
        raise ConfigError(
            "whitening does not go with the pooling mean-with-padding, whose folder has no list of "
            "modules to keep the layer in: pass --pooling mean"
        )


def _check_hard_negatives(data: TrainingData, recipe: Recipe) -> None:
    if data.hard_negatives is None:
        return
    if recipe.loss == "multi_similarity":
        raise ConfigError(
            f"{data.source} has hard negatives, which the loss multi_similarity finds by itself: "
            "choose ntxent, decoupled or one_way"
        )
    if recipe.same_dropout:
        raise ConfigError(
            Setting("same_dropout"), " compares a string and its copy: give no hard negatives"
        )


def _check_space(base: Pretrained, config: TuneConfig, checkpoint: Checkpoint | None) -> None:
    """Check before the work that the disk can hold the result, or the checkpoints if there are any.

    A checkpoint takes three times the memory of the weights, because it holds AdamW's state. Each
    is written before the last one, which a resumed run already has, is removed.
    """
    copies = 1
    if config.checkpoint_every:
        copies = 3 if checkpoint else 6
    check_disk(base, config.out, copies=copies)


def tuned_pooling(base: Pretrained, config: TuneConfig) -> Pooling:
    """Return the pooling of a run, as `TuneConfig.pooling` describes.

    Where neither a user nor the base model nor the recipe names one, it is that of the papers: the
    mean for BERT at the level of sentences, [CLS] otherwise (EMNLP 2021, appendix B).

    Raises:
        ModelError: the base model declares a pooling or modules that cannot be tuned.
    """
    if config.pooling != "auto":
        return config.pooling
    if config.recipe.pooling == "mean-without-special":
        return config.recipe.pooling  # the recipe was chosen for this pooling
    if declared := declared_pooling(base.folder):
        return declared
    if config.recipe.pooling != "auto":
        return config.recipe.pooling
    is_bert = base.model.config.model_type == "bert"
    return "mean" if is_bert and config.recipe.level == "sentence" else "cls"


def _run_identity(
    data: TrainingData,
    base: Pretrained,
    recipe: Recipe,
    config: TuneConfig,
    precision: Precision,
    processes: Processes,
) -> dict[str, Any]:
    """Return everything that decides the result; a checkpoint of another identity is refused."""
    return {
        "model": base.weights_sha256(),
        "data": data.sha256(),
        "recipe": dataclasses.asdict(recipe),
        "seed": config.seed,
        "precision": precision,
        "loss_batch": None if config.loss_batch == recipe.batch_size else config.loss_batch,
        "processes": processes.count,
    }
