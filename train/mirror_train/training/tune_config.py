"""Everything of a tuning run but its strings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from mirror_rt.bundle.manifest import Pooling
from mirror_rt.errors import ConfigError
from mirror_train.compute.precision import Precision
from mirror_train.recipes.recipe import Recipe
from mirror_train.training.run_config import RunConfig

__all__ = ["TuneConfig"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TuneConfig(RunConfig):
    """Everything of a run but its strings; see `RunConfig`.

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
