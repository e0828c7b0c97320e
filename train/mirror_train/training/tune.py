"""Tune a base model on strings and write a folder that transformers can load."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from mirror_rt.bundle.json_document import read_json
from mirror_rt.errors import ConfigError, Setting
from mirror_rt.evaluation import evaluate_geometry
from mirror_rt.io.atomic import write_json
from mirror_train.data.batches import Batches, batch_sizes, check_loss_batch
from mirror_train.data.training_data import TrainingData
from mirror_train.model.dense import Dense
from mirror_train.model.dropout import drophead
from mirror_train.model.pooling_head import Head
from mirror_train.model.pretrained import Pretrained, load_pretrained
from mirror_train.model.torch_encoder import TorchEncoder
from mirror_train.recipes.recipe import Recipe
from mirror_train.training.fit import warn_of_run
from mirror_train.training.guide import Guide, read_guide
from mirror_train.training.hard_negatives import mined_negatives
from mirror_train.training.kept_vectors import forget_vectors
from mirror_train.training.loop import Trainer
from mirror_train.training.mirror import ViewsLoss, mirror_trainer, pad_length
from mirror_train.training.movement import EndedBy, Neighbours, common_words, planned_steps
from mirror_train.training.pooling import choose_pooling, has_causal_attention
from mirror_train.training.run import Run, TuneReport, begun
from mirror_train.training.run_config import TrainConfig
from mirror_train.training.teacher import Teacher, find_teacher, read_teacher
from mirror_train.training.whitening import centre_again, fit_whitening

logger = logging.getLogger("mirror_train")

_MEASURED = 200  # strings whose isotropy is compared

__all__ = ["TuneReport", "load_base", "tune"]


def tune(
    data: TrainingData | Sequence[str],
    config: TrainConfig,
    *,
    base: Pretrained | None = None,
    on_base: Callable[[Pretrained], object] | None = None,
    loss: ViewsLoss | None = None,
) -> TuneReport:
    """Tune a masked language model on `data` by Mirror-BERT and write it to `config.out`.

    A list of strings will do as data; blank ones and repetitions are dropped and counted.

    Processes that `torchrun` starts share one run: each takes its share of every batch, the loss
    contrasts the strings of all processes, and the first process writes the result. There,
    `on_base` is called with the base model before any work; by default a warning is logged of
    strings and a base model that do not go together (see `run_warnings`).

    A `loss` of your own takes the place of the recipe's: a function of the two views of the strings
    of a batch, float [n, D] each (and of hard negatives, where the data has some), to a scalar.
    Parameters of its own are not trained, and each process calls it with its own share.

    Raises:
        ConfigError: an option cannot be used, a checkpoint is of another run, or your loss gives
            no scalar.
        DataError: there are fewer than two strings, or an item of a list is none.
        ModelError: the base model cannot be loaded, or the loss diverges.
        OutputExistsError: `out` or a checkpoint of an earlier run exists.
        Interrupted: training was stopped by Ctrl-C or SIGTERM; a checkpoint was written.
        OSError: the disk cannot hold the result (checked before the work), or a write failed.
        ProcessGroupError: another process of the run has failed.
    """
    if not isinstance(data, TrainingData):
        data = TrainingData.of_strings(data)
    with begun(config, config.precision) as run:
        processes, seed, recipe = run.processes, config.seed, config.recipe
        loss_batch = config.loss_batch or recipe.batch_size
        check_loss_batch(data, recipe, loss_batch, processes)
        base = run.load(dropout=recipe.dropout, given=base)
        look = on_base or partial(warn_of_run, data, config=config)
        processes.in_first(lambda: look(base))
        chosen = choose_pooling(base, config)
        recipe = recipe.replace(pooling=chosen.pooling)
        check_recipe(recipe, data, base, processes.count)
        cached = None if loss_batch == recipe.batch_size else loss_batch
        lesson = find_teacher(run, data, recipe, own_loss=loss is not None, tune=tune_teacher)
        settings = dataclasses.asdict(recipe)
        if loss is not None:
            kind = loss if hasattr(loss, "__qualname__") else type(loss)
            settings["loss"] = f"{kind.__module__}.{kind.__qualname__}"
        run.start(data.sha256(), settings, loss_batch=cached, **(lesson.identity if lesson else {}))
        sizes = batch_sizes(len(data), loss_batch, processes.count)
        steps, ended_by = planned_steps(recipe, len(sizes))
        pad_to = pad_length(recipe)
        untuned = run.encoder(Head([chosen.before]), pad_to=pad_to)
        teacher: Teacher | Guide | None = None
        if lesson is not None and recipe.guide_margin is not None:
            teacher = read_guide(run, data, lesson)
        elif lesson is not None:
            teacher = read_teacher(run, lesson, untuned)
        batches = Batches(
            data,
            recipe,
            loss_batch=loss_batch,
            steps=steps,
            neighbours=mined_negatives(run, data, recipe, untuned, teacher),
            seed=seed,
            mask_token=base.mask_token,
            processes=processes,
        )
        before = _isotropy(run, data, untuned)
        layer = fit_whitening(base, data, recipe, seed=seed, device=run.device)
        layers, mlp = [] if layer is None else [layer], _mlp(base, recipe, seed)
        trainer = mirror_trainer(
            base,
            batches,
            recipe,
            precision=run.precision,
            processes=processes,
            layers=layers,
            mlp=mlp,
            loss=loss,
            teacher=teacher,
        )
        kept = [mlp] if mlp is not None and recipe.mlp == "pooler" else []
        head = Head([recipe.fixed_pooling], [*layers, *kept])
        with drophead(base.model, recipe.drophead):
            encoder = run.encoder(head, pad_to=pad_to)
            if recipe.kept_neighbours is not None:
                words = common_words(data)
                trainer.neighbours = Neighbours(
                    encoder, words, recipe.kept_neighbours, batches.tier_starts
                )
            run.train(trainer, "tune", encoder)
        if layer is not None:
            centre_again(base, layer, data, recipe, seed=seed, device=run.device)
        after = _isotropy(run, data, run.encoder(head, pad_to=pad_to))
        isotropy = _compared(before, after, trainer.stats.losses, recipe)
        report = run.write(
            head,
            trainer.stats,
            recipe=settings,
            data=data.summary(),
            training=_course(trainer, batches, ended_by)
            | isotropy
            | ({} if teacher is None else {"teacher": teacher.record}),
            level=recipe.level,
            language=data.language,
            pad_to=pad_to,
            also=partial(_declare_parts, recipe, base.dimension),
        )
        forget_vectors(run)
        return report


def tune_teacher(words: TrainingData, settings: dict[str, Any]) -> None:
    """Tune the ready teacher, by the fields of a configuration; see `teacher_folder`."""
    tune(words, TrainConfig(**settings))


def _isotropy(run: Run, data: TrainingData, encoder: TorchEncoder) -> float | None:
    """Measure the isotropy of unit vectors of some strings; None where all strings are one."""
    texts = list(dict.fromkeys(data.first))[:_MEASURED]

    def measure() -> float | None:
        return round(evaluate_geometry(encoder, texts).isotropy_score_normalized, 4)

    return run.processes.in_first(measure) if len(texts) > 1 else None


def _compared(
    before: float | None, after: float | None, losses: list[float], recipe: Recipe
) -> dict[str, Any]:
    """Return the isotropy before and after for mirror.json; warn of a run that made it worse."""
    if losses[-1] > losses[0]:
        rose = "the loss has risen from %.4f to %.4f: try a lower learning rate than %g"
        logger.warning(rose, losses[0], losses[-1], recipe.learning_rate)
    if before is None or after is None:
        return {}
    if after < before:
        logger.warning(
            "the tuned vectors are less isotropic than those of the base model (%g, before %g): "
            "evaluate both before you use them; another pooling, base model or more strings help",
            after,
            before,
        )
    return {"isotropy_before": before, "isotropy_after": after}


def _mlp(base: Pretrained, recipe: Recipe, seed: int) -> Dense | None:
    """Return the layer that is trained behind the pooling, if the recipe has one."""
    if recipe.mlp == "none":
        return None
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        layer = Dense(base.dimension, base.dimension, activation=nn.Tanh())
        nn.init.normal_(layer.linear.weight, std=0.02)  # as BERT initialises its layers
        nn.init.zeros_(layer.linear.bias)
    if recipe.mlp == "pooler":
        if base.pooler is None:
            raise ConfigError(
                field="mlp", expected=f"another, as {base.name} has no pooler", value="pooler"
            )
        layer.linear.load_state_dict(base.pooler.state_dict())
    return layer


def _declare_parts(recipe: Recipe, dimension: int, folder: Path) -> None:
    """Say in config.json which dimensions were trained to stand alone, as vLLM looks for them."""
    if recipe.matryoshka:
        path = folder / "config.json"
        sizes = {"is_matryoshka": True, "matryoshka_dimensions": [*recipe.matryoshka, dimension]}
        write_json(path, read_json(path, "model") | sizes)


def load_base(config: TrainConfig) -> Pretrained:
    """Load the base model of a run, with the dropout of its recipe."""
    return load_pretrained(config.model, dropout=config.recipe.dropout, **config.load_options())


def _course(trainer: Trainer, batches: Batches, ended_by: EndedBy) -> dict[str, Any]:
    """Return the course of the run, for mirror.json."""
    stats, near = trainer.stats, trainer.neighbours
    done = len(stats.losses)
    strings = sum(batches.size(step) for step in range(done))
    return ({} if near is None else {"kept_neighbours": round(near.kept, 4)}) | {
        "loss_batch": batches.loss_batch,
        "strings_seen": batches.seen(done),
        "ended_by": ended_by if done == len(batches) else "neighbours",
        "strings_per_second": round(strings / stats.seconds, 1),
        "padding_percent": round(stats.padding_percent, 2),
        "cut_percent": round(stats.cut_percent, 2),
    }


def check_recipe(recipe: Recipe, data: TrainingData, base: Pretrained, processes: int) -> None:
    """Raise ConfigError where a recipe does not fit the data, the model or several processes."""
    base.check_length(recipe.max_length)
    base.check_special_tokens([recipe.fixed_pooling])
    if recipe.pooling == "cls" and has_causal_attention(base):
        raise ConfigError(
            Setting("pooling", "cls"),
            f" takes the first token, which in {base.name} sees no other: pass --pooling lasttoken "
            "or --pooling mean",
        )
    if recipe.mlp != "none" and (recipe.whitening or recipe.pooling == "mean-with-padding"):
        raise ConfigError(
            Setting("mlp"), " goes neither with whitening nor with the pooling mean-with-padding"
        )
    if recipe.matryoshka and recipe.matryoshka[-1] >= base.dimension:
        raise ConfigError(
            field="matryoshka",
            expected=f"less than the {base.dimension} dimensions of {base.name}",
            value=recipe.matryoshka,
        )
    if recipe.matryoshka and recipe.mlp == "training":
        raise ConfigError(
            Setting("matryoshka"),
            " does not go with ",
            Setting("mlp", "training"),
            ", whose layer is left out of the folder",
        )
    if recipe.whitening and recipe.pooling == "mean-with-padding":
        raise ConfigError(
            "whitening does not go with the pooling mean-with-padding, whose folder has no list of "
            "modules to keep the layer in: pass --pooling mean"
        )
    if recipe.loss == "first_view" and (processes > 1 or data.hard_negatives is not None):
        raise ConfigError(
            "the loss first_view is for one process and no hard negatives: choose ntxent"
        )
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
