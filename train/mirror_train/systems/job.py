"""What tuning one system takes, whichever it is."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from mirror_train.precision import Precision
from mirror_train.systems.inputs import Inputs

__all__ = ["Job"]


@dataclass(frozen=True, slots=True)
class Job:
    """One system from one base model.

    Attributes:
        system: its name, see `mirror_train.systems.table.SYSTEMS`.
        inputs: what it can be tuned on.
        out: folder to write.
        model: base model: folder, hub name, or the embedded default.
        revision: branch, tag or commit on the hub.
        seed: of the run.
        max_steps: most optimiser steps of a flow, of BURT and of several tasks, which count steps
            and not epochs; None for as many as their papers.
        precision: auto, fp32, bf16 or fp16.
        device: auto, cpu, cuda or cuda:N.
        offline: never ask the network.
        show_progress_bar: None for a bar where standard error is a terminal.
    """

    system: str
    inputs: Inputs
    out: Path
    model: str
    revision: str | None = None
    seed: int = 42
    max_steps: int | None = None
    precision: Precision = "auto"
    device: str = "auto"
    offline: bool = False
    show_progress_bar: bool | None = None
