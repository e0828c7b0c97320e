"""What every command that trains has in common, whatever it trains."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mirror_rt.errors import ConfigError
from mirror_train.model.default_model import DEFAULT_MODEL

__all__ = ["RunConfig"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunConfig:
    """Everything of a run but its data and its hyper-parameters.

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
        """These fields, to make another run of."""
        return {one.name: getattr(self, one.name) for one in dataclasses.fields(RunConfig)}
