"""What a study tunes and evaluates, and where it keeps the results."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from mirror_rt.bundle.manifest import Pooling
from mirror_rt.errors import ConfigError
from mirror_train.compute.precision import Precision
from mirror_train.data.training_data import TrainingData
from mirror_train.experiments.studies import Study
from mirror_train.model.default_model import DEFAULT_MODEL
from mirror_train.recipes.recipe import Recipe

__all__ = ["StudyConfig"]


@dataclass(frozen=True, slots=True)
class StudyConfig:
    """What to study, on what.

    Attributes:
        study: a row of `mirror_train.experiments.studies.STUDIES`.
        recipe: what its setups change.
        data: strings to tune on, without positives of their own.
        pairs: TSV file of scored pairs to evaluate on.
        out: folder; results go to `out/runs`, what is being tuned to `out/work`.
        seeds: runs of every tuned setup, with seeds 42, 43, ...
        model: base model: folder, hub name, or the embedded default.
        revision: branch, tag or commit on the hub.
        pooling: of setups that do not set it; `auto` takes what the base model declares, else the
            recipe's.
        precision: auto, fp32, bf16 or fp16.
        device: auto, cpu, cuda or cuda:N.
        offline: never ask the network.
    """

    study: Study
    recipe: Recipe
    data: TrainingData
    pairs: Path
    out: Path
    seeds: int = 3
    model: str = DEFAULT_MODEL
    revision: str | None = None
    pooling: Pooling | Literal["auto"] = "auto"
    precision: Precision = "auto"
    device: str = "auto"
    offline: bool = False

    def __post_init__(self) -> None:
        if self.seeds < 1:
            raise ConfigError(f"seeds must be at least 1, got {self.seeds}")
        if os.environ.get("WORLD_SIZE", "1") != "1":
            raise ConfigError("a study runs in one process: start it without torchrun")
