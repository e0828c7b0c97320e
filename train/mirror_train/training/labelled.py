"""A run with task heads: the encoder and its heads, the steps that train them, and the folder."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn

from mirror_rt.bundle.manifest import PoolingMode
from mirror_rt.errors import ModelError
from mirror_rt.evaluation.models import EvaluatedModel, LanguageView
from mirror_rt.heads.predictor import score_predictions
from mirror_rt.heads.task_heads import Heads
from mirror_rt.tokens.padding import RaggedTokens
from mirror_train.compute.processes import Processes
from mirror_train.data.labelled_examples import Examples
from mirror_train.data.passes import TaskBatch, TaskBatches
from mirror_train.data.tasks import TASKS, MultitaskData
from mirror_train.model.declared_modules import declared_head
from mirror_train.model.pooling_head import Head
from mirror_train.model.pretrained import Pretrained
from mirror_train.model.task_layers import TaskLayer
from mirror_train.model.torch_encoder import TorchEncoder
from mirror_train.training.loop import Selection, Trainer, TrainingStats
from mirror_train.training.optimizer import adamw
from mirror_train.training.run import Run, TuneReport, begun
from mirror_train.training.run_config import TrainConfig
from mirror_train.training.steps import Part, Steps


@dataclass(frozen=True, slots=True)
class TaskModel:
    """A base model with its head (the pooling and the layers after it), and a layer for each task.

    All of them are trained: "all layers unfrozen" (BERT-CF, section 5.3), also those of a flow. A
    model that is `frozen`, whose task layers alone are trained, encodes each text only once.
    """

    run: Run
    head: Head
    layers: dict[str, TaskLayer]
    frozen: LanguageView | None

    @property
    def modules(self) -> dict[str, nn.Module]:
        """Everything that is trained, by name."""
        tasks = nn.ModuleDict(self.layers)
        if self.frozen is not None:
            return {"tasks": tasks}
        return {"encoder": self.run.base.model, "head": self.head, "tasks": tasks}

    def view(self) -> LanguageView:
        """Return an encoder by the current weights, which encodes each text once."""
        return self.frozen or _view(self.run.encoder(self.head))

    def heads(self) -> Heads:
        """Return the task heads with their current weights."""
        made = {name: layer.to_head() for name, layer in self.layers.items()}
        return Heads(self.run.base.dimension, self.head.poolings[0], made)

    def trainer(
        self,
        total: int,
        batches: Callable[[int], list[TaskBatch]],
        *,
        weights: Mapping[str, float] | None = None,
        **options: Any,
    ) -> Trainer:
        """Return the trainer of `total` steps, with more arguments of `Run.trainer`.

        `weights` are the factors of the tasks' losses; None for 1.
        """
        run, factors = self.run, weights or dict.fromkeys(self.layers, 1.0)
        tokenizer = run.base.text_tokenizer(run.config.recipe.max_length)

        def inputs(texts: list[str]) -> RaggedTokens | Tensor:
            if self.frozen is None:
                return tokenizer(texts).tokens
            z = self.frozen.encode(texts, normalize_embeddings=False)
            return torch.from_numpy(z).to(run.device)

        def loss(task: str, z: Tensor, targets: Tensor) -> Tensor:
            return factors[task] * self.layers[task].loss(z, targets)

        steps = labelled_steps(total, batches, inputs, loss, run.processes)
        return run.trainer(steps, self.head, self.modules, run.config.recipe, **options)

    def write(
        self, stats: TrainingStats, *, system: str, data: dict[str, Any], **training: Any
    ) -> TuneReport:
        """Write encoder and task heads as the folder of the run; `training` is recorded."""
        padding = {"padding_percent": round(stats.padding_percent, 2)} if stats.real_tokens else {}
        return self.run.write(
            self.head,
            stats,
            recipe={"system": system} | dataclasses.asdict(self.run.config.recipe),
            data=data,
            training=padding | training,
            level="sentence",
            also=self.heads().write,
        )


def open_model(
    run: Run,
    make: Mapping[str, Callable[[int], TaskLayer]],
    *,
    data: dict[str, Any],
    frozen: bool = False,
    selects: bool = True,
) -> TaskModel:
    """Load the base model of a run that has begun, check it, and make new task heads.

    Where the recipe's pooling is `auto`, the base model's own is taken, with the layers after it;
    the mean where it declares none. `make` has for each task a function from the length of a text's
    vector to its head, whose weights follow from the seed. `data` has the hashes of the data. The
    run `selects` its weights by a measure of its own, if `TrainConfig.select` does not.
    """
    recipe, seed = run.config.recipe, run.config.seed
    base = run.load(dropout=recipe.dropout)
    base.check_length(recipe.max_length)
    head = head_of(base, recipe.pooling)
    fields = dataclasses.asdict(recipe) | {"pooling": head.pooling}
    run.start(data, fields, selects=selects)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        layers = {name: of(base.dimension).to(run.device) for name, of in make.items()}
    head = head.requires_grad_(not frozen).to(run.device)
    base.model.requires_grad_(not frozen)
    view = _view(run.encoder(head)) if frozen else None
    return TaskModel(run, head, layers, view)


def _view(encoder: TorchEncoder) -> LanguageView:
    return EvaluatedModel("the model", lambda language: encoder).of(None)


def head_of(base: Pretrained, pooling: PoolingMode | Literal["auto"]) -> Head:
    """Return the head of a pooling; for `auto` the one that the model declares, else the mean."""
    if pooling != "auto":
        return Head([pooling])
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


def labelled_steps(
    total: int,
    batches: Callable[[int], list[TaskBatch]],
    inputs: Callable[[list[str]], RaggedTokens | Tensor],
    loss: Callable[[str, Tensor, Tensor], Tensor],
    processes: Processes,
) -> Steps:
    """Return the steps of a run on labelled rows: each has a part for every batch of a task.

    `batches` maps a step to its batches, `inputs` the texts of a batch to their tokens, or to
    vectors that are known already, and `loss` the task, the vectors of its texts, in float32, and
    its targets to a scalar. In a process of several, each takes its share of the rows.
    """

    def of(batch: TaskBatch, z: Tensor) -> Tensor:
        return loss(batch.task, z.float(), torch.from_numpy(batch.targets).to(z.device))

    def parts(step: int) -> Iterator[Part]:
        for batch in batches(step):
            own = batch.share(processes)
            yield Part(inputs(own.texts), partial(of, own))

    return Steps(total, parts)


def train_tasks(
    system: str,
    data: MultitaskData,
    config: TrainConfig,
    make: Mapping[str, Callable[[int], TaskLayer]],
    *,
    sizes: Mapping[str, int],
    steps: int,
    learning_rate: float,
    weights: Mapping[str, float] | None = None,
    frozen: bool = False,
) -> TuneReport:
    """Train an encoder and a head for each task, and write them to `config.out`.

    The folder is an ordinary one that `mirror-rt export` takes; it contains the heads, which go
    into the bundle too. Its mirror.json has the metrics on the rows that were held out. `make` is
    as in `open_model`, `sizes` has the rows of each task in a batch.
    """
    tasks = data.tasks
    for part in tasks.values():
        part.train.check_classes()
    with begun(config, config.precision) as run:
        for size in sizes.values():
            run.processes.own_rows(
                size, "--batch-size" if system == "finetune" else "batch_sizes with"
            )
        hashes = {name: [one.sha256() for one in part.parts] for name, part in tasks.items()}
        model = open_model(run, make, data=hashes, frozen=frozen)
        held = {name: part.dev for name, part in tasks.items()}
        best = Selection(lambda: _score(model, held), config.evaluate_every)
        trained = nn.ModuleDict(model.modules).parameters()
        trainer = model.trainer(
            steps,
            step_batches(data, sizes, config.seed),
            optimizer=adamw(trained, config.recipe.replace(learning_rate=learning_rate)),
            weights=weights,
            selection=best,
        )
        run.train(trainer, system, run.encoder(model.head))
        chosen = (trainer.selection or best).best
        metrics = chosen["record"]
        if metrics is None:  # chosen by `config.select`
            _, metrics = run.processes.in_first(lambda: _score(model, held))
        more = {}
        if tests := {name: part.test for name, part in tasks.items() if part.test is not None}:
            more["test"] = run.processes.in_first(lambda: evaluate_tasks(model, tests))
        return model.write(
            trainer.stats,
            system=system,
            data=data.summary(),
            metrics=metrics,
            best_step=chosen["step"],
            **more,
        )


def evaluate_tasks(
    model: TaskModel, held: Mapping[str, Examples]
) -> dict[str, dict[str, float | None]]:
    """Return the metrics that a bundle's heads would reach, by task and name of the metric."""
    view, scores = model.view(), {}
    for name, examples in held.items():
        head = model.layers[name].to_head()
        sides = (examples.first, *([] if examples.second is None else [examples.second]))
        found = head(*(view.encode(side, normalize_embeddings=False) for side in sides))
        scores[name] = score_predictions(head, found, examples.targets)
    return scores


def _score(model: TaskModel, held: Mapping[str, Examples]) -> tuple[float, dict[str, Any]]:
    """Return the mean of the tasks' metrics, which chooses the weights (section 5.3), and all."""
    metrics = evaluate_tasks(model, held)
    values = [scores.get("accuracy", scores.get("pearson")) for scores in metrics.values()]
    return sum(value or 0.0 for value in values) / len(values), metrics


def step_batches(
    data: MultitaskData, sizes: Mapping[str, int], seed: int
) -> Callable[[int], list[TaskBatch]]:
    """Return a function from a step to its batches, one of each task."""
    batches = [
        TaskBatches(
            name, part.train, sizes[name], (seed, TASKS.index(name) if name in TASKS else 0)
        )
        for name, part in data.tasks.items()
    ]
    return lambda step: [of_task[step] for of_task in batches]
