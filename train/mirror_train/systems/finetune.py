"""Fine-tune an encoder with one decoding layer, or the layer alone, on any labelled rows."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated, Literal

from mirror_rt.bundle.manifest import PoolingMode
from mirror_rt.cli.parsing.options import Given, Group
from mirror_rt.errors import ConfigError, Setting
from mirror_rt.schema import Rule, least
from mirror_train.data.labelled_examples import Examples
from mirror_train.data.tasks import MultitaskData, TaskData, TaskFiles
from mirror_train.recipes.recipe import (
    Concatenation,
    CosineLoss,
    Hyperparameters,
    NotNegative,
    Positive,
    Rate,
)
from mirror_train.systems.multitask import print_metrics, print_rows
from mirror_train.systems.options import Training, run_options
from mirror_train.systems.system import System
from mirror_train.training.run_config import TrainConfig

if TYPE_CHECKING:
    from mirror_train.model.task_layers import TaskLayer
    from mirror_train.training.run import TuneReport

_MOST_NUMBERS = 1000  # of the scale of a regression, each of which is an output of its layer


@dataclass(frozen=True, slots=True)
class FinetuneRecipe(Hyperparameters):
    """The hyper-parameters of fine-tuning with one decoding layer; no paper gives any.

    Attributes:
        layer: `softmax` over classes; `regression`, by a softmax over the whole numbers of the
            values; or `cosine` of the projected vectors of pairs, for two classes or for values.
        frozen: train the layer alone, on the vectors of an encoder that stays as it is.
        concatenation: one of `CONCATENATIONS`, for the two vectors of a pair; none for
            `u,v,|u-v|`, and for a regression `|u-v|,u*v`, as in SentEval.
        projection: length of the projected vectors of a cosine; 0 to train the cosines of the
            encoder's own vectors, without a projection.
        hinge: the least cosine; lower ones are raised to it.
        learning_rate: the highest rate of AdamW; by default 2e-5, and 1e-3 where the encoder is
            frozen.
        layer_dropout: rate of dropout before the layer.
        loss: the loss of a cosine and values: the `squared` error; or how far the pairs
            of a batch are from the order of their values, by the cosine (`cosent`) or by AnglE's
            similarity (`angle`).
        temperature: of `cosent` and `angle`.
    """

    layer: Literal["softmax", "regression", "cosine"] = "softmax"
    frozen: bool = False
    concatenation: Concatenation | None = None
    projection: Annotated[int, least(0)] = 768
    hinge: Annotated[float, Rule("in -1 .. 1, below 1", lambda hinge: -1 <= hinge < 1)] = 0.0
    epochs: Positive = 3
    steps: Annotated[int | None, least(1)] = None
    batch_size: Annotated[int, least(1)] = 32
    learning_rate: Positive | None = None
    weight_decay: NotNegative = 0.01
    warm_up: Rate = 0.1
    decay: bool = True
    dropout: Rate = 0.1
    layer_dropout: Rate = 0.1
    max_length: Annotated[int, least(3)] = 128
    pooling: PoolingMode | Literal["auto"] = "auto"
    loss: CosineLoss = "squared"
    temperature: Positive = 0.05

    default_seed = 11711

    def __post_init__(self) -> None:
        Hyperparameters.__post_init__(self)
        if self.loss != "squared" and self.layer != "cosine":
            raise ConfigError(Setting("loss", self.loss), " goes with ", Setting("layer", "cosine"))
        if self.frozen and self.projection == 0:
            raise ConfigError(
                Setting("frozen"), " trains the layer alone, and without a projection it has none"
            )

    @property
    def features(self) -> list[str]:
        """The parts that a pair's two vectors are joined from."""
        default = "|u-v|,u*v" if self.layer == "regression" else "u,v,|u-v|"
        return (self.concatenation or default).split(",")


@dataclass(frozen=True, kw_only=True)
class TrainFinetune(Training):
    """Fine-tune an encoder with a decoding layer on a file of labelled texts or pairs.

    The layer is a softmax over classes, a regression of values, or a cosine of projected vectors;
    --frozen trains it alone. The folder is exported like any other, and the layer goes with it:
    see 'mirror-rt predict'. Ctrl-C writes a checkpoint.

    Examples:
        mirror-rt train finetune --data train.tsv --dev dev.tsv --test test.tsv --out tuned
        mirror-rt train finetune bert --layer regression --frozen --data sts-train.tsv --out tuned
        mirror-rt train finetune --data lines.tsv --fields 1,2 --label-field 3 --out tuned
    """

    data: Annotated[TaskFiles, Group("data")]
    config: Annotated[Given[TrainConfig], run_options("precision", "task")]
    recipe: Annotated[Given[FinetuneRecipe], Group("hyper-parameters")]

    def run(self) -> None:
        from mirror_train.systems import train

        recipe = self.recipe.make()
        config = self.settings("finetune", self.config, recipe)
        data = self.data.load(layer=recipe.layer, seed=config.seed)
        print_rows(MultitaskData({config.task: data}))
        print_metrics(train("finetune", data, config))


def _run(data: TaskData, config: TrainConfig) -> TuneReport:
    """Train for one task of any kind (BURT, sections 3 and 4.1).

    The weights are those with the best accuracy or Pearson's correlation on `data.dev`; mirror.json
    has the metrics on it, and on `data.test`.
    """
    from mirror_train.training.labelled import train_tasks

    recipe, rows = config.recipe, len(data.train)
    return train_tasks(
        "finetune",
        MultitaskData({config.task: data}),
        config,
        {config.task: partial(_decoding_layer, config.task, data.train, recipe)},
        sizes={config.task: recipe.batch_size},
        steps=recipe.steps or math.ceil(recipe.epochs * rows / recipe.batch_size),
        learning_rate=recipe.learning_rate or (1e-3 if recipe.frozen else 2e-5),
        frozen=recipe.frozen,
    )


def _decoding_layer(
    name: str, train: Examples, recipe: FinetuneRecipe, dimension: int
) -> TaskLayer:
    from mirror_train.model.task_layers import CosineLayer, RegressionLayer, SoftmaxLayer

    dropout, scale = recipe.layer_dropout, None if train.labels else train.scale()
    features = [] if train.second is None else recipe.features
    if recipe.layer == "cosine":
        if scale is None and recipe.loss != "squared":
            raise ConfigError(
                Setting("loss", recipe.loss),
                f" ranks pairs by values, and those of {train.source} have classes",
            )
        return CosineLayer(
            name,
            dimension,
            recipe.projection,
            hinge=recipe.hinge,
            labels=train.labels,
            scale=scale,
            dropout=dropout,
            loss=recipe.loss,
            temperature=recipe.temperature,
        )
    if scale is None:
        return SoftmaxLayer(name, dimension, train.labels, features=features, dropout=dropout)
    if scale[1] - scale[0] >= _MOST_NUMBERS:
        raise ConfigError(
            f"the values of {train.source} are in {scale[0]:g} .. {scale[1]:g}: a regression has "
            f"an output for each whole number, {_MOST_NUMBERS} at most; divide them"
        )
    return RegressionLayer(name, dimension, scale, features=features, dropout=dropout)


SYSTEM = System(
    name="finetune",
    title="fine-tune with a decoding layer on any labelled texts or pairs",
    paper="a decoding layer on labelled texts",
    recipe=FinetuneRecipe,
    run=_run,
    command=f"{__name__}:TrainFinetune",
    settings=("precision", "task"),
    labelled=True,
)
