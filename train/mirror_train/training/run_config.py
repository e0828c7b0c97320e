"""The settings of a run: those of every training command, and those of each system."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from mirror_rt.bundle.manifest import Manifest, Pooling
from mirror_rt.errors import ConfigError, Setting
from mirror_rt.heads.task_heads import HEAD_NAME
from mirror_rt.io.atomic import path_sha256
from mirror_rt.keywords import take_paths
from mirror_train.compute.precision import Precision
from mirror_train.model.model_folder import DEFAULT_MODEL
from mirror_train.recipes.cross_encoders import CrossEncoderRecipe, TransEncoderRecipe
from mirror_train.recipes.recipe import Recipe, check_rules, least
from mirror_train.recipes.systems import (
    BurtRecipe,
    CfRecipe,
    FinetuneRecipe,
    FlowRecipe,
    MultitaskRecipe,
)

# `paper` takes the pooling of the papers, whatever the base model declares.
TunedPooling = Literal[Pooling, "auto", "paper"]
FlowPooling = Literal[
    "auto", "paper", "cls", "mean", "max", "mean-without-special", "first-last-avg"
]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunConfig:
    """All settings of a run but its data and its hyper-parameters.

    Attributes:
        out: folder to write.
        model: base model: folder, hub name, or the embedded default.
        revision: branch, tag or commit on the hub.
        device: auto, cpu, cuda or cuda:N.
        seed: the same seed gives the same vectors on the same machine.
        overwrite: replace an existing `out`, and forget what an earlier run has left.
        offline: never ask the network.
        trust_remote_code: run code that comes with the base model.
        show_progress_bar: by default a bar where standard error is a terminal.
    """

    out: Path
    model: str = DEFAULT_MODEL
    revision: str | None = None
    device: str = "auto"
    seed: Annotated[int, least(0)] = 42
    overwrite: bool = False
    offline: bool = False
    trust_remote_code: bool = False
    show_progress_bar: bool | None = None

    def __post_init__(self) -> None:
        take_paths(self)
        check_rules(self)

    def run_options(self) -> dict[str, Any]:
        """Return the fields of `RunConfig`, to make the settings of another run from."""
        return {one.name: getattr(self, one.name) for one in dataclasses.fields(RunConfig)}

    def load_options(self, model: str | None = None) -> dict[str, Any]:
        """Return the fields that say how a model is loaded; only the base has the revision."""
        revision = self.revision if model in (None, self.model) else None
        own = {name: getattr(self, name) for name in ("offline", "trust_remote_code")}
        return own | {"revision": revision}


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainConfig(RunConfig):
    """All settings of one training run but its data and its hyper-parameters; see `RunConfig`.

    Attributes:
        checkpoint_every: steps between checkpoints; 0 for none but on Ctrl-C.
        resume: continue after the last checkpoint, if there is one.
        select: a table of scored pairs that choose the weights: those with the highest Spearman's
            rho, in the place of those of the last step.
        evaluate_every: steps between evaluations for that choice; the last step is evaluated, too.
    """

    checkpoint_every: Annotated[int, least(0)] = 0
    resume: bool = False
    select: Path | None = None
    evaluate_every: Annotated[int, least(1)] = 500

    def __post_init__(self) -> None:
        RunConfig.__post_init__(self)
        if self.resume and self.overwrite:
            raise ConfigError(
                Setting("resume"), " continues a run, overwrite starts it again: choose one"
            )

    @property
    def selects(self) -> dict[str, Any] | None:
        """What chooses the weights by `select`, for mirror.json; None for nothing."""
        if self.select is None:
            return None
        digest, every = path_sha256(self.select), self.evaluate_every
        return {"file": self.select.name, "sha256": digest, "evaluate_every": every}


@dataclass(frozen=True, slots=True, kw_only=True)
class TuneConfig(TrainConfig):
    """All settings of a Mirror-BERT run but its strings; see `TrainConfig`.

    Attributes:
        recipe: hyper-parameters.
        pooling: `auto` takes that of the row which the base model's name has in the table, else
            what the model declares, else that of the row of the model which a folder is a copy of,
            else the recipe's, else the papers' (the mean for BERT and sentences, [CLS] otherwise);
            but a recipe's `mean-without-special` goes first. `paper` passes over the base model.
        pooling_from: what has chosen another `pooling`, to be said.
        precision: auto, fp32, bf16 or fp16.
        loss_batch: pairs contrasted with one another in a step, at least the recipe's batch size.
            That many pairs then go through the encoder at a time, and gradients are cached: memory
            follows the batch size, the loss `loss_batch`. By default the batch size.
    """

    recipe: Recipe
    pooling: TunedPooling = "auto"
    pooling_from: str = "as asked for"
    precision: Precision = "auto"
    loss_batch: int | None = None

    def __post_init__(self) -> None:
        TrainConfig.__post_init__(self)
        if self.loss_batch is not None and self.loss_batch < self.recipe.batch_size:
            raise ConfigError(
                Setting("loss_batch"),
                " must be at least ",
                Setting("batch_size"),
                f", {self.recipe.batch_size}, got {self.loss_batch}: it counts the pairs that are "
                "contrasted with one another, the batch size those that go through the encoder at "
                "a time",
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowConfig(TrainConfig):
    """All settings of a run of BERT-flow but its strings; see `TrainConfig`.

    Attributes:
        recipe: hyper-parameters.
        pooling: any but mean-with-padding; auto for what the model declares, else mean. What
            follows the pooling of the model stays, and the flow comes after it. `paper` is the mean
            alone.
    """

    recipe: FlowRecipe = field(default_factory=FlowRecipe)
    pooling: FlowPooling = "auto"


@dataclass(frozen=True, slots=True, kw_only=True)
class CfConfig(TrainConfig):
    """All settings of a run of BERT-CF but its strings; see `TrainConfig`.

    The result of the first step is kept in OUT.mirror until the run is complete.

    Attributes:
        recipe: hyper-parameters of both steps.
        pooling: any but mean-with-padding; auto and paper as `mirror-rt tune` has them.
        precision: precision of the encoder: auto, fp32, bf16 or fp16.
        seed: see `RunConfig`; the default is that of the paper.
        select: of TrainConfig; it chooses the weights of both steps.
        resume: go on with the result of the first step, and after the last checkpoint of a step.
    """

    recipe: CfRecipe = field(default_factory=CfRecipe)
    pooling: FlowPooling = "auto"
    precision: Precision = "auto"
    seed: Annotated[int, least(0)] = 11711

    @property
    def mirror_out(self) -> Path:
        """The folder in which the first step leaves its result."""
        return self.out.parent / f"{self.out.name}.mirror"


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskConfig(TrainConfig):
    """All settings of a run with task heads but its data and its recipe; see `TrainConfig`.

    Attributes:
        precision: auto, fp32, bf16 or fp16.
        seed: see `RunConfig`; the default is that of BERT-CF.
    """

    precision: Precision = "auto"
    seed: Annotated[int, least(0)] = 11711


@dataclass(frozen=True, slots=True, kw_only=True)
class BurtConfig(TaskConfig):
    """All settings of a run of `tune_burt` but its data; see `TaskConfig`."""

    recipe: BurtRecipe = field(default_factory=BurtRecipe)


@dataclass(frozen=True, slots=True, kw_only=True)
class MultitaskConfig(TaskConfig):
    """All settings of a run of `tune_multitask` but its data; see `TaskConfig`."""

    recipe: MultitaskRecipe = field(default_factory=MultitaskRecipe)


@dataclass(frozen=True, slots=True, kw_only=True)
class FinetuneConfig(TaskConfig):
    """All settings of a run of `finetune` but its data; see `TaskConfig`.

    Attributes:
        recipe: hyper-parameters.
        task: name of the head that the layer becomes.
    """

    recipe: FinetuneRecipe = field(default_factory=FinetuneRecipe)
    task: Annotated[str, HEAD_NAME] = "label"


@dataclass(frozen=True, slots=True, kw_only=True)
class CrossEncoderConfig(TrainConfig):
    """All settings of a run of `tune_cross_encoder` but its pairs; see `TrainConfig`.

    Attributes:
        recipe: hyper-parameters.
        precision: auto, fp32, bf16 or fp16.
    """

    recipe: CrossEncoderRecipe = field(default_factory=CrossEncoderRecipe)
    precision: Precision = "auto"


@dataclass(frozen=True, slots=True, kw_only=True)
class TransEncoderConfig(TrainConfig):
    """All settings of a run of `tune_trans_encoder` but its pairs; see `TrainConfig`.

    The models of each cycle are kept in OUT.cycles until the run is complete.

    Attributes:
        recipe: hyper-parameters.
        precision: auto, fp32, bf16 or fp16.
        select: of TrainConfig; it also chooses the cycle. Without it, the last one is taken.
        resume: go on with the models that are finished, and after the last checkpoint.
        teacher: the folder of a cross-encoder that labels the pairs of the first cycle, in the
            place of one that learns from the base model.
    """

    recipe: TransEncoderRecipe = field(default_factory=TransEncoderRecipe)
    precision: Precision = "auto"
    teacher: Path | None = None

    @property
    def cycles(self) -> Path:
        """The folder in which the models of each cycle are kept."""
        return self.out.parent / f"{self.out.name}.cycles"


def recorded_run(manifest: Manifest, model: str) -> dict[str, Any]:
    """Return the settings that a manifest records; `model` names the field of its base model."""
    return {
        "model": manifest.base_model.get(model),
        "data": (manifest.data or {}).get("sha256"),
        "seed": (manifest.training or {}).get("seed"),
        "select": (manifest.training or {}).get("select"),
    } | (manifest.recipe or {})


def check_same_run(path: Path, found: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
    """Raise ConfigError for the first wanted setting that the run which wrote `path` did not have.

    The message names the setting with both of its values.
    """
    for name in sorted(wanted):
        if found.get(name) != wanted[name]:
            raise ConfigError(
                f"{path} is of another run: {name} was {found.get(name)!r}, now "
                f"{wanted[name]!r}; use the same settings, or --overwrite to start again"
            )
