"""The hyper-parameters and the run settings of BURT and of multi-task fine-tuning."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Literal, get_args

from mirror_rt.bundle.manifest import PoolingMode
from mirror_rt.errors import ConfigError
from mirror_rt.schema import Rule
from mirror_train.compute.precision import Precision
from mirror_train.recipes.recipe import NotNegative, Positive, Rate, check_rules, least
from mirror_train.training.run_config import RunConfig

# The names in section 5.1 of the paper: natural language inference, paraphrase identification and
# pairwise text classification.
Objective = Literal["nli", "pi", "ptc"]
OBJECTIVES: tuple[Objective, ...] = get_args(Objective)
TASKS = ("sentiment", "paraphrase", "similarity")
BurtPooling = Literal["cls", "max", "mean"]
# The seven concatenations of table 4, made of the parts in `mirror_rt.heads.task_heads.FEATURES`.
CONCATENATIONS = ("u,v", "|u-v|", "u*v", "u,v,|u-v|", "u,v,u*v", "|u-v|,u*v", "u,v,|u-v|,u*v")
_BURT_POOLING = Rule(
    f"of {', '.join(get_args(BurtPooling))}", lambda name: name in get_args(BurtPooling)
)
_CONCATENATION = Rule(
    "one of " + " ".join(map(repr, CONCATENATIONS)), lambda name: name in CONCATENATIONS
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskConfig(RunConfig):
    """All settings of a run with task heads but its data and its recipe; see `RunConfig`.

    Attributes:
        precision: auto, fp32, bf16 or fp16.
        seed: see `RunConfig`; the default is that of BERT-CF.
    """

    precision: Precision = "auto"
    seed: Annotated[int, least(0)] = 11711


@dataclass(frozen=True, slots=True)
class BurtRecipe:
    """The hyper-parameters of BURT (sections 3.2, 3.3); the paper gives no learning rate.

    Attributes:
        objectives: some of `OBJECTIVES`, in the order of their batches; none for all that there
            are data for.
        pooling: cls, max or mean, whatever the base model declares.
        concatenation: one of `CONCATENATIONS`, for the two vectors of a pair.
        negatives: k, the number of random pairs for each pair of paraphrases.
        batch_size: number of pairs in a batch.
        learning_rate: the highest rate of Adam.
        warm_up: the share of the steps over which it rises; it falls to 0 over the others.
        dropout: rate of every dropout of the encoder.
        epochs: passes over the sentence pairs; without them, over the largest task. Smaller tasks
            begin again, larger ones are not finished.
        steps: number of optimiser steps, in the place of epochs.
        max_length: the most tokens of a text in training.
    """

    objectives: tuple[Objective, ...] = ()
    pooling: Annotated[BurtPooling, _BURT_POOLING] = "mean"
    concatenation: Annotated[str, _CONCATENATION] = "u,v,|u-v|"
    negatives: Annotated[int, least(1)] = 3
    batch_size: Annotated[int, least(1)] = 16
    learning_rate: Positive = 2e-5
    warm_up: Rate = 0.1
    dropout: Rate = 0.1
    epochs: Positive = 1
    steps: Annotated[int | None, least(1)] = None
    max_length: Annotated[int, least(3)] = 128

    def __post_init__(self) -> None:
        if unknown := [name for name in self.objectives if name not in OBJECTIVES]:
            raise ConfigError(
                field="objectives", expected=f"of {', '.join(OBJECTIVES)}", value=unknown[0]
            )
        if len(set(self.objectives)) < len(self.objectives):
            raise ConfigError(f"an objective is given twice: {', '.join(self.objectives)}")
        check_rules(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class BurtConfig(TaskConfig):
    """All settings of a run of `tune_burt` but its data; see `TaskConfig`."""

    recipe: BurtRecipe = field(default_factory=BurtRecipe)


@dataclass(frozen=True, slots=True)
class MultitaskRecipe:
    """The hyper-parameters of multi-task fine-tuning; defaults as in BERT-CF (sections 4.3, 5.3).

    Attributes:
        steps: number of optimiser steps; each takes a batch of every task.
        evaluate_every: steps between evaluations; the best weights by the mean of the tasks'
            metrics are kept. The last step is always evaluated.
        learning_rate: rate of AdamW, constant.
        weight_decay: weight decay of AdamW.
        dropout: rate of every dropout of the encoder.
        max_length: the most tokens of a text in training.
        pooling: `auto` takes what the base model declares, else the mean (section 5.3).
        projection: e, length of the projected vectors of the tasks of pairs.
        weights: the factor of each task's loss.
        batch_sizes: the number of rows in a batch of each task.
        dropouts: the rate of dropout before the head of each task.
        hinges: the least similarity of each task of pairs.
    """

    steps: Annotated[int, least(1)] = 5000
    evaluate_every: Annotated[int, least(1)] = 500
    learning_rate: Positive = 1e-5
    weight_decay: NotNegative = 0.01
    dropout: Rate = 0.1
    max_length: Annotated[int, least(3)] = 128
    pooling: PoolingMode | Literal["auto"] = "auto"
    projection: Annotated[int, least(1)] = 768
    weights: Mapping[str, float] = field(
        default_factory=lambda: {"sentiment": 5.0, "paraphrase": 20.0, "similarity": 1.0}
    )
    batch_sizes: Mapping[str, int] = field(
        default_factory=lambda: {"sentiment": 32, "paraphrase": 96, "similarity": 32}
    )
    dropouts: Mapping[str, float] = field(
        default_factory=lambda: {"sentiment": 0.3, "paraphrase": 0.0, "similarity": 0.1}
    )
    hinges: Mapping[str, float] = field(
        default_factory=lambda: {"paraphrase": 0.7, "similarity": 0.0}
    )

    def __post_init__(self) -> None:
        check_rules(self)
        checks = [
            (f"hinge of {name}", hinge, -1 <= hinge < 1, "in -1 .. 1, below 1")
            for name, hinge in self.hinges.items()
        ]
        for name in TASKS:
            weight, size, rate = self.weights[name], self.batch_sizes[name], self.dropouts[name]
            checks += [
                (f"weight of {name}", weight, weight > 0, "above 0"),
                (f"batch size of {name}", size, size >= 1, "at least 1"),
                (f"dropout of {name}", rate, 0 <= rate < 1, "at least 0 and less than 1"),
            ]
        for name, value, holds, expected in checks:
            if not holds:
                raise ConfigError(f"{name} must be {expected}, got {value}")


@dataclass(frozen=True, slots=True, kw_only=True)
class MultitaskConfig(TaskConfig):
    """All settings of a run of `tune_multitask` but its data; see `TaskConfig`."""

    recipe: MultitaskRecipe = field(default_factory=MultitaskRecipe)
