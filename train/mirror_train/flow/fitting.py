"""Fit a flow by likelihood: to fixed vectors, or together with Mirror-BERT's loss."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from mirror_rt.encoding.batch_encoder import Vectors
from mirror_train.compute.precision import Precision
from mirror_train.compute.random_state import RandomState
from mirror_train.data.batches import Batches, StepBatch
from mirror_train.data.views import epoch_order
from mirror_train.flow.recipe import CfRecipe, FlowRecipe
from mirror_train.model.forward import Forward
from mirror_train.model.glow import Flow
from mirror_train.model.pooling_head import Head
from mirror_train.model.pretrained import Pretrained
from mirror_train.training.contrastive_loss import contrast
from mirror_train.training.trainer import AUTOCAST, TrainingStats, finite_loss
from mirror_train.training.view_tokenizer import ViewTokenizer

# The most vectors that the ActNorms are fitted to before the first step.
_INITIAL = 4096
_ADVICE = "a lower learning rate"


def bits_per_dimension(z: Tensor, log_determinant: Tensor) -> Tensor:
    """Return L_flow (BERT-CF, section 4.2) divided by D ln 2: -ln p(x) in bits per dimension.

    -ln p(x) = |z|^2 / 2 + D / 2 ln(2 pi) - ln |det dz/dx|, averaged over the flow's output z [B, D]
    for text vectors x; a scalar. The division is not in the paper's formula but in the
    implementation that the paper names, and lambda = 0.3 assumes it.
    """
    size = z.shape[1]
    energy = z.square().sum(dim=1).mean() / 2
    nats = energy + size / 2 * math.log(2 * math.pi) - log_determinant
    return nats / (size * math.log(2))


def initial_flow(
    size: int, recipe: FlowRecipe, *, seed: int, vectors: Vectors | None = None
) -> Flow:
    """Return a flow for vectors of `size` dimensions before its first step, in training mode.

    Its ActNorms are fitted to standardise `vectors`, float32 [n, D], or a random sample of 4,096 of
    them; None leaves the ActNorms as identities. Weights and sample follow from the seed.

    Raises:
        ConfigError: D is odd.
        ModelError: all vectors are the same.
    """
    generator = torch.Generator().manual_seed(seed)
    flow = Flow(size, blocks=recipe.blocks, hidden_size=recipe.hidden_size, generator=generator)
    if vectors is not None:
        if len(vectors) > _INITIAL:
            chosen = np.random.default_rng(seed).choice(len(vectors), _INITIAL, replace=False)
            vectors = vectors[np.sort(chosen)]
        flow.initialise(torch.from_numpy(vectors))
    return flow


def fit_flow(
    flow: Flow,
    vectors: Vectors,
    recipe: FlowRecipe,
    *,
    seed: int,
    device: torch.device,
    on_step: Callable[[float], None] = lambda loss: None,
) -> TrainingStats:
    """Fit a flow of `initial_flow` to fixed vectors by likelihood alone (BERT-flow).

    The vectors are float32 [n, D], n at least the batch size; the seed decides their order. The
    flow is left in evaluation mode on the device. `on_step` is called with the loss of every step.

    Raises:
        ModelError: the loss is no longer finite.
    """
    flow.train().requires_grad_(True).to(device)
    x = torch.from_numpy(vectors)
    optimizer = _adamw([{"params": list(flow.parameters())}], recipe)
    stats = TrainingStats()
    for rows in _batches(len(vectors), recipe, seed):
        began = time.perf_counter()
        optimizer.zero_grad(set_to_none=True)
        loss = bits_per_dimension(flow(x[rows].to(device)), flow.log_determinant())
        value = finite_loss(loss, len(stats.losses), _ADVICE)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        stats.add(value, began)
        on_step(value)
    flow.requires_grad_(False).eval()
    return stats


class RegularisedFit:
    """The fit of a flow by likelihood and Mirror-BERT's loss together (BERT-CF, section 4.2).

    Each step encodes two views of its `flow.batch_size` strings, with dropout: the flow's vectors
    of both go into InfoNCE, and those of the first view into the likelihood. The encoder is frozen
    or, with `joint`, trained by InfoNCE alone. Both are moved to the device; the precision is that
    of the encoder, and the flow is in float32.
    """

    def __init__(
        self,
        base: Pretrained,
        flow: Flow,
        batches: Batches,
        recipe: CfRecipe,
        *,
        precision: Precision,
        device: torch.device,
    ) -> None:
        self._model, self._flow, self._batches = base.model.to(device), flow.to(device), batches
        self._recipe, self._device = recipe, device
        self._tokenizer = ViewTokenizer(base, recipe.mirror)
        self._forward = Forward(
            self._model,
            head=Head([recipe.mirror.fixed_pooling]),
            pad_id=base.pad_id,
            device=device,
            dtype=AUTOCAST.get(precision),
        )
        groups: list[dict[str, Any]] = [{"params": list(flow.parameters())}]
        if recipe.joint:
            rate = recipe.mirror.learning_rate
            groups.append({"params": list(self._model.parameters()), "lr": rate})
        self._optimizer = _adamw(groups, recipe.flow)
        scaled = precision == "fp16" and recipe.joint
        self._scaler = torch.amp.GradScaler(device.type, enabled=scaled)

    def run(self, on_step: Callable[[float], None] = lambda loss: None) -> TrainingStats:
        """Run all steps, and leave flow and encoder in evaluation mode.

        Raises:
            ModelError: the loss is no longer finite.
            DataError: all pairs of a batch share strings, so there are no negatives.
        """
        stats = TrainingStats()
        self._flow.train().requires_grad_(True)
        self._model.train().requires_grad_(self._recipe.joint)
        with RandomState.kept(self._device):
            for step in range(self._recipe.flow.steps):
                began = time.perf_counter()
                value = self._step(self._batches[step], step)
                stats.add(value, began)
                on_step(value)
        self._flow.requires_grad_(False).eval()
        self._model.eval()
        return stats

    def _step(self, batch: StepBatch, step: int) -> float:
        torch.manual_seed(batch.dropout_seed)
        self._optimizer.zero_grad(set_to_none=True)
        loss = self._loss(batch)
        value = finite_loss(loss, step, _ADVICE)
        self._scaler.scale(loss).backward()  # type: ignore[no-untyped-call]
        self._scaler.step(self._optimizer)
        self._scaler.update()
        return value

    def _loss(self, batch: StepBatch) -> Tensor:
        mirror, joint = self._recipe.mirror, self._recipe.joint
        tokens = self._tokenizer(batch)
        with torch.set_grad_enabled(joint):
            x = self._forward.embed(tokens, self._forward.chunks(tokens)).float()
        z = self._flow(x)
        contrastive = contrast(z, batch, mirror)
        z1 = z.chunk(batch.views)[0]
        if joint:  # the likelihood must train only the flow: it would shrink the encoder's vectors
            z1 = self._flow(x.detach().chunk(batch.views)[0])
        likelihood = bits_per_dimension(z1, self._flow.log_determinant())
        return self._recipe.mirror_weight * contrastive + likelihood


def _adamw(groups: list[dict[str, Any]], recipe: FlowRecipe) -> torch.optim.AdamW:
    return torch.optim.AdamW(
        groups, lr=recipe.learning_rate, weight_decay=recipe.weight_decay, fused=True
    )


def _batches(n: int, recipe: FlowRecipe, seed: int) -> Iterator[npt.NDArray[np.int64]]:
    size = recipe.batch_size
    for step in range(recipe.steps):
        epoch, batch = divmod(step, n // size)
        yield epoch_order(n, seed=seed, epoch=epoch)[batch * size :][:size].copy()
