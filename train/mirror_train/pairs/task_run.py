"""A run with task heads: the encoder and its heads, the steps that train them, and the folder."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from mirror_rt.errors import ModelError
from mirror_rt.evaluation.models import EvaluatedModel, LanguageView
from mirror_rt.heads.task_heads import Heads
from mirror_rt.tokens.padding import RaggedTokens
from mirror_train.model.declared_modules import declared_head
from mirror_train.model.pooling_head import Head
from mirror_train.model.pretrained import Pretrained
from mirror_train.model.torch_encoder import TorchEncoder
from mirror_train.pairs.passes import TaskBatch
from mirror_train.pairs.task_layers import TaskLayer
from mirror_train.training.loop import Part, Trainer, TrainingStats, encoder_forward
from mirror_train.training.run import Run, TuneReport
from mirror_train.training.run_config import BurtConfig, FinetuneConfig, MultitaskConfig

TaskConfigs = BurtConfig | FinetuneConfig | MultitaskConfig


@dataclass(frozen=True, slots=True)
class TaskModel:
    """A base model with its head (the pooling and the layers after it), and a layer for each task.

    All of them are trained: "all layers unfrozen" (BERT-CF, section 5.3), also those of a flow. A
    model that is `frozen`, whose task layers alone are trained, encodes each text only once.
    """

    run: Run
    config: TaskConfigs
    head: Head
    layers: dict[str, TaskLayer]
    frozen: LanguageView | None

    @property
    def modules(self) -> nn.ModuleDict:
        """Everything that is trained, by name."""
        tasks = nn.ModuleDict(self.layers)
        if self.frozen is not None:
            return nn.ModuleDict({"tasks": tasks})
        return nn.ModuleDict({"encoder": self.run.base.model, "head": self.head, "tasks": tasks})

    def encoder(self) -> TorchEncoder:
        """Return an encoder with the model's current weights and the `encode` of a bundle."""
        return TorchEncoder(self.run.base, head=self.head, device=self.run.device)

    def view(self) -> LanguageView:
        """Return what gives the vectors of the current weights, and encodes each text once."""
        return self.frozen or _view(self.encoder())

    def heads(self) -> Heads:
        """Return the task heads with their current weights."""
        made = {name: layer.to_head() for name, layer in self.layers.items()}
        return Heads(self.run.base.dimension, self.head.poolings[0], made)

    def trainer(
        self,
        total: int,
        batches: Callable[[int], list[TaskBatch]],
        optimizer: torch.optim.Optimizer,
        *,
        weights: Mapping[str, float] | None = None,
        **options: Any,
    ) -> Trainer:
        """Return the trainer of `total` steps of `TaskSteps`, with more fields of `Trainer`.

        `weights` are the factors of the tasks' losses; None for 1.
        """
        run = self.run
        return Trainer(
            steps=TaskSteps(total, batches, self, weights or dict.fromkeys(self.layers, 1.0)),
            forward=encoder_forward(run.base, self.head, run.device, run.precision),
            modules=self.modules,
            optimizer=optimizer,
            seed=self.config.seed,
            processes=run.processes,
            precision=run.precision,
            warm_up=self.config.recipe.warm_up,
            decay=self.config.recipe.decay,
            **options,
        )

    def write(
        self, stats: TrainingStats, *, system: str, data: dict[str, Any], **training: Any
    ) -> TuneReport:
        """Write encoder and task heads as the folder of the run; `training` is recorded."""
        padding = {"padding_percent": round(stats.padding_percent, 2)} if stats.real_tokens else {}
        return self.run.write(
            self.head,
            stats,
            recipe={"system": system} | dataclasses.asdict(self.config.recipe),
            data=data,
            training=padding | training,
            level="sentence",
            also=self.heads().write,
        )


def open_model(
    run: Run,
    config: TaskConfigs,
    make: Mapping[str, Callable[[int], TaskLayer]],
    *,
    data: dict[str, Any],
    frozen: bool = False,
) -> TaskModel:
    """Load the base model of a run that has begun, check it, and make new task heads.

    Where the recipe's pooling is `auto`, the base model's own is taken, with the layers after it;
    the mean where it declares none. `make` has for each task a function from the length of a text's
    vector to its head, whose weights follow from the seed. `data` has the hashes of the data.
    """
    recipe = config.recipe
    base = run.load(dropout=recipe.dropout)
    base.check_length(recipe.max_length)
    head = declared_or_mean(base) if recipe.pooling == "auto" else Head([recipe.pooling])
    fields = dataclasses.asdict(recipe) | {"pooling": head.pooling}
    run.start(data, fields, selects=not isinstance(config, BurtConfig))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed)
        layers = {name: of(base.dimension).to(run.device) for name, of in make.items()}
    head = head.requires_grad_(not frozen).to(run.device)
    base.model.requires_grad_(not frozen)
    view = _view(TorchEncoder(base, head=head, device=run.device)) if frozen else None
    return TaskModel(run, config, head, layers, view)


def _view(encoder: TorchEncoder) -> LanguageView:
    return EvaluatedModel("the model", lambda language: encoder).of(None)


def declared_or_mean(base: Pretrained) -> Head:
    """Return the pooling that a base model declares, with the layers after it; else the mean."""
    head = declared_head(base.description) or Head(["mean"])
    simple = len(head.poolings) == 1 and len(head.layers) <= 1
    if not simple or head.dimension(base.dimension) != base.dimension:
        raise ModelError(
            f"{base.name} declares {head.pooling} and {len(head.layers)} further modules, which "
            "cannot be tuned as they are: pass --pooling cls or --pooling mean"
        )
    if head.pooling == "mean-with-padding":
        raise ModelError(
            f"{base.name} was tuned with mean-with-padding, which task heads are not made for: "
            "pass --pooling mean"
        )
    return head


class TaskSteps:
    """The steps of a run: each has a part for every batch of a task, weighed by the task.

    `batches` maps a step to its batches. The heads and losses are in float32. In a process of
    several, each takes its share of the rows.
    """

    def __init__(
        self,
        total: int,
        batches: Callable[[int], list[TaskBatch]],
        model: TaskModel,
        weights: Mapping[str, float],
    ) -> None:
        self._total, self._batches, self._weights = total, batches, weights
        self._layers, self._processes = model.layers, model.run.processes
        self._tokenize = model.run.base.text_tokenizer(model.config.recipe.max_length)
        self._frozen, self._device = model.frozen, model.run.device

    def __len__(self) -> int:
        return self._total

    def __getitem__(self, step: int) -> Iterator[Part]:
        for batch in self._batches(step):
            own = batch.share(self._processes)
            yield Part(self._inputs(own.texts), partial(self._loss, own))

    def _inputs(self, texts: list[str]) -> RaggedTokens | Tensor:
        if self._frozen is None:
            return self._tokenize(texts).tokens
        z = self._frozen.encode(texts, normalize_embeddings=False)
        return torch.from_numpy(z).to(self._device)

    def _loss(self, batch: TaskBatch, z: Tensor) -> Tensor:
        targets = torch.from_numpy(batch.targets).to(z.device)
        return self._weights[batch.task] * self._layers[batch.task].loss(z.float(), targets)
