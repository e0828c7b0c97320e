"""Which systems are compared, on what."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

from mirror_rt.errors import ConfigError
from mirror_train.compute.precision import Precision
from mirror_train.model.default_model import DEFAULT_MODEL

__all__ = ["SystemsConfig"]


@dataclass(frozen=True, slots=True)
class SystemsConfig:
    """What to compare, on what.

    Attributes:
        data: folder with what to tune on and to evaluate on.
        out: folder; models go to `out/models`, results to `out/runs`.
        systems: their names; None for all that `data` has the inputs of.
        model: base model: folder, hub name, or the embedded default.
        revision: branch, tag or commit on the hub.
        language: of inputs and sets.
        top: tune on the first so many strings, pairs or rows alone.
        max_steps: see `Job`.
        learning_rate: see `Job`.
        seed: of every run, and of the bootstrap.
        samples: of the bootstrap.
        export: evaluate exported bundles, and not with PyTorch (what `run_systems` is given must
            do so).
        precision: auto, fp32, bf16 or fp16.
        device: auto, cpu, cuda or cuda:N.
        offline: never ask the network.
        show_progress_bar: None for bars of the systems where standard error is a terminal.
    """

    data: Path
    out: Path
    systems: list[str] | None = None
    model: str = DEFAULT_MODEL
    revision: str | None = None
    language: str = "en"
    top: int | None = None
    max_steps: int | None = None
    learning_rate: float | None = None
    seed: int = 42
    samples: int = 1000
    export: bool = True
    precision: Precision = "auto"
    device: str = "auto"
    offline: bool = False
    show_progress_bar: bool | None = None

    def __post_init__(self) -> None:
        for name, least in [("top", 2), ("max_steps", 1), ("seed", 0), ("samples", 0)]:
            value = getattr(self, name)
            if value is not None and value < least:
                raise ConfigError(f"{name} must be at least {least}, got {value}")
        if self.learning_rate is not None and not 0 < self.learning_rate < math.inf:
            raise ConfigError(f"learning_rate must be above 0, got {self.learning_rate}")
