"""The hyper-parameters of BERT-flow, BERT-CF, BURT and fine-tuning on one task or several."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, get_args

from mirror_rt.bundle.manifest import PoolingMode
from mirror_rt.errors import ConfigError, Setting
from mirror_rt.schema import Rule
from mirror_train.recipes.recipe import (
    Hyperparameters,
    NotNegative,
    Positive,
    Rate,
    Recipe,
    least,
    load_recipe,
)

# The names in section 5.1 of the paper: natural language inference, paraphrase identification and
# pairwise text classification.
Objective = Literal["nli", "pi", "ptc"]
OBJECTIVES: tuple[Objective, ...] = get_args(Objective)
TASKS = ("sentiment", "paraphrase", "similarity")
BurtPooling = Literal["cls", "max", "mean"]
# The seven concatenations of table 4, made of the parts in `mirror_rt.heads.task_heads.FEATURES`.
CONCATENATIONS = ("u,v", "|u-v|", "u*v", "u,v,|u-v|", "u,v,u*v", "|u-v|,u*v", "u,v,|u-v|,u*v")
_CONCATENATION = Rule(
    "one of " + " ".join(map(repr, CONCATENATIONS)), lambda name: name in CONCATENATIONS
)


@dataclass(frozen=True, slots=True)
class FlowRecipe(Hyperparameters):
    """The hyper-parameters of a flow (BERT-CF, sections 4.2, 5.3; hidden size: BERT-flow's code).

    Attributes:
        blocks: number of blocks of each level of the flow.
        levels: number of levels, after each of which but the last half of the dimensions are left
            as they are; 1 as in BERT-CF's text, 3 in the code of BERT-flow.
        hidden_size: hidden size of the network in each block's coupling.
        steps: number of steps of AdamW.
        batch_size: number of strings of a step.
        learning_rate: rate of AdamW.
        weight_decay: weight decay of AdamW.
        warm_up: the share of the steps over which the learning rate rises.
        decay: whether it falls to 0 over the others, or stays.
    """

    blocks: Annotated[int, least(1)] = 3
    levels: Annotated[int, least(1)] = 1
    hidden_size: Annotated[int, least(1)] = 32
    steps: Annotated[int, least(1)] = 10_000
    batch_size: Annotated[int, least(1)] = 16
    learning_rate: Positive = 3e-4
    weight_decay: NotNegative = 0.01
    warm_up: Rate = 0.0
    decay: bool = False


@dataclass(frozen=True, slots=True)
class CfRecipe(Hyperparameters):
    """The hyper-parameters of BERT-CF (sections 4.1, 4.2, 5.3).

    Each ablation of the paper's section 6.1 changes one field.

    Attributes:
        mirror: the first step, and the views and the loss of the regulariser. With `span_length` 0
            the views are those of SimCSE ("MinBERT-SimCSE-joint").
        flow: the second step. Its batches are those of the regulariser, too.
        mirror_weight: lambda, the weight of the contrastive loss beside the flow's; 0 fits the flow
            by likelihood alone ("MinBERT-Mirror-flow").
        joint: leave out the first step, and let the contrastive loss of the second one move the
            encoder, too, at the learning rate of `mirror` ("MinBERT-joint").
    """

    mirror: Recipe = field(default_factory=lambda: load_recipe("cf"))
    flow: FlowRecipe = field(default_factory=FlowRecipe)
    mirror_weight: NotNegative = 0.3
    joint: bool = False

    def __post_init__(self) -> None:
        Hyperparameters.__post_init__(self)
        if self.joint and not self.mirror_weight:
            raise ConfigError(
                Setting("joint"),
                " needs the regulariser: without it nothing would train the encoder",
            )
        if self.mirror_weight and self.flow.batch_size < 2:
            raise ConfigError(
                field="batch_size", expected="at least 2: InfoNCE needs negatives", value=1
            )
        if self.mirror.pooling == "mean-with-padding" or self.mirror.whitening:
            raise ConfigError(
                "a flow follows neither the pooling mean-with-padding nor a whitening layer"
            )
        if self.mirror.mlp != "none":
            raise ConfigError(
                field="mlp", expected="none where a flow follows", value=self.mirror.mlp
            )

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for mirror.json; names of the flow's fields begin with `flow_`."""
        flow = {f"flow_{name}": value for name, value in dataclasses.asdict(self.flow).items()}
        joint = {"mirror_weight": self.mirror_weight, "joint": self.joint}
        return dataclasses.asdict(self.mirror) | flow | joint


@dataclass(frozen=True, slots=True)
class BurtRecipe(Hyperparameters):
    """The hyper-parameters of BURT (sections 3.2, 3.3); the paper gives no learning rate.

    Attributes:
        objectives: some of `OBJECTIVES`, in the order of their batches; none for all that there
            are data for.
        pooling: cls, max or mean, whatever the base model declares.
        concatenation: one of `CONCATENATIONS`, for the two vectors of a pair.
        negatives: k, the number of random pairs for each pair of paraphrases.
        batch_size: number of pairs in a batch.
        learning_rate: the highest rate of Adam.
        warm_up: the share of the steps over which it rises.
        decay: whether it falls to 0 over the others, or stays.
        dropout: rate of every dropout of the encoder.
        epochs: passes over the sentence pairs; without them, over the largest task. Smaller tasks
            begin again, larger ones are not finished.
        steps: number of optimiser steps, in the place of epochs.
        max_length: the most tokens of a text in training.
    """

    objectives: tuple[Objective, ...] = ()
    pooling: BurtPooling = "mean"
    concatenation: Annotated[str, _CONCATENATION] = "u,v,|u-v|"
    negatives: Annotated[int, least(1)] = 3
    batch_size: Annotated[int, least(1)] = 16
    learning_rate: Positive = 2e-5
    warm_up: Rate = 0.1
    decay: bool = True
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
        Hyperparameters.__post_init__(self)


@dataclass(frozen=True, slots=True)
class FinetuneRecipe(Hyperparameters):
    """The hyper-parameters of fine-tuning with one decoding layer; no paper gives any.

    Attributes:
        layer: `softmax` over classes; `regression`, by a softmax over the whole numbers of the
            values; or `cosine` of the projected vectors of pairs, for two classes or for values.
        frozen: train the layer alone, on the vectors of an encoder that stays as it is.
        concatenation: one of `CONCATENATIONS`, for the two vectors of a pair; none for
            `u,v,|u-v|`, and for a regression `|u-v|,u*v`, as in SentEval.
        projection: length of the projected vectors of a cosine.
        hinge: the least cosine; lower ones are raised to it.
        epochs: passes over the rows.
        steps: number of optimiser steps, in the place of epochs.
        batch_size: number of rows of a batch.
        learning_rate: the highest rate of AdamW; by default 2e-5, and 1e-3 where the encoder is
            frozen.
        weight_decay: weight decay of AdamW.
        warm_up: the share of the steps over which the learning rate rises.
        decay: whether it falls to 0 over the others, or stays.
        dropout: rate of every dropout of the encoder.
        layer_dropout: rate of dropout before the layer.
        max_length: the most tokens of a text in training.
        pooling: `auto` takes what the base model declares, else the mean.
    """

    layer: Literal["softmax", "regression", "cosine"] = "softmax"
    frozen: bool = False
    concatenation: Annotated[str | None, _CONCATENATION] = None
    projection: Annotated[int, least(1)] = 768
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

    @property
    def features(self) -> list[str]:
        """The parts that a pair's two vectors are joined from."""
        default = "|u-v|,u*v" if self.layer == "regression" else "u,v,|u-v|"
        return (self.concatenation or default).split(",")


@dataclass(frozen=True, slots=True)
class MultitaskRecipe(Hyperparameters):
    """The hyper-parameters of multi-task fine-tuning; defaults as in BERT-CF (sections 4.3, 5.3).

    Attributes:
        steps: number of optimiser steps; each takes a batch of every task.
        learning_rate: rate of AdamW.
        weight_decay: weight decay of AdamW.
        warm_up: the share of the steps over which the learning rate rises.
        decay: whether it falls to 0 over the others, or stays.
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
    learning_rate: Positive = 1e-5
    weight_decay: NotNegative = 0.01
    warm_up: Rate = 0.0
    decay: bool = False
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
        Hyperparameters.__post_init__(self)
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
