"""BURT: train one encoder for words, phrases and sentences on pairs (Li and Zhao 2020)."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated, Literal

from mirror_rt.errors import ConfigError
from mirror_rt.schema import least
from mirror_train.data.burt_tasks import (
    IDENTIFICATION_LABELS,
    OBJECTIVES,
    BurtTasks,
    NegativeSampling,
    Objective,
    turns,
)
from mirror_train.data.inputs import Inputs
from mirror_train.data.passes import TaskBatch, TaskBatches
from mirror_train.recipes.recipe import Concatenation, Hyperparameters, Positive, Rate
from mirror_train.systems.system import Claim, Entry, System
from mirror_train.training.run_config import TrainConfig, TunedPooling

if TYPE_CHECKING:
    from mirror_train.model.task_layers import TaskLayer
    from mirror_train.training.run import TuneReport


@dataclass(frozen=True, slots=True)
class BurtRecipe(Hyperparameters):
    """The hyper-parameters of BURT (sections 3.2, 3.3); the paper gives no learning rate.

    Attributes:
        objectives: some of `OBJECTIVES`, in the order of their batches; none for all that there
            are data for.
        pooling: cls, max or mean, whatever the base model declares.
        concatenation: one of `CONCATENATIONS`, for the two vectors of a pair.
        negatives: k, the number of random pairs for each pair of paraphrases.
        epochs: passes over the sentence pairs; without them, over the largest task. Smaller tasks
            begin again, larger ones are not finished.
    """

    objectives: tuple[Objective, ...] = ()
    pooling: Literal["cls", "max", "mean"] = "mean"
    concatenation: Concatenation = "u,v,|u-v|"
    negatives: Annotated[int, least(1)] = 3
    batch_size: Annotated[int, least(1)] = 16
    learning_rate: Positive = 2e-5
    warm_up: Rate = 0.1
    decay: bool = True
    dropout: Rate = 0.1
    epochs: Positive = 1
    steps: Annotated[int | None, least(1)] = None
    max_length: Annotated[int, least(3)] = 128

    default_seed = 11711

    def __post_init__(self) -> None:
        if unknown := [name for name in self.objectives if name not in OBJECTIVES]:
            raise ConfigError(
                field="objectives", expected=f"of {', '.join(OBJECTIVES)}", value=unknown[0]
            )
        if len(set(self.objectives)) < len(self.objectives):
            raise ConfigError(f"an objective is given twice: {', '.join(self.objectives)}")
        Hyperparameters.__post_init__(self)


def _run(tasks: BurtTasks, config: TrainConfig) -> TuneReport:
    """Train an encoder on pairs, and the heads of its objectives."""
    from mirror_train.training.labelled import open_model
    from mirror_train.training.optimizer import SparseAdamW
    from mirror_train.training.run import begun

    objectives: tuple[str, ...] = config.recipe.objectives or tasks.objectives
    if not objectives:
        raise ConfigError("there are no data: pass --nli FILE, --ppdb FILE or --paraphrases FILE")
    recipe: BurtRecipe = config.recipe.replace(objectives=objectives)
    for name in objectives:
        if name != "pi":
            tasks.of(name).check_classes()
    total, batches = plan_batches(tasks, recipe, config.seed)
    config = dataclasses.replace(config, recipe=recipe)
    with begun(config, config.precision) as run:
        run.processes.own_rows(recipe.batch_size)
        make = {name: partial(_layer, name, tasks, recipe) for name in objectives}
        hashes = {name: tasks.of(name).sha256() for name in objectives}
        model = open_model(run, make, data=hashes, selects=False)
        parameters = [one for module in model.modules.values() for one in module.parameters()]
        rate = recipe.learning_rate
        adam = SparseAdamW(parameters, rate, (0.9, 0.98), eps=1e-9, weight_decay=0, fused=True)
        trainer = model.trainer(total, batches, optimizer=adam)
        run.train(trainer, "burt", run.encoder(model.head))
        return model.write(trainer.stats, system="burt", data=tasks.summary(objectives))


def plan_batches(
    tasks: BurtTasks, recipe: BurtRecipe, seed: int
) -> tuple[int, Callable[[int], list[TaskBatch]]]:
    """Return the number of steps, and a function from a step to its batch.

    It is of the objective whose turn it is. The steps are passes over the sentence pairs or,
    without them, over the largest task.
    """
    order = turns(recipe.objectives)
    of: dict[str, TaskBatches | NegativeSampling] = {
        name: _batches_of(name, tasks, recipe, seed) for name in recipe.objectives
    }
    longest = max(
        math.ceil(len(of[name]) / recipe.batch_size) * len(order) / order.count(name)
        for name in (["nli"] if "nli" in of else [*of])
    )

    def batches(step: int) -> list[TaskBatch]:
        done, place = divmod(step, len(order))
        name = order[place]
        return [of[name][done * order.count(name) + order[:place].count(name)]]

    return recipe.steps or math.ceil(recipe.epochs * longest), batches


def _batches_of(
    name: Objective, tasks: BurtTasks, recipe: BurtRecipe, seed: int
) -> TaskBatches | NegativeSampling:
    """Return the batches of an objective."""
    if name == "pi":
        return NegativeSampling(tasks.of(name), recipe.negatives, recipe.batch_size, seed)
    return TaskBatches(name, tasks.of(name), recipe.batch_size, (seed, OBJECTIVES.index(name)))


def _layer(name: str, tasks: BurtTasks, recipe: BurtRecipe, dimension: int) -> TaskLayer:
    from mirror_train.model.task_layers import SoftmaxLayer

    labels = IDENTIFICATION_LABELS if name == "pi" else tasks.of(name).labels
    return SoftmaxLayer(name, dimension, labels, features=recipe.concatenation.split(","))


def _fitted(recipe: BurtRecipe, tasks: BurtTasks, pooling: TunedPooling) -> BurtRecipe:
    """Return the recipe with at most an epoch of the inference pairs.

    The pooling is that of the recipe, which has one for every base model.
    """
    if recipe.steps is None:
        return recipe
    every = 1 if tasks.objectives == ("nli",) else 2  # every second batch is of inference
    pairs = 0 if tasks.nli is None else len(tasks.nli)
    epoch = max(1, every * math.ceil(pairs / recipe.batch_size))
    return recipe.replace(steps=min(recipe.steps, epoch))


SYSTEM = System(
    name="burt",
    title="train one encoder for texts of all lengths on labelled pairs (BURT)",
    paper="BURT (Li and Zhao 2020)",
    recipe=BurtRecipe,
    run=_run,
    command="mirror_train.cli.burt:TrainBurt",
    labelled=True,
    fitted=_fitted,
    entries=(
        Entry("burt", "inference and paraphrases, by classes", "BURT (Li and Zhao 2020)",
              ("inference",), BurtRecipe, Inputs.burt_tasks,
              (Claim(suites=("sentences", "words")),), ("ppdb", "paraphrases")),
    ),
)  # fmt: skip
