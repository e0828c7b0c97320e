"""What tuning one system takes, whichever it is."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, TypeVar

from mirror_train.compute.precision import Precision
from mirror_train.experiments.systems.inputs import Inputs
from mirror_train.pairs import BurtRecipe, MultitaskRecipe
from mirror_train.recipes.recipe import Recipe
from mirror_train.training.run_config import RunConfig

__all__ = ["Job", "fitted"]

RecipeType = TypeVar("RecipeType", Recipe, BurtRecipe, MultitaskRecipe)


@dataclass(frozen=True, slots=True, kw_only=True)
class Job(RunConfig):
    """One system from one base model; see `RunConfig`.

    Attributes:
        system: its name, see `mirror_train.experiments.systems.table.SYSTEMS`.
        inputs: what it can be tuned on.
        max_steps: most optimiser steps of a flow, of BURT and of several tasks, which count steps
            and not epochs; None for as many as their papers.
        learning_rate: of everything that moves the encoder; that of a flow stays as it is. None
            for each recipe's own.
        max_length: most tokens that the base model has positions for; recipes for longer texts
            are cut to it.
        precision: auto, fp32, bf16 or fp16.
    """

    system: str
    inputs: Inputs
    max_steps: int | None = None
    learning_rate: float | None = None
    max_length: int | None = None
    precision: Precision = "auto"


def fitted(recipe: RecipeType, job: Job) -> RecipeType:
    """The recipe as the job wants it: its learning rate, no text longer than the base can take."""
    changes: dict[str, Any] = {}
    if job.learning_rate is not None:
        changes["learning_rate"] = job.learning_rate
    if job.max_length is not None:
        changes["max_length"] = min(recipe.max_length, job.max_length)
    return dataclasses.replace(recipe, **changes)
