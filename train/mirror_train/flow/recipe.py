"""The hyper-parameters and the run settings of BERT-flow and BERT-CF."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from mirror_rt.errors import ConfigError, Setting
from mirror_train.compute.precision import Precision
from mirror_train.recipes.recipe import (
    NotNegative,
    Positive,
    Recipe,
    check_rules,
    check_types,
    checked,
    least,
    load_recipe,
)
from mirror_train.training.run_config import RunConfig

FlowPooling = Literal["auto", "cls", "mean", "mean-without-special"]


@dataclass(frozen=True, slots=True)
class FlowRecipe:
    """The hyper-parameters of a flow (BERT-CF, sections 4.2, 5.3; hidden size: BERT-flow's code).

    Attributes:
        blocks: number of blocks of the flow.
        hidden_size: hidden size of the network in each block's coupling.
        steps: number of steps of AdamW, at a constant learning rate.
        batch_size: number of strings of a step.
        learning_rate: rate of AdamW.
        weight_decay: weight decay of AdamW.
    """

    blocks: Annotated[int, least(1)] = 3
    hidden_size: Annotated[int, least(1)] = 32
    steps: Annotated[int, least(1)] = 10_000
    batch_size: Annotated[int, least(1)] = 16
    learning_rate: Positive = 3e-4
    weight_decay: NotNegative = 0.01

    def __post_init__(self) -> None:
        check_types(self)
        check_rules(self)


@dataclass(frozen=True, slots=True)
class CfRecipe:
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
        weight = checked("mirror_weight", self.mirror_weight, float)
        object.__setattr__(self, "mirror_weight", weight)
        check_rules(self)
        if self.joint and weight == 0:
            raise ConfigError(
                Setting("joint"),
                " needs the regulariser: without it nothing would train the encoder",
            )
        if weight and self.flow.batch_size < 2:
            raise ConfigError(
                field="batch_size", expected="at least 2: InfoNCE needs negatives", value=1
            )
        if self.mirror.pooling == "mean-with-padding" or self.mirror.whitening:
            raise ConfigError(
                "a flow follows neither the pooling mean-with-padding nor a whitening layer"
            )

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for mirror.json; names of the flow's fields begin with `flow_`."""
        flow = {f"flow_{name}": value for name, value in dataclasses.asdict(self.flow).items()}
        joint = {"mirror_weight": self.mirror_weight, "joint": self.joint}
        return dataclasses.asdict(self.mirror) | flow | joint


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowConfig(RunConfig):
    """All settings of a run of BERT-flow but its strings; see `RunConfig`.

    Attributes:
        recipe: hyper-parameters.
        pooling: cls, mean or mean-without-special; auto for what the model declares, else mean.
            What follows the pooling of the model stays, and the flow comes after it.
    """

    recipe: FlowRecipe = field(default_factory=FlowRecipe)
    pooling: FlowPooling = "auto"


@dataclass(frozen=True, slots=True, kw_only=True)
class CfConfig(RunConfig):
    """All settings of a run of BERT-CF but its strings; see `RunConfig`.

    The result of the first step is kept in OUT.mirror until the run is complete.

    Attributes:
        recipe: hyper-parameters of both steps.
        pooling: cls, mean or mean-without-special; auto as `mirror-rt tune` has it.
        precision: precision of the encoder: auto, fp32, bf16 or fp16.
        resume: go on with the first step's checkpoint, or with its result.
    """

    recipe: CfRecipe = field(default_factory=CfRecipe)
    pooling: FlowPooling = "auto"
    precision: Precision = "auto"
    resume: bool = False

    def __post_init__(self) -> None:
        RunConfig.__post_init__(self)
        if self.resume and self.recipe.joint:
            raise ConfigError(
                Setting("resume"), " continues the first step, which joint leaves out"
            )

    @property
    def mirror_out(self) -> Path:
        """The folder in which the first step leaves its result."""
        return self.out.parent / f"{self.out.name}.mirror"
