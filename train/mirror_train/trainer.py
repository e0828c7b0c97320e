"""The training loop: views, one forward pass of 2N, InfoNCE, AdamW; resumable and interruptible."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import signal
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import FrameType

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from mirror_rt.errors import DataError, ModelError
from mirror_train.checkpoint import Checkpoint, CheckpointStore
from mirror_train.data import TrainingData
from mirror_train.forward import embed
from mirror_train.loss import infonce
from mirror_train.precision import Precision
from mirror_train.pretrained import Pretrained
from mirror_train.recipe import Recipe
from mirror_train.views import epoch_order, make_views, step_rng

__all__ = ["Interrupted", "Trainer", "TrainingStats", "pad_length"]

_AUTOCAST: dict[Precision, torch.dtype] = {"bf16": torch.bfloat16, "fp16": torch.float16}


def pad_length(recipe: Recipe) -> int | None:
    """Tokens to pad every text to: fixed for `mean-with-padding`, else as few as possible."""
    return recipe.max_length if recipe.pooling == "mean-with-padding" else None


class Interrupted(KeyboardInterrupt):
    """Training was interrupted after a step; the checkpoint holds everything up to there."""

    def __init__(self, step: int, total: int, checkpoint: str) -> None:
        super().__init__(
            f"interrupted after step {step} of {total}; continue with --resume "
            f"(checkpoint {checkpoint})"
        )


@dataclass(slots=True)
class TrainingStats:
    """What a run measured, over all its sessions.

    Attributes:
        losses: loss of every step.
        seconds: wall time of the steps.
        real_tokens: tokens of the strings.
        padded_tokens: tokens computed, padding included.
    """

    losses: list[float] = field(default_factory=list)
    seconds: float = 0.0
    real_tokens: int = 0
    padded_tokens: int = 0

    @property
    def padding_percent(self) -> float:
        """Share of computed tokens that were padding."""
        return 100 * (1 - self.real_tokens / max(1, self.padded_tokens))


class Trainer:
    """One Mirror-BERT run over `data`.

    Args:
        pretrained: the model; it is trained in place.
        data: n positive pairs, at least one batch of them.
        recipe: hyper-parameters, its pooling the one to train with.
        seed: of the data order, the masked spans and dropout.
        precision: fp32, or bf16 / fp16 for mixed precision.
        device: where to train.
    """

    def __init__(
        self,
        pretrained: Pretrained,
        data: TrainingData,
        recipe: Recipe,
        *,
        seed: int,
        precision: Precision,
        device: torch.device,
    ) -> None:
        self._pretrained, self._data, self._recipe = pretrained, data, recipe
        self._seed, self._device = seed, device
        self._dtype = _AUTOCAST.get(precision)
        self._model = pretrained.model.to(device)
        self._tokenizer = pretrained.text_tokenizer(recipe.max_length)
        self._optimizer = torch.optim.AdamW(
            self._model.parameters(),
            lr=recipe.learning_rate,
            weight_decay=recipe.weight_decay,
            fused=True,
        )
        self._scaler = torch.amp.GradScaler(device.type, enabled=precision == "fp16")
        self.stats = TrainingStats()

    @property
    def total_steps(self) -> int:
        """Optimiser steps of the whole run; the strings over the last full batch are left out."""
        return self._recipe.epochs * self._steps_per_epoch

    @property
    def _steps_per_epoch(self) -> int:
        return len(self._data) // self._recipe.batch_size

    def run(
        self,
        store: CheckpointStore,
        *,
        checkpoint_every: int = 0,
        resume_from: Checkpoint | None = None,
        on_step: Callable[[float], None] = lambda loss: None,
    ) -> TrainingStats:
        """Train to the end.

        Args:
            store: where checkpoints go.
            checkpoint_every: steps between checkpoints; 0 for none but on interruption.
            resume_from: continue after this checkpoint.
            on_step: called with the loss after every step.

        Raises:
            Interrupted: on Ctrl-C (or SIGTERM), after the running step, with a checkpoint written.
            ModelError: the loss is no longer finite.
            DataError: all pairs of a batch share strings, so there are no negatives.
        """
        start = 0
        if resume_from is not None:
            self._restore(resume_from)
            start = resume_from.step
        devices = [self._device] if self._device.type == "cuda" else []
        with _deferred_interrupt() as interrupted, torch.random.fork_rng(devices=devices):
            self._model.train()
            for step in range(start, self.total_steps):
                on_step(self._step(step))
                done = step + 1
                if interrupted.is_set() and done < self.total_steps:
                    raise Interrupted(done, self.total_steps, str(store.save(self._state(done))))
                if checkpoint_every and done % checkpoint_every == 0:
                    store.save(self._state(done))
        self._model.eval()
        return self.stats

    def _step(self, step: int) -> float:
        began = time.perf_counter()
        rng = step_rng(seed=self._seed, step=step)
        # Dropout draws from torch's generators: seeded by the step, a resumed run repeats them.
        torch.manual_seed(int(rng.integers(2**63)))
        loss = self._loss(step, rng)
        value = loss.item()
        if not math.isfinite(value):
            raise ModelError(
                f"the loss became {value} at step {step + 1}: try a lower --learning-rate, a "
                "higher --temperature, or --precision fp32"
            )
        self._optimizer.zero_grad(set_to_none=True)
        self._scaler.scale(loss).backward()  # type: ignore[no-untyped-call]
        self._scaler.step(self._optimizer)
        self._scaler.update()
        self.stats.losses.append(value)
        self.stats.seconds += time.perf_counter() - began
        return value

    def _loss(self, step: int, rng: np.random.Generator) -> Tensor:
        epoch, batch = divmod(step, self._steps_per_epoch)
        size = self._recipe.batch_size
        order = epoch_order(len(self._data), seed=self._seed, epoch=epoch)
        rows = order[batch * size : (batch + 1) * size]
        texts = make_views(
            self._data, rows, self._recipe, mask_token=self._pretrained.mask_token, rng=rng
        )
        with torch.autocast(self._device.type, self._dtype, enabled=self._dtype is not None):
            embedded = embed(
                self._model,
                self._tokenizer(texts).tokens,
                pooling=self._recipe.pooling,
                pad_id=self._pretrained.pad_id,
                pad_to=pad_length(self._recipe),
                device=self._device,
            )
        self.stats.real_tokens += embedded.real_tokens
        self.stats.padded_tokens += embedded.padded_tokens
        z1, z2 = embedded.embeddings.chunk(2)
        return infonce(
            z1,
            z2,
            temperature=self._recipe.temperature,
            variant=self._recipe.loss,
            group_ids=self._group_ids(rows),
        )

    def _group_ids(self, rows: npt.NDArray[np.int64]) -> Tensor | None:
        if self._data.group_ids is None:
            return None
        groups = [self._data.group_ids[row] for row in rows]
        if len(set(groups)) == 1:
            raise DataError(
                f"{self._data.source}: the {len(rows)} pairs of a batch all share strings with one "
                "another, directly or through others, so none is a negative: give more pairs, or a "
                "larger --batch-size"
            )
        return torch.tensor(groups, device=self._device)

    def _state(self, step: int) -> Checkpoint:
        return Checkpoint(
            step=step,
            model=self._model.state_dict(),
            optimizer=self._optimizer.state_dict(),
            scaler=self._scaler.state_dict(),
            stats=dataclasses.asdict(self.stats),
        )

    def _restore(self, checkpoint: Checkpoint) -> None:
        self._model.load_state_dict(checkpoint.model)
        self._optimizer.load_state_dict(checkpoint.optimizer)
        self._scaler.load_state_dict(checkpoint.scaler)
        self.stats = TrainingStats(**checkpoint.stats)


@contextlib.contextmanager
def _deferred_interrupt() -> Iterator[threading.Event]:
    """Turn the first SIGINT or SIGTERM into an event; a second one acts at once."""
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
