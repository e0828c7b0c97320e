"""BERT-flow (Li et al. 2020): a normalising flow behind an encoder that stays as it is."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, cast, get_args

import numpy as np

from mirror_rt.bundle.manifest import Pooling
from mirror_rt.cli.parsing.options import Given, Group, Help
from mirror_rt.errors import DataError, ModelError
from mirror_rt.schema import least
from mirror_train.data.inputs import Inputs
from mirror_train.data.training_data import TrainingData
from mirror_train.data.views import epoch_order
from mirror_train.recipes.recipe import Hyperparameters, NotNegative, Positive, Rate
from mirror_train.systems.options import MODEL, StringOptions, Training, print_result, run_options
from mirror_train.systems.system import Claim, Entry, System
from mirror_train.training.run_config import TrainConfig
from mirror_train.training.steps import Part, Steps

if TYPE_CHECKING:
    from torch import Tensor, nn

    from mirror_rt.encoding.batch_encoder import Vectors
    from mirror_train.model.glow import Flow
    from mirror_train.model.pooling_head import Head
    from mirror_train.model.pretrained import Pretrained
    from mirror_train.training.loop import Trainer
    from mirror_train.training.run import Run, TuneReport

# The most vectors that the ActNorms are fitted to before the first step.
_INITIAL = 4096


@dataclass(frozen=True, slots=True)
class FlowRecipe(Hyperparameters):
    """The hyper-parameters of a flow (BERT-CF, sections 4.2, 5.3; hidden size: BERT-flow's code).

    Attributes:
        blocks: number of blocks of each level of the flow.
        levels: number of levels, after each of which but the last half of the dimensions are left
            as they are; 1 as in BERT-CF's text, 3 in the code of BERT-flow.
        hidden_size: hidden size of the network in each block's coupling.
        batch_size: number of strings of a step.
    """

    blocks: Annotated[int, least(1)] = 3
    levels: Annotated[int, least(1)] = 1
    hidden_size: Annotated[int, least(1)] = 32
    steps: Annotated[int, least(1)] = 10_000
    batch_size: Annotated[int, least(1)] = 16
    learning_rate: Positive = 3e-4
    weight_decay: NotNegative = 0.01
    warm_up: Rate = 0.0
    decay: bool = False


@dataclass(frozen=True, kw_only=True)
class TrainFlow(Training):
    """Fit a normalising flow, without labels, that maps an encoder's vectors to a Gaussian.

    As BERT-flow does (Li et al. 2020): a base model's vectors lie in a narrow cone, and the flow
    spreads them. The encoder stays as it is; each string is encoded once.

    The folder is exported and evaluated like a tuned one, the flow inside the graph;
    sentence-transformers refuses it, for it has no such module. Ctrl-C writes a checkpoint.

    Examples:
        mirror-rt train flow --data lines.txt --out flowed
        mirror-rt train flow --model bert-base-uncased --data lines.txt --steps 2000 --out flowed
        mirror-rt train flow --model tuned --words en --out flowed
        mirror-rt export flowed --out bundle
    """

    model: Annotated[str | None, Help(f"encoder: {MODEL})", "MODEL", word=True)] = None
    strings: Annotated[StringOptions, Group("strings")]
    recipe: Annotated[Given[FlowRecipe], Group("flow")]
    config: Annotated[Given[TrainConfig], run_options("pooling")]

    def run(self) -> None:
        from mirror_train.systems import train

        config = self.settings("flow", self.config, self.recipe.make())
        print_result(train("flow", self.strings.read(), config))


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
    import torch

    from mirror_train.model.glow import Flow

    flow = Flow(
        size,
        blocks=recipe.blocks,
        levels=recipe.levels,
        hidden_size=recipe.hidden_size,
        generator=torch.Generator().manual_seed(seed),
    )
    if len(vectors) > _INITIAL:
        chosen = np.random.default_rng(seed).choice(len(vectors), _INITIAL, replace=False)
        vectors = vectors[np.sort(chosen)]
    flow.initialise(torch.from_numpy(vectors))
    return flow


def likelihood_steps(flow: Flow, vectors: Vectors, recipe: FlowRecipe, run: Run) -> Steps:
    """Return BERT-flow's steps: the likelihood of fixed vectors [n, D], in random order."""
    import torch

    x, size = torch.from_numpy(vectors), recipe.batch_size

    def loss(x: Tensor) -> Tensor:
        return bits_per_dimension(flow(x), flow.log_determinant())

    def parts(step: int) -> list[Part]:
        epoch, batch = divmod(step, len(x) // size)
        rows = epoch_order(len(x), seed=run.config.seed, epoch=epoch)[batch * size :][:size]
        own = rows[run.processes.own_rows(size)].copy()
        return [Part(x[own].to(run.device), loss)]

    return Steps(recipe.steps, parts)


def flow_trainer(
    run: Run,
    base: Pretrained,
    head: Head,
    flow: Flow,
    steps: Steps,
    recipe: FlowRecipe,
    encoder_rate: float | None = None,
) -> Trainer:
    """Return the trainer of a flow behind the head of a model.

    With `encoder_rate`, the encoder is trained at that rate, too; without it, it is frozen.
    """
    from mirror_train.training.optimizer import adamw

    flow.requires_grad_(True).to(run.device)
    base.model.requires_grad_(encoder_rate is not None).to(run.device)
    modules: dict[str, nn.Module] = {"flow": flow}
    groups: list[dict[str, Any]] = [{"params": list(flow.parameters())}]
    if encoder_rate is not None:
        modules["encoder"] = base.model
        groups.append({"params": list(base.model.parameters()), "lr": encoder_rate})
    return run.trainer(
        steps,
        head,
        modules,
        recipe,
        base=base,
        optimizer=adamw(groups, recipe),
        advice="a lower learning rate",
    )


def check_batch(data: TrainingData, batch_size: int, option: str = "--batch-size") -> None:
    """Raise DataError for fewer strings than a batch has; `option` sets its size."""
    count = min(len(data), len({*data.first, *data.second}))  # pairs may share strings
    if count < batch_size:
        hint = f"pass {option} {count} or less" if count > 1 else "give at least 2"
        raise DataError(
            f"{data.source} has too few different strings, {count}, for a batch of {batch_size}: "
            f"{hint}"
        )


def frozen_head(base: Pretrained, pooling: str) -> Head:
    """Return the head that a flow follows: a pooling alone, or for `auto` the one that is declared.

    Where `auto` finds no declared head, it is the mean, as it is for `paper`. A head that no
    flow can follow is refused.
    """
    from mirror_train.model.declared_modules import declared_head
    from mirror_train.model.pooling_head import Head

    given = [] if pooling in ("auto", "paper") else [cast(Pooling, pooling)]
    head = declared_head(base.description) if pooling == "auto" else Head(given or ["mean"])
    head = head or Head(["mean"])
    if head.pooling not in get_args(Pooling) or head.pooling == "mean-with-padding":
        raise ModelError(
            f"{base.name} has the pooling {head.pooling}, which a flow cannot follow: pass "
            "--pooling cls or --pooling mean"
        )
    base.check_special_tokens(head.poolings)
    return head


def text_vectors(run: Run, model: Pretrained, head: Head, data: TrainingData) -> Vectors:
    """Return the head's vectors of all different strings of `data`, float32 [n, D]."""
    strings, encoder = list(dict.fromkeys([*data.first, *data.second])), run.encoder(head, model)
    vectors = encoder.encode(strings, normalize_embeddings=False, show_progress_bar=run.shows_bars)
    return np.asarray(vectors, dtype=np.float32)


def _run(data: TrainingData, config: TrainConfig) -> TuneReport:
    """Fit a flow to an encoder's vectors of `data`, each encoded once and without dropout."""
    from mirror_train.model.glow import check_flow_size
    from mirror_train.model.pooling_head import Head
    from mirror_train.training.run import begun

    recipe: FlowRecipe = config.recipe
    with begun(config, "fp32") as run:
        check_batch(data, recipe.batch_size)
        run.processes.own_rows(recipe.batch_size)
        base = run.load(dropout=None)
        head = frozen_head(base, config.pooling)
        dimension = head.dimension(base.dimension)
        check_flow_size(dimension, recipe.levels)
        fields = dataclasses.asdict(recipe)
        run.start(data.sha256(), fields | {"pooling": head.pooling})
        vectors = text_vectors(run, base, head, data)
        flow = initial_flow(dimension, recipe, seed=config.seed, vectors=vectors)
        steps = likelihood_steps(flow, vectors, recipe, run)
        trainer = flow_trainer(run, base, head, flow, steps, recipe)
        flowed = Head(head.poolings, [*head.layers, flow])
        run.train(trainer, "flow", run.encoder(flowed))
        tuned = base.description.manifest
        return run.write(
            flowed,
            trainer.stats,
            recipe={"system": "flow"} | fields,
            data=data.summary(),
            training={},
            level=None if tuned is None else tuned.level,
            language=data.language,
        )


SYSTEM = System(
    name="flow",
    title="fit a normalising flow behind an encoder that stays as it is (BERT-flow)",
    paper="[BERT-flow](https://aclanthology.org/2020.emnlp-main.733/)",
    recipe=FlowRecipe,
    run=_run,
    command=f"{__name__}:TrainFlow",
    settings=("pooling",),
    entries=(
        Entry("flow", "a flow over frozen vectors, on sentences", "BERT-flow (Li et al. 2020)",
              ("sentences",), FlowRecipe, Inputs.sentences, (Claim(),)),
    ),
)  # fmt: skip
