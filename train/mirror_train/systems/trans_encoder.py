"""Trans-Encoder (Liu et al., ICLR 2022): a cross-encoder and an encoder, without labels.

The encoder labels pairs for a cross-encoder that starts from its weights, the cross-encoder then
labels them for the encoder, and so on. https://openreview.net/forum?id=AmUhwTOHgm
"""

from __future__ import annotations

import dataclasses
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from mirror_rt.bundle.manifest import PoolingMode
from mirror_rt.cli.parsing.options import Given, Group, Help
from mirror_rt.evaluation.similarity import cosines
from mirror_rt.io.atomic import check_free, new_folder, sha256
from mirror_rt.schema import least
from mirror_train.compute.launch import check_one_process
from mirror_train.data.labelled_examples import Examples
from mirror_train.data.pair_data import read_unlabelled_pairs
from mirror_train.data.tasks import names_in
from mirror_train.recipes.recipe import Positive
from mirror_train.systems.cross_encoder import (
    Columns,
    CrossEncoderRecipe,
    PairRecipe,
    data_hash,
    pair_trainer,
    train_cross_encoder,
    write_pairs,
)
from mirror_train.systems.options import Training, print_result, run_options
from mirror_train.systems.system import System
from mirror_train.training.run_config import TrainConfig, finished_run, left_over

if TYPE_CHECKING:
    from torch import Tensor

    from mirror_train.training.run import TuneReport

CROSS_ENCODER, ENCODER = "cross-encoder", "encoder"


@dataclass(frozen=True, slots=True)
class TransEncoderRecipe(PairRecipe):
    """The hyper-parameters of Trans-Encoder (Liu et al., ICLR 2022; defaults: the authors' code).

    The cross-encoder learns from each pair in both orders.

    Attributes:
        cycles: how often the cross-encoder learns from the encoder, and the encoder from it.
        encoder_epochs: passes of the encoder over the pairs.
        encoder_steps: number of its optimiser steps, in the place of epochs.
        encoder_batch_size: number of pairs of its batches.
        encoder_learning_rate: the highest rate of its AdamW, which then falls to 0.
        pooling: `auto` takes that of the base model, else the mean.
    """

    cycles: Annotated[int, least(1)] = 3
    encoder_epochs: Positive = 10
    encoder_steps: Annotated[int | None, least(1)] = None
    encoder_batch_size: Annotated[int, least(1)] = 128
    encoder_learning_rate: Positive = 5e-5
    pooling: PoolingMode | Literal["auto"] = "auto"

    @property
    def cross(self) -> CrossEncoderRecipe:
        """The recipe of the cross-encoder of a cycle."""
        shared = {name: getattr(self, name) for name in PairRecipe.__dataclass_fields__}
        return CrossEncoderRecipe(both_orders=True, lowest=0, highest=1, **shared)

    @property
    def encoder(self) -> CrossEncoderRecipe:
        """The recipe of the encoder of a cycle, whose rate does not rise first."""
        return self.cross.replace(
            both_orders=False,
            epochs=self.encoder_epochs,
            steps=self.encoder_steps,
            batch_size=self.encoder_batch_size,
            learning_rate=self.encoder_learning_rate,
            warm_up=0.0,
            decay=True,
        )


@dataclass(frozen=True, kw_only=True)
class TrainTransEncoder(Training):
    """Train a cross-encoder and an encoder in turn on pairs without labels, by Trans-Encoder.

    They are written as OUT/cross-encoder and OUT/encoder. --teacher takes a cross-encoder that you
    have. Ctrl-C writes a checkpoint; --resume goes on with the models that are finished.

    Examples:
        mirror-rt train trans-encoder --data pairs.tsv --select dev.tsv --out both
        mirror-rt train trans-encoder --data pairs.tsv --teacher cross --cycles 1 --out both
    """

    data: Annotated[
        Path, Help("pairs: text1||text2, two-column TSV, or a table with a header", "FILE")
    ]
    fields: Columns = None
    config: Annotated[Given[TrainConfig], run_options("precision", "teacher")]
    recipe: Annotated[Given[TransEncoderRecipe], Group("hyper-parameters")]

    def run(self) -> None:
        from mirror_train.systems import train

        config = self.settings("trans-encoder", self.config, self.recipe.make())
        pairs = read_unlabelled_pairs(self.data, fields=names_in(self.fields))
        print(f"{pairs.source}: {len(pairs)} pairs without labels")
        encoder = train("trans-encoder", pairs, config)
        for report in filter(None, (encoder.also, encoder)):
            print_result(report)


def _run(pairs: Examples, config: TrainConfig) -> TuneReport:
    """Train a cross-encoder and an encoder in turn, and write the best or last of each.

    The targets of the pairs are not used. As in the authors' code, every encoder starts from the
    base model; a cross-encoder starts from the encoder that labels for it. The report is that of
    the encoder in `OUT/encoder`, and `also` that of `OUT/cross-encoder`, which is missing where
    `config.teacher` labels for the only cycle. The models of each cycle are kept in OUT.cycles
    until the run is complete.
    """
    check_one_process("Trans-Encoder")
    check_free(config.out, overwrite=config.overwrite)
    cycles = config.beside("cycles")
    if config.overwrite:
        shutil.rmtree(cycles, ignore_errors=True)
    if cycles.exists() and not config.resume:
        raise left_over(cycles)
    found: dict[str, list[TuneReport]] = {CROSS_ENCODER: [], ENCODER: []}
    encoder, cross_encoder = config.model, config.teacher
    for cycle in range(1, config.recipe.cycles + 1):
        if cycle > 1 or cross_encoder is None:
            found[CROSS_ENCODER].append(_to_cross_encoder(pairs, config, cycle, encoder))
            cross_encoder = found[CROSS_ENCODER][-1].out
        found[ENCODER].append(_to_encoder(pairs, config, cycle, cross_encoder))
        encoder = str(found[ENCODER][-1].out)
    # Without a choice, the last.
    best = {name: max(reports[::-1], key=_rho) for name, reports in found.items() if reports}
    with new_folder(config.out, overwrite=config.overwrite) as folder:
        for name, report in best.items():
            shutil.copytree(report.out, folder / name)
    shutil.rmtree(cycles)
    moved = {name: dataclasses.replace(one, out=config.out / name) for name, one in best.items()}
    return dataclasses.replace(moved[ENCODER], also=moved.get(CROSS_ENCODER))


def cosine_error(z: Tensor, targets: Tensor) -> Tensor:
    """Return the mean squared error of the cosines of n pairs, [2n, D], from targets [n].

    The n first texts come before their partners (Trans-Encoder, Eq. 2).
    """
    from torch.nn import functional

    u, v = z.chunk(2)
    return functional.mse_loss(functional.cosine_similarity(u, v, dim=1), targets.to(z.dtype))


def _to_cross_encoder(pairs: Examples, config: TrainConfig, cycle: int, model: str) -> TuneReport:
    """Train the cross-encoder of a cycle on the cosines of an encoder."""
    from mirror_train.compute.precision import resolve_device
    from mirror_train.model.pretrained import load_pretrained
    from mirror_train.model.torch_encoder import TorchEncoder
    from mirror_train.training.labelled import head_of

    settings = _settings(config, cycle, CROSS_ENCODER, config.recipe.cross, model)
    base = load_pretrained(model, **config.load_options(model))
    head = head_of(base, config.recipe.pooling)
    teacher = f"{','.join(base.weights_sha256())} with {head.pooling}"
    if (finished := _finished(settings, pairs, teacher)) is not None:
        return finished
    encoder = TorchEncoder(base, head=head, device=resolve_device(config.device))
    assert pairs.second is not None
    # A cosine below 0 is no probability, and means as little as 0.
    targets = cosines(encoder, pairs.first, pairs.second).clip(0, 1)
    labelled = dataclasses.replace(pairs, targets=targets)
    return train_cross_encoder(labelled, settings, teacher=teacher)


def _to_encoder(
    pairs: Examples, config: TrainConfig, cycle: int, cross_encoder: Path
) -> TuneReport:
    """Train the encoder of a cycle on the scores of a cross-encoder."""
    from mirror_train.model.cross_encoder import TorchCrossEncoder
    from mirror_train.model.model_checks import weight_files
    from mirror_train.training.labelled import head_of
    from mirror_train.training.run import begun

    recipe = config.recipe.encoder
    settings = _settings(config, cycle, ENCODER, recipe, config.model)
    teacher = ",".join(map(sha256, weight_files(cross_encoder)))
    if (finished := _finished(settings, pairs, teacher)) is not None:
        return finished
    options = config.load_options(str(cross_encoder))
    scorer = TorchCrossEncoder.load(cross_encoder, device=config.device, **options)
    assert pairs.second is not None
    rows = dataclasses.replace(pairs, targets=scorer.scores(pairs.first, pairs.second))
    with begun(settings, settings.precision) as run:
        base = run.load(dropout=recipe.dropout)
        head = head_of(base, config.recipe.pooling)
        fields = dataclasses.asdict(recipe) | {"pooling": head.pooling}
        run.start(data_hash(pairs, teacher), fields)
        tokenizer = base.text_tokenizer(recipe.max_length)
        trainer = pair_trainer(
            run, head, rows, lambda texts: tokenizer(texts).tokens, cosine_error, recipe
        )
        run.train(trainer, "encoder", run.encoder(head))
        return write_pairs(run, trainer, head, rows, recipe, teacher, pooling=head.pooling)


def _settings(
    config: TrainConfig, cycle: int, name: str, recipe: CrossEncoderRecipe, model: str
) -> TrainConfig:
    """Return the settings of the run that makes a model of a cycle."""
    out, options = config.beside("cycles") / f"{cycle}-{name}", config.load_options(model)
    return dataclasses.replace(config, recipe=recipe, model=model, out=out, teacher=None, **options)


def _finished(settings: TrainConfig, pairs: Examples, teacher: str) -> TuneReport | None:
    """Return the model of a cycle that an interrupted run had finished; None if there is none."""
    from mirror_train.training.loop import TrainingStats
    from mirror_train.training.run import TuneReport

    kept = finished_run(settings, data_hash(pairs, teacher))
    return None if kept is None else TuneReport(settings.out, kept, TrainingStats())


def _rho(report: TuneReport) -> float:
    return float((report.manifest.training or {}).get("spearman", 0))


SYSTEM = System(
    name="trans-encoder",
    title="train a cross-encoder and an encoder in turn, without labels (Trans-Encoder)",
    paper="[Trans-Encoder](https://openreview.net/forum?id=AmUhwTOHgm)",
    recipe=TransEncoderRecipe,
    run=_run,
    command=f"{__name__}:TrainTransEncoder",
    settings=("precision", "teacher"),
)
