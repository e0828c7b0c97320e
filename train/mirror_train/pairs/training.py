"""Train an encoder together with task heads."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from mirror_rt.tokens.tokenization import TextTokenizer
from mirror_train.compute.random_state import RandomState
from mirror_train.data.views import dropout_seed, step_rng
from mirror_train.model.forward import Forward
from mirror_train.pairs.passes import TaskBatch
from mirror_train.pairs.task_layers import TaskLayer
from mirror_train.pairs.task_session import Session
from mirror_train.training.trainer import AUTOCAST, TrainingStats, finite_loss


def warm_up_then_decay(step: int, total: int, *, share: float) -> float:
    """Return a factor that rises linearly to 1 over the first `share` of steps, then falls to 0.

    The factor is above 0 in the first and the last step, so that these train too.
    """
    warm = math.ceil(share * total)
    if step < warm:
        return (step + 1) / warm
    return (total - step) / max(1, total - warm)


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskTrainer:
    """An encoder and task heads that are trained together, in place.

    Attributes:
        session: the encoder, its pooling, and where and how it is trained; heads and losses are in
            float32.
        layers: the head of each task, already on the device.
        batches: maps a step to its batches, each of one task.
        weights: the factor of each task's loss.
        optimizer: optimiser of all parameters.
        schedule: maps a step and the total to a factor of the learning rate.
    """

    session: Session
    layers: Mapping[str, TaskLayer]
    batches: Callable[[int], list[TaskBatch]]
    weights: Mapping[str, float]
    optimizer: torch.optim.Optimizer
    schedule: Callable[[int, int], float] = lambda step, total: 1.0

    def run(
        self, total: int, *, on_step: Callable[[int, float], None] = lambda done, loss: None
    ) -> TrainingStats:
        """Train for `total` steps; call `on_step` with the number of steps done and the loss.

        Raises:
            ModelError: the loss is no longer finite.
        """
        stats = TrainingStats()
        self.session.base.model.to(self.session.device)
        tokenizer = self.session.base.text_tokenizer(self.session.config.recipe.max_length)
        half = self.session.precision == "fp16"
        scaler = torch.amp.GradScaler(self.session.device.type, enabled=half)
        rates = [group["lr"] for group in self.optimizer.param_groups]
        with RandomState.kept(self.session.device):
            for step in range(total):
                began = time.perf_counter()
                self._train_mode()
                for group, rate in zip(self.optimizer.param_groups, rates, strict=True):
                    group["lr"] = rate * self.schedule(step, total)
                value = self._step(step, tokenizer, scaler, stats)
                stats.add(value, began)
                on_step(step + 1, value)
        self.session.base.model.eval()
        return stats

    def _step(
        self,
        step: int,
        tokenizer: TextTokenizer,
        scaler: torch.amp.GradScaler,
        stats: TrainingStats,
    ) -> float:
        # Dropout draws from torch's generators: seeded here, it depends on seed and step alone.
        torch.manual_seed(dropout_seed(step_rng(seed=self.session.config.seed, step=step), rank=0))
        self.optimizer.zero_grad(set_to_none=True)
        forward = self._forward()
        value = 0.0
        for batch in self.batches(step):  # backward after each: one graph in memory at a time
            tokens = tokenizer(batch.texts).tokens
            chunks = forward.chunks(tokens)
            stats.real_tokens += int(tokens.lengths.sum())
            stats.padded_tokens += forward.padded_tokens(tokens, chunks)
            loss = self._loss(batch, forward.embed(tokens, chunks))
            value += finite_loss(loss, step, "a lower --learning-rate or --precision fp32")
            scaler.scale(loss).backward()  # type: ignore[no-untyped-call]
        scaler.step(self.optimizer)
        scaler.update()
        return value

    def _loss(self, batch: TaskBatch, z: Tensor) -> Tensor:
        targets = torch.from_numpy(batch.targets).to(self.session.device)
        with torch.autocast(self.session.device.type, enabled=False):
            return self.weights[batch.task] * self.layers[batch.task].loss(z.float(), targets)

    def _forward(self) -> Forward:
        return Forward(
            self.session.base.model,
            head=self.session.head,
            pad_id=self.session.base.pad_id,
            device=self.session.device,
            dtype=AUTOCAST.get(self.session.precision),
        )

    def _train_mode(self) -> None:
        """Turn dropout on, because an evaluation between two steps turns it off."""
        modules: Iterable[nn.Module] = (self.session.base.model, *self.layers.values())
        for module in modules:
            module.train()
