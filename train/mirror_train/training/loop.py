"""Train every system in one loop: the function to minimise is its argument, all else is here."""

from __future__ import annotations

import copy
import dataclasses
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from mirror_rt.errors import ModelError
from mirror_train.compute.precision import Precision
from mirror_train.compute.processes import Processes
from mirror_train.compute.random_state import RandomState
from mirror_train.data.views import dropout_seed, step_rng
from mirror_train.model.cpu import quicken_on_cpu
from mirror_train.model.forward import Forward, in_order
from mirror_train.model.pooling_head import Head
from mirror_train.model.pretrained import Pretrained
from mirror_train.training.checkpoint import (
    Checkpoint,
    CheckpointStore,
    Interrupted,
    deferred_interrupt,
)
from mirror_train.training.gradient_caching import backward_in_chunks
from mirror_train.training.movement import Neighbours, rate_factor
from mirror_train.training.steps import Part, Steps

_NEIGHBOURS_EVERY = 2  # steps; a measurement takes about as long as one
_AUTOCAST: dict[Precision, torch.dtype] = {"bf16": torch.bfloat16, "fp16": torch.float16}


@dataclass(slots=True)
class TrainingStats:
    """The measurements of a run, over all its sessions."""

    losses: list[float] = field(default_factory=list)  # the loss of every step
    # The sum of the learning rates of the steps. AdamW moves a weight by at most about its rate in
    # a step, so this bounds how far the weights are from where they began.
    movement: float = 0.0
    seconds: float = 0.0  # wall time of the steps
    real_tokens: int = 0  # number of tokens of the strings
    padded_tokens: int = 0  # number of tokens computed, including padding
    rows: int = 0  # texts that went through the encoder, again in each epoch
    cut: int = 0  # number of those that lost tokens to the limit

    @property
    def padding_percent(self) -> float:
        """The share of computed tokens that were padding, in percent."""
        return 100 * (1 - self.real_tokens / max(1, self.padded_tokens))

    @property
    def cut_percent(self) -> float:
        """The share of texts that lost tokens to the limit of the recipe, in percent."""
        return 100 * self.cut / max(1, self.rows)


@dataclass(slots=True)
class Selection:
    """The weights that score best among those of every `every`-th step and of the last one."""

    # Returns the score of the current weights, higher for better, and what mirror.json records of
    # them. The first process alone calls it.
    evaluate: Callable[[], tuple[float, Any]]
    every: int  # steps between evaluations
    # The step, the score, the record and the weights of the best evaluation so far.
    best: dict[str, Any] = field(default_factory=lambda: {"score": -math.inf})

    def after(self, done: int, total: int, modules: nn.Module, processes: Processes) -> None:
        """Evaluate the modules after `done` of `total` steps, if it is time to."""
        if done % self.every and done < total:
            return
        modules.eval()
        score, record = processes.in_first(self.evaluate)
        modules.train()
        if score > self.best["score"]:
            self.best.clear()  # frees the weights before others are copied
            weights = copy.deepcopy(modules.state_dict())
            self.best |= {"score": score, "step": done, "record": record, "weights": weights}


@dataclass(slots=True, kw_only=True)
class Trainer:
    """One run, alone or as one of several processes.

    The weights and the optimiser's state are the same in all processes at every step: each adds its
    share, and the gradients are averaged. Everything random follows from the seed and the number of
    the step, so a resumed run repeats the uninterrupted one.
    """

    steps: Steps  # the function to minimise, step by step
    # The encoder, from tokens to vectors; moved to the device by `encoder_forward`.
    forward: Forward
    modules: nn.ModuleDict  # the modules that are trained, by name, on the device
    optimizer: torch.optim.Optimizer  # optimiser of their parameters
    seed: int  # decides all that is random
    processes: Processes
    precision: Precision  # precision of the encoder
    # Most rows that go through the encoder at once. Gradients are cached then (see
    # `gradient_caching.py`); None for all rows of a part, without a cache.
    max_rows: int | None = None
    warm_up: float = 0.0  # the share of the steps over which the learning rates rise
    decay: bool = False  # whether they fall to 0 over the others, or stay
    # Chooses the weights to end with; None for those of the last step.
    selection: Selection | None = None
    # Ends the run when too few are kept; measured every second step, and before a tier of pairs
    # begins.
    neighbours: Neighbours | None = None
    # The advice where the loss diverges.
    advice: str = "a lower --learning-rate or --precision fp32"
    stats: TrainingStats = field(init=False, default_factory=TrainingStats)
    _scaler: torch.amp.GradScaler = field(init=False)
    _rates: list[float] = field(init=False)

    def __post_init__(self) -> None:
        trains_encoder = any(one.requires_grad for one in self.forward.model.parameters())
        self._scaler = torch.amp.GradScaler(
            self.forward.device.type, enabled=self.precision == "fp16" and trains_encoder
        )
        self._rates = [group["lr"] for group in self.optimizer.param_groups]

    def run(
        self,
        store: CheckpointStore,
        *,
        checkpoint_every: int = 0,
        resume_from: Checkpoint | None = None,
        on_step: Callable[[float], None] = lambda loss: None,
    ) -> TrainingStats:
        """Train to the end, from the start or after a checkpoint; call `on_step` with each loss.

        With `checkpoint_every` 0, a checkpoint is only written on interruption: Ctrl-C or SIGTERM,
        in any of the processes, ends the run with Interrupted after the running step.
        """
        total = self.steps.total
        start = 0 if resume_from is None else self._restore(resume_from)
        with deferred_interrupt() as interrupted, RandomState.kept(self.forward.device):
            for step in range(start, total):
                on_step(self._step(step))
                done = step + 1
                if self._lost(done):
                    total = done
                if self.selection is not None:
                    self.selection.after(done, total, self.modules, self.processes)
                (stop,) = self.processes.total(interrupted.is_set())
                if stop and done < total:
                    path = self._save(store, done)
                    raise Interrupted(done, total, str(path))
                if done == total:
                    break
                if checkpoint_every and done % checkpoint_every == 0:
                    self._save(store, done)
        if self.selection is not None:
            self.modules.load_state_dict(self.selection.best["weights"])
        self._train_mode(on=False)
        return self.stats

    def _lost(self, done: int) -> bool:
        """Tell whether the weights are too far from those of the base model to go on."""
        near = self.neighbours
        if near is None or (done % _NEIGHBOURS_EVERY and done not in near.tier_starts):
            return False
        self._train_mode(on=False)
        return self.processes.in_first(lambda: near.lost(done))

    def _step(self, step: int) -> float:
        began = time.perf_counter()
        self._train_mode(on=True)  # an evaluation between two steps has ended it
        for group, rate in zip(self.optimizer.param_groups, self._rates, strict=True):
            factor = rate_factor(step, self.steps.total, warm_up=self.warm_up, decay=self.decay)
            group["lr"] = rate * factor
        # Dropout draws from torch's generators: seeded by the step, they give a resumed run the
        # masks of an uninterrupted one.
        rng = step_rng(seed=self.seed, step=step)
        torch.manual_seed(dropout_seed(rng, rank=self.processes.rank))
        self.optimizer.zero_grad(set_to_none=True)
        value = sum(self._backward(part, step) for part in self.steps.parts(step))
        self.processes.average_gradients(
            one for group in self.optimizer.param_groups for one in group["params"]
        )
        self._scaler.step(self.optimizer)
        self._scaler.update()
        self.stats.losses.append(value)
        self.stats.movement += self.optimizer.param_groups[0]["lr"]
        self.stats.seconds += time.perf_counter() - began
        return value

    def _backward(self, part: Part, step: int) -> float:
        """Backpropagate a part (scaled where there is a scaler) and return its loss."""
        tokens = part.inputs
        if isinstance(tokens, Tensor):
            return self._backward_loss(part.loss(tokens), step)
        chunks = self.forward.chunks(tokens, max_rows=self.max_rows)
        real, padded, rows, cut = self.processes.total(
            int(tokens.lengths.sum()),
            self.forward.padded_tokens(tokens, chunks),
            len(tokens),
            part.cut,
        )
        self.stats.real_tokens += real
        self.stats.padded_tokens += padded
        self.stats.rows += rows
        self.stats.cut += cut
        if self.max_rows is None:
            return self._backward_loss(part.loss(self.forward.embed(tokens, chunks)), step)
        return backward_in_chunks(
            partial(self.forward.embed_chunk, tokens),
            chunks,
            lambda parts: self._backward_loss(part.loss(in_order(parts, chunks)), step),
            device=self.forward.device,
        )

    def _backward_loss(self, loss: Tensor, step: int) -> float:
        # The mean is not finite in all processes where it is not in one, so that all stop.
        value = self.processes.mean(loss.item())
        if not math.isfinite(value):
            raise ModelError(f"the loss became {value} at step {step + 1}: try {self.advice}")
        self._scaler.scale(loss).backward()  # type: ignore[no-untyped-call]
        return value

    def _train_mode(self, *, on: bool) -> None:
        """Turn the dropout of the encoder, which may be frozen, and of all modules on or off."""
        self.forward.model.train(on)
        self.modules.train(on)

    def _save(self, store: CheckpointStore, step: int) -> str:
        def save() -> str:
            state = Checkpoint(
                step=step,
                modules=self.modules.state_dict(),
                optimizer=self.optimizer.state_dict(),
                scaler=self._scaler.state_dict(),
                stats=dataclasses.asdict(self.stats),
                best=self.selection.best if self.selection else {},
            )
            return str(store.save(state))

        return self.processes.in_first(save)

    def _restore(self, checkpoint: Checkpoint) -> int:
        """Continue from a checkpoint; return the number of steps that it has behind it."""
        self.modules.load_state_dict(checkpoint.modules)
        self.optimizer.load_state_dict(checkpoint.optimizer)
        self._scaler.load_state_dict(checkpoint.scaler)
        self.stats = TrainingStats(**checkpoint.stats)
        if self.selection is not None and checkpoint.best:
            self.selection.best = checkpoint.best
        return checkpoint.step


def encoder_forward(
    base: Pretrained, head: Head, device: torch.device, precision: Precision, **options: Any
) -> Forward:
    """Move a model and its head to the device; return its forward pass, with more of its fields."""
    if device.type == "cpu":
        quicken_on_cpu(base.model, precision)
    return Forward(
        base.model.to(device),
        head=head.to(device),
        pad_id=base.pad_id,
        device=device,
        dtype=_AUTOCAST.get(precision),
        **options,
    )
