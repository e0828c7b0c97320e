"""BERT-CF (Hu): tune by Mirror-BERT, then fit a flow with Mirror-BERT's loss as regulariser."""

from __future__ import annotations

import dataclasses
import shutil
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Literal

from mirror_rt.bundle.manifest import Manifest
from mirror_rt.cli.parsing.options import Given, Group, Help
from mirror_rt.errors import ConfigError, Setting
from mirror_train.data.batches import Batches, StepBatch
from mirror_train.data.inputs import Inputs
from mirror_train.data.training_data import TrainingData
from mirror_train.recipes.recipe import Hyperparameters, NotNegative, Recipe, load_recipe
from mirror_train.systems.flow import (
    FlowRecipe,
    bits_per_dimension,
    check_batch,
    flow_trainer,
    initial_flow,
    likelihood_steps,
    text_vectors,
)
from mirror_train.systems.options import StringOptions, Training, print_result, run_options
from mirror_train.systems.system import Claim, Entry, System
from mirror_train.training.run_config import TrainConfig, finished_run, left_over
from mirror_train.training.steps import Part, Steps

if TYPE_CHECKING:
    from torch import Tensor

    from mirror_train.model.glow import Flow
    from mirror_train.model.pretrained import Pretrained
    from mirror_train.training.loop import Trainer
    from mirror_train.training.run import Run, TuneReport

# The fields of the first step's recipe with an option; a flow has options of some of their names.
_MIRROR = ("epochs", "steps", "batch_size", "learning_rate", "warm_up", "decay", "temperature",
           "dropout", "max_length")  # fmt: skip
_NAMES = {
    name: f"mirror_{name}" for name in ("steps", "batch_size", "learning_rate", "warm_up", "decay")
}


@dataclass(frozen=True, slots=True)
class CfRecipe(Hyperparameters):
    """The hyper-parameters of BERT-CF (sections 4.1, 4.2, 5.3).

    Each ablation of the paper's section 6.1 changes one field.

    Attributes:
        mirror: the first step, and the views and the loss of the regulariser. With `span_length` 0
            the views are those of SimCSE ("MinBERT-SimCSE-joint").
        flow: the second step. Its batches are those of the regulariser, too.
        mirror_weight: lambda, the weight of the contrastive loss beside the flow's; 0 fits the flow
            by likelihood alone ("MinBERT-Mirror-flow").
        joint: leave out the first step, and let the contrastive loss of the second one move the
            encoder, too, at the learning rate of `mirror` ("MinBERT-joint").
    """

    mirror: Recipe = field(default_factory=lambda: load_recipe("cf"))
    flow: FlowRecipe = field(default_factory=FlowRecipe)
    mirror_weight: NotNegative = 0.3
    joint: bool = False

    default_seed = 11711

    def __post_init__(self) -> None:
        Hyperparameters.__post_init__(self)
        if self.joint and not self.mirror_weight:
            raise ConfigError(
                Setting("joint"),
                " needs the regulariser: without it nothing would train the encoder",
            )
        if self.mirror_weight and self.flow.batch_size < 2:
            raise ConfigError(
                field="batch_size", expected="at least 2: InfoNCE needs negatives", value=1
            )
        if self.mirror.pooling == "mean-with-padding" or self.mirror.whitening:
            raise ConfigError(
                "a flow follows neither the pooling mean-with-padding nor a whitening layer"
            )
        if self.mirror.mlp != "none":
            raise ConfigError(
                field="mlp", expected="none where a flow follows", value=self.mirror.mlp
            )

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for mirror.json; names of the flow's fields begin with `flow_`."""
        flow = {f"flow_{name}": value for name, value in dataclasses.asdict(self.flow).items()}
        joint = {"mirror_weight": self.mirror_weight, "joint": self.joint}
        return dataclasses.asdict(self.mirror) | flow | joint


@dataclass(frozen=True, kw_only=True)
class _Ablations:
    """The parts of BERT-CF to leave out."""

    views: Annotated[
        Literal["mirror", "simcse"],
        Help("simcse: nothing masked, in both steps; the views differ by dropout alone"),
    ] = "mirror"
    regulariser: Annotated[
        bool, Help("step 2 with Mirror-BERT's loss, or by likelihood alone (default: with it)")
    ] = True
    cf: Annotated[Given[CfRecipe], Group()]


@dataclass(frozen=True, kw_only=True)
class _FirstStep:
    """The recipe of the first step, and the options that override it."""

    recipe: Annotated[str, Help("its recipe", "NAME|FILE.toml")] = "cf"
    changes: Annotated[Given[Recipe], Group(only=_MIRROR, names=_NAMES, overrides=True)]


@dataclass(frozen=True, kw_only=True)
class TrainCf(Training):
    """Tune a masked language model on raw strings, without labels, by BERT-CF.

    First by Mirror-BERT, with spans of tokens masked (as 'mirror-rt tune --recipe cf'). Then the
    encoder is frozen, and a normalising flow behind it is fitted by likelihood and by Mirror-BERT's
    loss of the flow's vectors, weighted by --mirror-weight.

    The folder is exported and evaluated like a tuned one, the flow inside the graph;
    sentence-transformers refuses it, for it has no such module. Ctrl-C writes a checkpoint,
    in step 2 beside the tuned encoder, which is in OUT.mirror; --resume goes on from there.

    Examples:
        mirror-rt train cf --data lines.txt --out cf
        mirror-rt train cf --model bert-base-uncased --data lines.txt --steps 2000 --out cf
        mirror-rt train cf --data lines.txt --out cf-simcse --views simcse
        mirror-rt train cf --data lines.txt --out cf-joint --joint
        mirror-rt train cf --data lines.txt --out mirror-flow --no-regulariser
    """

    strings: Annotated[StringOptions, Group("strings")]
    ablations: Annotated[_Ablations, Group("ablations (section 6.1 of the paper)")]
    first: Annotated[_FirstStep, Group("step 1, Mirror-BERT")]
    flow: Annotated[Given[FlowRecipe], Group("flow")]
    config: Annotated[Given[TrainConfig], run_options("pooling", "precision")]

    def run(self) -> None:
        from mirror_train.systems import train

        config = self.settings("cf", self.config, self._recipe())
        print_result(train("cf", self.strings.read(), config))

    def _recipe(self) -> CfRecipe:
        own = {}
        if not self.ablations.regulariser:
            if "mirror_weight" in self.ablations.cf.values():
                raise ConfigError(
                    "--mirror-weight is the regulariser's: leave out --no-regulariser"
                )
            own["mirror_weight"] = 0.0
        changes = self.first.changes.values()
        if self.ablations.views == "simcse":
            changes["span_length"] = 0
        mirror = load_recipe(self.first.recipe).replace(**changes)
        return self.ablations.cf.make(mirror=mirror, **own)


def cf_trainer(
    run: Run, base: Pretrained, flow: Flow, batches: Batches, recipe: CfRecipe
) -> Trainer:
    """Return the trainer of a flow by likelihood and Mirror-BERT's loss together (section 4.2).

    Each step encodes two views of its `flow.batch_size` strings, with dropout: the flow's vectors
    of both go into InfoNCE, and those of the first view into the likelihood. The flow is in
    float32. The encoder is frozen or, with `joint`, trained by InfoNCE alone.
    """
    from mirror_train.loss import cuda_device
    from mirror_train.model.pooling_head import Head
    from mirror_train.training.mirror import ViewTokenizer, contrast

    cuda_device.prepare(run.device)  # while the device's memory is free
    tokenize, group = ViewTokenizer(base, recipe.mirror), run.processes.group

    def loss(batch: StepBatch, x: Tensor) -> Tensor:
        x = x.float()
        z = flow(x)
        contrastive = contrast(z, batch, recipe.mirror, process_group=group)
        z1 = z.chunk(batch.views)[0]
        if recipe.joint:
            # The likelihood must train only the flow: it would shrink the encoder's vectors.
            z1 = flow(x.detach().chunk(batch.views)[0])
        likelihood = bits_per_dimension(z1, flow.log_determinant())
        return recipe.mirror_weight * contrastive + likelihood

    def parts(step: int) -> list[Part]:
        batch = batches[step]
        tokens, cut = tokenize(batch)
        return [Part(tokens, partial(loss, batch), sum(cut))]

    steps, head = Steps(recipe.flow.steps, parts), Head([recipe.mirror.fixed_pooling])
    rate = recipe.mirror.learning_rate if recipe.joint else None
    return flow_trainer(run, base, head, flow, steps, recipe.flow, rate)


def _run(data: TrainingData, config: TrainConfig) -> TuneReport:
    """Tune an encoder by Mirror-BERT, fit a flow to it with the same loss, and write both.

    The report's losses are those of the flow's steps. The result of the first step is kept in
    OUT.mirror until the run is complete.
    """
    from mirror_train.model.glow import check_flow_size
    from mirror_train.model.pooling_head import Head
    from mirror_train.training.checkpoint import Interrupted
    from mirror_train.training.pooling import choose_pooling
    from mirror_train.training.run import begun
    from mirror_train.training.tune import check_recipe

    recipe: CfRecipe = config.recipe
    with begun(config, config.precision) as run:
        check_batch(data, recipe.flow.batch_size)
        run.processes.own_rows(recipe.flow.batch_size)
        if not recipe.joint:
            check_batch(data, recipe.mirror.batch_size, "--mirror-batch-size")
        base = encoder = run.load(dropout=recipe.mirror.dropout)
        check_flow_size(base.dimension, recipe.flow.levels)
        first = dataclasses.replace(config, recipe=recipe.mirror, out=config.beside("mirror"))
        chosen = recipe.mirror.replace(pooling=choose_pooling(base, first).pooling)
        recipe, first = recipe.replace(mirror=chosen), dataclasses.replace(first, recipe=chosen)
        check_recipe(recipe.mirror, data, base, run.processes.count)
        of_base = {"weights_sha256": base.weights_sha256()}
        finished = None if recipe.joint else finished_run(first, data.sha256(), of_base)
        # While the run's result is written, that of a first step still to come is on the disk.
        copies = 1 if recipe.joint or finished else 2
        run.start(data.sha256(), recipe.to_dict(), copies=copies)
        training: dict[str, Any] = {}
        if not recipe.joint:
            encoder, training = _first_step(data, first, run, finished)
        try:
            flow, trainer = _second_step(data, recipe, encoder, run)
        except KeyboardInterrupt as error:
            if recipe.joint or isinstance(error, Interrupted):
                raise
            raise KeyboardInterrupt(
                f"interrupted while the flow was fitted; {first.out} holds the tuned "
                "encoder: continue with --resume"
            ) from error
        report = run.write(
            Head([recipe.mirror.fixed_pooling], [flow]),
            trainer.stats,
            recipe={"system": "cf"} | recipe.to_dict(),
            data=data.summary(),
            training=training,
            level=recipe.mirror.level,
            language=data.language,
            tuned=encoder,
        )
        run.processes.in_first(lambda: shutil.rmtree(first.out, ignore_errors=True))
        return report


def _first_step(
    data: TrainingData, config: TrainConfig, run: Run, finished: Manifest | None
) -> tuple[Pretrained, dict[str, Any]]:
    """Return the encoder after Mirror-BERT, and the records of that step for mirror.json."""
    from mirror_train.model.pretrained import load_pretrained
    from mirror_train.training.tune import tune

    out = config.out
    if finished is None and out.exists() and not config.overwrite:
        raise left_over(out)
    training = (finished or tune(data, config, base=run.base).manifest).training or {}
    kept = ("steps", "loss_first", "loss_last", "seconds", "best_step")
    options = config.load_options(str(out))
    tuned = load_pretrained(str(out), dropout=config.recipe.dropout, **options)
    return tuned, {f"mirror_{name}": training.get(name) for name in kept}


def _second_step(
    data: TrainingData, recipe: CfRecipe, encoder: Pretrained, run: Run
) -> tuple[Flow, Trainer]:
    """Fit the flow behind the tuned encoder; return it with its trainer."""
    from mirror_train.model.pooling_head import Head

    seed, head = run.config.seed, Head([recipe.mirror.fixed_pooling])
    vectors = text_vectors(run, encoder, head, data)
    flow = initial_flow(encoder.dimension, recipe.flow, seed=seed, vectors=vectors)
    if recipe.mirror_weight:
        batches = Batches(
            data,
            recipe.mirror,
            loss_batch=recipe.flow.batch_size,
            seed=seed,
            mask_token=encoder.mask_token,
            processes=run.processes,
        )
        trainer = cf_trainer(run, encoder, flow, batches, recipe)
    else:
        steps = likelihood_steps(flow, vectors, recipe.flow, run)
        trainer = flow_trainer(run, encoder, head, flow, steps, recipe.flow)
    flowed = Head(head.poolings, [flow])
    run.train(trainer, "flow", run.encoder(flowed, encoder))
    return flow, trainer


def _recipe(*, views: str = "mirror", joint: bool = False, regulariser: bool = True) -> CfRecipe:
    """Return the recipe of BERT-CF, or of an ablation of its section 6.1."""
    recipe = CfRecipe()
    mirror = recipe.mirror if views == "mirror" else recipe.mirror.replace(span_length=0)
    weight = recipe.mirror_weight if regulariser else 0.0
    return recipe.replace(mirror=mirror, joint=joint, mirror_weight=weight)


def _entry(name: str, title: str, source: str, *against: str, **ablation: Any) -> Entry:
    claims = tuple(Claim(one) for one in against)
    recipe = partial(_recipe, **ablation)
    return Entry(name, title, source, ("sentences",), recipe, Inputs.sentences, claims)


SYSTEM = System(
    name="cf",
    title="tune with masked tokens, then fit a flow that keeps the loss (BERT-CF)",
    paper="BERT-CF: [Mirror-BERT](https://aclanthology.org/2021.emnlp-main.109/), then a "
    "normalising flow",
    recipe=CfRecipe,
    run=_run,
    command=f"{__name__}:TrainCf",
    settings=("pooling", "precision"),
    entries=(
        _entry("cf", "Mirror-BERT with token spans, then a regularised flow", "BERT-CF",
               "mirror-tokens", "flow", "cf-joint", "cf-unregularised"),
        _entry("cf-simcse", "the same with SimCSE in the place of Mirror-BERT", "BERT-CF, 6.1",
               views="simcse"),
        _entry("cf-joint", "the same with the encoder unfrozen", "BERT-CF, 6.1", joint=True),
        _entry("cf-unregularised", "a flow after Mirror-BERT, by likelihood alone", "BERT-CF, 6.1",
               regulariser=False),
    ),
)  # fmt: skip
