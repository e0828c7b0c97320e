"""The settings of a comparison of systems, and of tuning one of them."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, TypeVar

from mirror_rt.schema import Rule
from mirror_train.compute.precision import Precision
from mirror_train.experiments.systems.inputs import Inputs
from mirror_train.pairs import BurtRecipe, MultitaskRecipe
from mirror_train.recipes.recipe import Recipe, least
from mirror_train.training.run_config import RunConfig

# Not in the annotation: `get_type_hints` evaluates that without the names of this module.
_RATE = Rule("above 0", lambda rate: 0 < rate < math.inf)
RecipeType = TypeVar("RecipeType", Recipe, BurtRecipe, MultitaskRecipe)


@dataclass(frozen=True, slots=True, kw_only=True)
class SystemsConfig(RunConfig):
    """The settings of a comparison of systems; see `RunConfig`.

    Attributes:
        out: of RunConfig: models go to `out/models`, results to `out/runs`.
        seed: of RunConfig: the seed of every run, and of the bootstrap.
        data: the folder with the data to tune on and to evaluate on.
        systems: their names; None for all that `data` has the inputs of.
        language: the language of the inputs and the sets.
        top: the number of first strings, pairs or rows to tune on; None for all.
        max_steps: most optimiser steps of flow, cf, burt and multitask; None for as many as their
            papers, which take hours without a GPU.
        learning_rate: of everything that moves the encoder; None for each paper's, made for models
            of BERT-base's size (a small one takes a higher rate).
        samples: the number of samples of the bootstrap.
        export: whether exported bundles are evaluated, by the opener that `run_systems` is given.
        precision: auto, fp32, bf16 or fp16.
    """

    data: Path
    systems: list[str] | None = None
    language: str = "en"
    top: Annotated[int | None, least(2)] = None
    max_steps: Annotated[int | None, least(1)] = None
    learning_rate: Annotated[float | None, _RATE] = None
    samples: Annotated[int, least(0)] = 1000
    export: bool = True
    precision: Precision = "auto"


@dataclass(frozen=True, slots=True, kw_only=True)
class SystemJob(SystemsConfig):
    """The settings for tuning one system into `out`; see `SystemsConfig`.

    Attributes:
        system: its name in `mirror_train.experiments.systems.table.SYSTEMS`.
        max_length: the most tokens that the base model has positions for; recipes for longer texts
            are cut to it.
    """

    system: str
    max_length: int | None = None

    @property
    def inputs(self) -> Inputs:
        """The data that it can be tuned on."""
        return Inputs(self.data, self.language, self.top)


def fitted(recipe: RecipeType, job: SystemJob) -> RecipeType:
    """Return the recipe with the job's learning rate, and texts cut to what the base can take."""
    changes: dict[str, Any] = {}
    if job.learning_rate is not None:
        changes["learning_rate"] = job.learning_rate
    if job.max_length is not None:
        changes["max_length"] = min(recipe.max_length, job.max_length)
    return dataclasses.replace(recipe, **changes)
