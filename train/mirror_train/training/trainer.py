"""The training loop: views, embeddings, InfoNCE, AdamW; resumable and interruptible."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn

from mirror_rt.errors import ModelError
from mirror_rt.tokens.padding import RaggedTokens
from mirror_train.compute.precision import Precision
from mirror_train.compute.processes import Processes
from mirror_train.compute.random_state import RandomState
from mirror_train.data.batches import Batches, StepBatch
from mirror_train.loss import cuda_device
from mirror_train.model.drophead import drophead
from mirror_train.model.forward import Forward, Rows, in_order
from mirror_train.model.frozen import freeze_layers
from mirror_train.model.pooling_head import Head
from mirror_train.model.pretrained import Pretrained
from mirror_train.recipes.recipe import Recipe
from mirror_train.training.checkpoint import Checkpoint, CheckpointStore
from mirror_train.training.contrastive_loss import contrast
from mirror_train.training.gradient_caching import GradCache
from mirror_train.training.interruption import Interrupted, deferred_interrupt
from mirror_train.training.view_tokenizer import ViewTokenizer

AUTOCAST: dict[Precision, torch.dtype] = {"bf16": torch.bfloat16, "fp16": torch.float16}


def pad_length(recipe: Recipe) -> int | None:
    """Return the length that `mean-with-padding` pads every text to; None for other poolings."""
    return recipe.max_length if recipe.pooling == "mean-with-padding" else None


@dataclass(slots=True)
class TrainingStats:
    """The measurements of a run, over all its sessions.

    Attributes:
        losses: the loss of every step.
        seconds: wall time of the steps.
        real_tokens: number of tokens of the strings.
        padded_tokens: number of tokens computed, including padding.
    """

    losses: list[float] = field(default_factory=list)
    seconds: float = 0.0
    real_tokens: int = 0
    padded_tokens: int = 0

    def add(self, loss: float, began: float) -> None:
        """Count a step whose work began at that time of `time.perf_counter`."""
        self.losses.append(loss)
        self.seconds += time.perf_counter() - began

    @property
    def padding_percent(self) -> float:
        """The share of computed tokens that were padding, in percent."""
        return 100 * (1 - self.real_tokens / max(1, self.padded_tokens))


def finite_loss(loss: Tensor, step: int, advice: str) -> float:
    """Return the value of a step's loss; raise ModelError with advice if it is not finite."""
    value = loss.item()
    if not math.isfinite(value):
        raise ModelError(f"the loss became {value} at step {step + 1}: try {advice}")
    return value


class Trainer:
    """One Mirror-BERT run, alone or as one of several processes.

    The weights and the optimiser's state are the same in all processes at every step: each adds its
    share of a batch, and the gradients are averaged before the step. The model is trained in place;
    the layers after its pooling are not. Where a process's share of a batch
    is larger than the recipe's batch size, gradients are cached.
    """

    def __init__(
        self,
        pretrained: Pretrained,
        batches: Batches,
        recipe: Recipe,
        *,
        precision: Precision,
        processes: Processes,
        layers: Iterable[nn.Module] = (),
    ) -> None:
        self._recipe, self._processes = recipe, processes
        self._device = processes.device
        cuda_device.prepare(self._device)  # while the device's memory is free
        self._model = pretrained.model.to(self._device)
        self._tokenizer = ViewTokenizer(pretrained, recipe)
        self._batches = batches
        self._cached = batches.share > recipe.batch_size
        self._forward = Forward(
            self._model,
            head=Head([recipe.fixed_pooling], layers),
            pad_id=pretrained.pad_id,
            pad_to=pad_length(recipe),
            device=self._device,
            dtype=AUTOCAST.get(precision),
            same_dropout=recipe.same_dropout,
        )
        freeze_layers(self._model, recipe.frozen_layers)
        self._optimizer = torch.optim.AdamW(
            [one for one in self._model.parameters() if one.requires_grad],
            lr=recipe.learning_rate,
            weight_decay=recipe.weight_decay,
            fused=True,
        )
        self._scaler = torch.amp.GradScaler(self._device.type, enabled=precision == "fp16")
        self.stats = TrainingStats()

    @property
    def total_steps(self) -> int:
        """The number of optimiser steps of the run; an incomplete last batch is left out."""
        return len(self._batches)

    def run(
        self,
        store: CheckpointStore,
        *,
        checkpoint_every: int = 0,
        resume_from: Checkpoint | None = None,
        on_step: Callable[[float], None] = lambda loss: None,
    ) -> TrainingStats:
        """Train to the end, from the start or after a checkpoint; call `on_step` with each loss.

        With `checkpoint_every` 0, a checkpoint is only written on interruption.

        Raises:
            ConfigError: the recipe has drophead, but where the model's attention heads are is not
                known.
            Interrupted: on Ctrl-C or SIGTERM, after the running step is finished and a checkpoint
                written. If one process is interrupted, all stop.
            ModelError: the loss is no longer finite.
            DataError: all pairs of a batch share strings, so there are no negatives.
            ProcessGroupError: another process of the run has failed.
        """
        start = 0
        if resume_from is not None:
            self._restore(resume_from)
            start = resume_from.step
        with (
            drophead(self._model, self._recipe.drophead),
            deferred_interrupt() as interrupted,
            RandomState.kept(self._device),
        ):
            self._model.train()
            for step in range(start, self.total_steps):
                on_step(self._step(step))
                done = step + 1
                (stop,) = self._processes.total(interrupted.is_set())
                if stop and done < self.total_steps:
                    raise Interrupted(done, self.total_steps, str(self._save(store, done)))
                if checkpoint_every and done % checkpoint_every == 0:
                    self._save(store, done)
        self._model.eval()
        return self.stats

    def _step(self, step: int) -> float:
        began = time.perf_counter()
        batch = self._batches[step]
        # Dropout draws from torch's generators: seeded by the step, they give a resumed run the
        # masks of an uninterrupted one.
        torch.manual_seed(batch.dropout_seed)
        self._optimizer.zero_grad(set_to_none=True)
        value = self._backward(batch, step)
        self._processes.average_gradients(self._model.parameters())
        self._scaler.step(self._optimizer)
        self._scaler.update()
        self.stats.add(value, began)
        return value

    def _backward(self, batch: StepBatch, step: int) -> float:
        """Backpropagate a batch (scaled where there is a scaler) and return its loss."""
        tokens = self._tokenizer(batch)
        max_rows = batch.views * self._recipe.batch_size if self._cached else None
        chunks = self._forward.chunks(tokens, max_rows=max_rows)
        self._count(tokens, chunks)
        if not self._cached:
            return self._backward_loss(self._forward.embed(tokens, chunks), batch, step)
        cache = GradCache(partial(self._forward.embed_chunk, tokens), device=self._device)
        value = self._backward_loss(in_order(cache.first_pass(chunks), chunks), batch, step)
        cache.second_pass()
        return value

    def _backward_loss(self, z: Tensor, batch: StepBatch, step: int) -> float:
        """Backpropagate from the embeddings [V * n, D] of this process; return the loss."""
        loss = contrast(z, batch, self._recipe, process_group=self._processes.group)
        advice = "a lower --learning-rate, a higher --temperature, or --precision fp32"
        value = finite_loss(loss, step, advice)
        self._scaler.scale(loss).backward()  # type: ignore[no-untyped-call]
        return value

    def _count(self, tokens: RaggedTokens, chunks: list[Rows]) -> None:
        real, padded = self._processes.total(
            int(tokens.lengths.sum()), self._forward.padded_tokens(tokens, chunks)
        )
        self.stats.real_tokens += real
        self.stats.padded_tokens += padded

    def _save(self, store: CheckpointStore, step: int) -> Path:
        return self._processes.in_first(lambda: store.save(self._state(step)))

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
