"""The settings of a run: those of every training command, and those of Mirror-BERT."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from mirror_rt.bundle.manifest import Pooling
from mirror_rt.errors import ConfigError
from mirror_train.compute.precision import Precision
from mirror_train.model.model_folder import DEFAULT_MODEL
from mirror_train.recipes.recipe import Recipe

__all__ = ["RunConfig", "TuneConfig"]


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
        show_progress_bar: None for a bar where standard error is a terminal.
    """

    out: Path
    model: str = DEFAULT_MODEL
    revision: str | None = None
    device: str = "auto"
    seed: int = 42
    overwrite: bool = False
    offline: bool = False
    trust_remote_code: bool = False
    show_progress_bar: bool | None = None

    def __post_init__(self) -> None:
        if self.seed < 0:
            raise ConfigError(f"seed must be at least 0, got {self.seed}")

    def run_options(self) -> dict[str, Any]:
        """Return the fields of `RunConfig`, to make the settings of another run from."""
        return {one.name: getattr(self, one.name) for one in dataclasses.fields(RunConfig)}

    def load_options(self) -> dict[str, Any]:
        """Return the fields that say how the base model is loaded."""
        names = ("revision", "offline", "trust_remote_code")
        return {name: getattr(self, name) for name in names}


@dataclass(frozen=True, slots=True, kw_only=True)
class TuneConfig(RunConfig):
    """All settings of a Mirror-BERT run but its strings; see `RunConfig`.

    Attributes:
        recipe: hyper-parameters.
        pooling: `auto` takes what the base model declares, else the recipe's; but a recipe's
            `mean-without-special` goes first.
        precision: auto, fp32, bf16 or fp16.
        loss_batch: pairs contrasted with one another in a step, at least the recipe's batch size.
            That many pairs then go through the encoder at a time, and gradients are cached (see
            `gradient_caching.py`): memory follows the batch size, the loss `loss_batch`. None
            for the batch size.
        checkpoint_every: steps between checkpoints; 0 for none but on Ctrl-C.
        resume: continue after the last checkpoint, if there is one.
    """

    recipe: Recipe
    pooling: Pooling | Literal["auto"] = "auto"
    precision: Precision = "auto"
    loss_batch: int | None = None
    checkpoint_every: int = 0
    resume: bool = False

    def __post_init__(self) -> None:
        RunConfig.__post_init__(self)
        if self.checkpoint_every < 0:
            raise ConfigError(f"checkpoint_every must be at least 0, got {self.checkpoint_every}")
        if self.loss_batch is not None and self.loss_batch < self.recipe.batch_size:
            raise ConfigError(
                f"loss_batch must be at least batch_size, {self.recipe.batch_size}, got "
                f"{self.loss_batch}: it counts the pairs that are contrasted with one another, "
                "batch_size those that go through the encoder at a time"
            )
        if self.resume and self.overwrite:
            raise ConfigError("resume continues a run, overwrite starts it again: choose one")
