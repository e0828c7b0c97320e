"""The steps that fit a flow: by likelihood alone, or together with Mirror-BERT's loss."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from mirror_rt.encoding.batch_encoder import Vectors
from mirror_train.compute.precision import Precision
from mirror_train.compute.processes import Processes
from mirror_train.data.batches import Batches, StepBatch
from mirror_train.data.views import epoch_order
from mirror_train.loss import cuda_device
from mirror_train.model.forward import Forward
from mirror_train.model.glow import Flow
from mirror_train.model.pooling_head import Head
from mirror_train.model.pretrained import Pretrained
from mirror_train.recipes.systems import CfRecipe, FlowRecipe
from mirror_train.training.loop import Part, Steps, Trainer, encoder_forward
from mirror_train.training.mirror import ViewTokenizer, contrast

# The most vectors that the ActNorms are fitted to before the first step.
_INITIAL = 4096


def bits_per_dimension(z: Tensor, log_determinant: Tensor) -> Tensor:
    """Return L_flow (BERT-CF, section 4.2) divided by D ln 2: -ln p(x) in bits per dimension.

    -ln p(x) = |z|^2 / 2 + D / 2 ln(2 pi) - ln |det dz/dx|, averaged over the flow's output z [B, D]
    for text vectors x; a scalar. The division is not in the paper's formula but in the
    implementation that the paper names. Which of the two its lambda = 0.3 goes with, it does not
    say; here it goes with this one.
    """
    size = z.shape[1]
    energy = z.square().sum(dim=1).mean() / 2
    nats = energy + size / 2 * math.log(2 * math.pi) - log_determinant
    return nats / (size * math.log(2))


def initial_flow(size: int, recipe: FlowRecipe, *, seed: int, vectors: Vectors) -> Flow:
    """Return a flow for vectors of `size` dimensions before its first step, in training mode.

    Its ActNorms are fitted to standardise `vectors`, float32 [n, D], or a random sample of 4,096 of
    them. Weights and sample follow from the seed.
    """
    generator = torch.Generator().manual_seed(seed)
    flow = Flow(
        size,
        blocks=recipe.blocks,
        levels=recipe.levels,
        hidden_size=recipe.hidden_size,
        generator=generator,
    )
    if len(vectors) > _INITIAL:
        chosen = np.random.default_rng(seed).choice(len(vectors), _INITIAL, replace=False)
        vectors = vectors[np.sort(chosen)]
    flow.initialise(torch.from_numpy(vectors))
    return flow


class LikelihoodSteps:
    """The steps of BERT-flow: the likelihood of fixed vectors, float32 [n, D], in random order."""

    def __init__(
        self, flow: Flow, vectors: Vectors, recipe: FlowRecipe, seed: int, processes: Processes
    ) -> None:
        self._flow, self._x = flow, torch.from_numpy(vectors)
        self._recipe, self._seed, self._processes = recipe, seed, processes

    def __len__(self) -> int:
        return self._recipe.steps

    def __getitem__(self, step: int) -> list[Part]:
        size = self._recipe.batch_size
        epoch, batch = divmod(step, len(self._x) // size)
        rows = epoch_order(len(self._x), seed=self._seed, epoch=epoch)[batch * size :][:size]
        own = rows[self._processes.own_rows(size)].copy()
        return [Part(self._x[own].to(self._processes.device), self._loss)]

    def _loss(self, x: Tensor) -> Tensor:
        return bits_per_dimension(self._flow(x), self._flow.log_determinant())


class RegularisedSteps:
    """The steps of BERT-CF: likelihood and Mirror-BERT's loss together (section 4.2).

    Each step encodes two views of its `flow.batch_size` strings, with dropout: the flow's vectors
    of both go into InfoNCE, and those of the first view into the likelihood. The flow is in
    float32. The encoder is frozen or, with `joint`, trained by InfoNCE alone.
    """

    def __init__(
        self,
        flow: Flow,
        tokenize: ViewTokenizer,
        batches: Batches,
        recipe: CfRecipe,
        processes: Processes,
    ) -> None:
        self._flow, self._tokenize, self._batches = flow, tokenize, batches
        self._recipe, self._group = recipe, processes.group

    def __len__(self) -> int:
        return self._recipe.flow.steps

    def __getitem__(self, step: int) -> list[Part]:
        batch = self._batches[step]
        return [Part(self._tokenize(batch), partial(self._loss, batch))]

    def _loss(self, batch: StepBatch, x: Tensor) -> Tensor:
        x = x.float()
        z = self._flow(x)
        contrastive = contrast(z, batch, self._recipe.mirror, process_group=self._group)
        z1 = z.chunk(batch.views)[0]
        if self._recipe.joint:
            # The likelihood must train only the flow: it would shrink the encoder's vectors.
            z1 = self._flow(x.detach().chunk(batch.views)[0])
        likelihood = bits_per_dimension(z1, self._flow.log_determinant())
        return self._recipe.mirror_weight * contrastive + likelihood


def cf_trainer(
    base: Pretrained,
    flow: Flow,
    batches: Batches,
    recipe: CfRecipe,
    *,
    precision: Precision,
    processes: Processes,
) -> Trainer:
    """Return the trainer of a flow by likelihood and Mirror-BERT's loss; see `RegularisedSteps`."""
    cuda_device.prepare(processes.device)  # while the device's memory is free
    base.model.requires_grad_(recipe.joint)
    head = Head([recipe.mirror.fixed_pooling])
    forward = encoder_forward(base, head, processes.device, precision)
    steps = RegularisedSteps(flow, ViewTokenizer(base, recipe.mirror), batches, recipe, processes)
    return flow_trainer(
        forward,
        flow,
        steps,
        recipe.flow,
        seed=batches.seed,
        processes=processes,
        precision=precision,
        encoder_rate=recipe.mirror.learning_rate if recipe.joint else None,
    )


def flow_trainer(
    forward: Forward,
    flow: Flow,
    steps: Steps,
    recipe: FlowRecipe,
    *,
    seed: int,
    processes: Processes,
    precision: Precision = "fp32",
    encoder_rate: float | None = None,
) -> Trainer:
    """Return the trainer of a flow; with `encoder_rate`, also of the encoder, at that rate."""
    modules = nn.ModuleDict({"flow": flow.requires_grad_(True).to(processes.device)})
    groups: list[dict[str, Any]] = [{"params": list(flow.parameters())}]
    if encoder_rate is not None:
        modules["encoder"] = forward.model
        groups.append({"params": list(forward.model.parameters()), "lr": encoder_rate})
    return Trainer(
        steps=steps,
        forward=forward,
        modules=modules,
        optimizer=torch.optim.AdamW(
            groups, lr=recipe.learning_rate, weight_decay=recipe.weight_decay, fused=True
        ),
        seed=seed,
        processes=processes,
        precision=precision,
        warm_up=recipe.warm_up,
        decay=recipe.decay,
        advice="a lower learning rate",
    )
