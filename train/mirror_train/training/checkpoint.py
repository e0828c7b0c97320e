"""Keep the newest checkpoint of a run beside its output, and write one where it is interrupted."""

from __future__ import annotations

import contextlib
import dataclasses
import pickle
import shutil
import signal
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import torch

from mirror_rt.errors import ConfigError
from mirror_rt.io.atomic import new_file
from mirror_rt.kept_work import Identity
from mirror_train.model.dense import refuse_compressed
from mirror_train.training.run_config import beside, check_same_run, left_over

_FORMAT = 2  # of the fields of Checkpoint


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The state of a run after `step` optimiser steps.

    The order of the data and all random numbers follow from the seed and the step, so they need
    not be saved. The state of the gradient scaler is empty but for fp16; `stats` has the fields of
    TrainingStats, and `best` is that of the Selection, if there is one.
    """

    step: int
    modules: dict[str, Any]
    optimizer: dict[str, Any]
    scaler: dict[str, Any]
    stats: dict[str, Any]
    best: dict[str, Any]


class CheckpointStore:
    """The folder OUT.checkpoints, beside the output folder OUT of a run.

    `run` is everything that decides the run's result; a checkpoint of another run is refused.
    """

    def __init__(self, out: Path, run: dict[str, Any]) -> None:
        self.folder = beside(out, "checkpoints")
        self._run = Identity(run)

    def check_unused(self) -> None:
        """Raise OutputExistsError where an earlier run left a checkpoint."""
        if newest := self._newest():
            raise left_over(newest)

    def save(self, checkpoint: Checkpoint) -> Path:
        """Write a checkpoint atomically, then remove the older ones."""
        path = self.folder / f"step-{checkpoint.step:08d}.pt"
        values = {f.name: getattr(checkpoint, f.name) for f in dataclasses.fields(checkpoint)}
        try:
            with new_file(path, overwrite=True) as file:
                torch.save({"format": _FORMAT, "run": self._run.values, **values}, file)
        except RuntimeError as error:  # torch.save's error for a full disk
            raise OSError(
                f"cannot write the checkpoint {path}: {error.__context__ or error}"
            ) from error
        for older in self.folder.glob("step-*.pt"):
            if older.name < path.name:
                older.unlink()
        return path

    def load(self) -> Checkpoint | None:
        """Load the newest checkpoint, or None where there is none.

        One of a run with other settings or data is refused with a ConfigError, which names the
        first difference, and so is one that cannot be read.
        """
        path = self._newest()
        if path is None:
            return None
        try:
            refuse_compressed(path)
            values = torch.load(path, map_location="cpu", weights_only=True)
            run = dict(values.pop("run"))
            if (written := values.pop("format", 1)) != _FORMAT:
                raise ValueError(f"it has format {written}, this version reads {_FORMAT}")
            checkpoint = Checkpoint(**values)
        except (OSError, RuntimeError, KeyError, EOFError, TypeError, AttributeError, ValueError,
                pickle.UnpicklingError) as error:  # fmt: skip
            reason = str(error).splitlines()[0] if str(error) else repr(error)
            raise ConfigError(
                f"{path} cannot be read: {reason}; remove it to start again"
            ) from error
        check_same_run(path, run, self._run)
        return checkpoint

    def remove(self) -> None:
        """Delete all checkpoints of the run."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def _newest(self) -> Path | None:
        return max(self.folder.glob("step-*.pt"), default=None, key=lambda path: path.name)


class Interrupted(KeyboardInterrupt):
    """Training was interrupted after a step; the checkpoint holds everything up to that step."""

    def __init__(self, step: int, total: int, checkpoint: str) -> None:
        super().__init__(
            f"interrupted after step {step} of {total}; continue with --resume "
            f"(checkpoint {checkpoint})"
        )


@contextlib.contextmanager
def deferred_interrupt() -> Iterator[threading.Event]:
    """Turn the first SIGINT or SIGTERM into an event; a second signal acts at once."""
    event = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield event  # only the main thread may set handlers
        return
    numbers = (signal.SIGINT, signal.SIGTERM)
    previous = {number: signal.getsignal(number) for number in numbers}

    def restore() -> None:
        for number, handler in previous.items():
            signal.signal(number, handler)

    def handle(number: int, frame: FrameType | None) -> None:
        event.set()
        restore()

    for number in numbers:
        signal.signal(number, handle)
    try:
        yield event
    finally:
        restore()
