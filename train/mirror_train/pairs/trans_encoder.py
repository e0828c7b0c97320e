"""Trans-Encoder (Liu et al., ICLR 2022): a cross-encoder and an encoder, without labels.

The encoder labels pairs for a cross-encoder that starts from its weights, the cross-encoder then
labels them for the encoder, and so on. https://openreview.net/forum?id=AmUhwTOHgm
"""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path
from typing import Literal, NamedTuple

from torch import Tensor
from torch.nn import functional

from mirror_rt.bundle.manifest import Layout, Manifest, PoolingMode
from mirror_rt.errors import OutputExistsError
from mirror_rt.evaluation.similarity import cosines
from mirror_rt.io.atomic import check_free, new_folder, sha256
from mirror_train.compute.launch import check_one_process
from mirror_train.compute.precision import resolve_device
from mirror_train.data.labelled_examples import Examples
from mirror_train.model.cross_encoder import TorchCrossEncoder
from mirror_train.model.model_checks import weight_files
from mirror_train.model.pooling_head import Head
from mirror_train.model.pretrained import Pretrained, load_pretrained
from mirror_train.model.torch_encoder import TorchEncoder
from mirror_train.pairs.cross_encoder import (
    data_hash,
    pair_trainer,
    tune_cross_encoder,
    write_pairs,
)
from mirror_train.pairs.task_run import declared_or_mean
from mirror_train.recipes.cross_encoders import CrossEncoderRecipe
from mirror_train.training.loop import TrainingStats
from mirror_train.training.run import TuneReport, begun
from mirror_train.training.run_config import (
    CrossEncoderConfig,
    TransEncoderConfig,
    check_same_run,
    recorded_run,
)

CROSS_ENCODER, ENCODER = "cross-encoder", "encoder"


class TransEncoderReport(NamedTuple):
    """The two models that a run has written: `OUT/cross-encoder` and `OUT/encoder`.

    There is no cross-encoder where `config.teacher` labels for the only cycle.
    """

    cross_encoder: TuneReport | None
    encoder: TuneReport


def tune_trans_encoder(pairs: Examples, config: TransEncoderConfig) -> TransEncoderReport:
    """Train a cross-encoder and an encoder in turn, and write the best or last of each.

    The targets of the pairs are not used. As in the authors' code, every encoder starts from the
    base model; a cross-encoder starts from the encoder that labels for it. The errors are those of
    `tune_cross_encoder`, and an OutputExistsError where `config.cycles` is left of another run.
    """
    check_one_process("Trans-Encoder")
    check_free(config.out, overwrite=config.overwrite)
    if config.overwrite:
        shutil.rmtree(config.cycles, ignore_errors=True)
    if config.cycles.exists() and not config.resume:
        raise OutputExistsError(
            f"{config.cycles} is left of an earlier run: continue it with --resume, or start again "
            "with --overwrite"
        )
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
    shutil.rmtree(config.cycles)
    moved = {name: dataclasses.replace(one, out=config.out / name) for name, one in best.items()}
    return TransEncoderReport(moved.get(CROSS_ENCODER), moved[ENCODER])


def cosine_error(z: Tensor, targets: Tensor) -> Tensor:
    """Return the mean squared error of the cosines of n pairs, [2n, D], from targets [n].

    The n first texts come before their partners (Trans-Encoder, Eq. 2).
    """
    u, v = z.chunk(2)
    return functional.mse_loss(functional.cosine_similarity(u, v, dim=1), targets.to(z.dtype))


def _to_cross_encoder(
    pairs: Examples, config: TransEncoderConfig, cycle: int, model: str
) -> TuneReport:
    """Train the cross-encoder of a cycle on the cosines of an encoder."""
    settings = _settings(config, cycle, CROSS_ENCODER, config.recipe.cross, model)
    base = load_pretrained(model, **config.load_options(model))
    head = _head(base, config.recipe.pooling)
    teacher = f"{','.join(base.weights_sha256())} with {head.pooling}"
    if (finished := _finished(settings, pairs, teacher)) is not None:
        return finished
    encoder = TorchEncoder(base, head=head, device=resolve_device(config.device))
    assert pairs.second is not None
    # A cosine below 0 is no probability, and means as little as 0.
    targets = cosines(encoder, pairs.first, pairs.second).clip(0, 1)
    labelled = dataclasses.replace(pairs, targets=targets)
    return tune_cross_encoder(labelled, settings, teacher=teacher)


def _to_encoder(
    pairs: Examples, config: TransEncoderConfig, cycle: int, cross_encoder: Path
) -> TuneReport:
    """Train the encoder of a cycle on the scores of a cross-encoder."""
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
        head = _head(base, config.recipe.pooling)
        fields = dataclasses.asdict(recipe) | {"pooling": head.pooling}
        run.start(data_hash(pairs, teacher), fields)
        tokenizer = base.text_tokenizer(recipe.max_length)
        trainer = pair_trainer(
            run, head, rows, lambda texts: tokenizer(texts).tokens, cosine_error, recipe
        )
        run.train(trainer, "encoder", TorchEncoder(base, head=head, device=run.device))
        return write_pairs(run, trainer, head, rows, recipe, teacher, pooling=head.pooling)


def _settings(
    config: TransEncoderConfig, cycle: int, name: str, recipe: CrossEncoderRecipe, model: str
) -> CrossEncoderConfig:
    """Return the settings of the run that makes a model of a cycle."""
    own = {
        field.name: getattr(config, field.name) for field in dataclasses.fields(CrossEncoderConfig)
    }
    own |= {"recipe": recipe, "model": model, "out": config.cycles / f"{cycle}-{name}"}
    return CrossEncoderConfig(**own | config.load_options(model))


def _finished(settings: CrossEncoderConfig, pairs: Examples, teacher: str) -> TuneReport | None:
    """Return the model of a cycle that an interrupted run had finished; None if there is none."""
    if not (settings.resume and (settings.out / Layout.manifest).is_file()):
        return None
    manifest = Manifest.read(settings.out, "mirror_rt encoder")
    manifest.verify(settings.out)
    wanted = {"data": data_hash(pairs, teacher), "seed": settings.seed, "select": settings.selects}
    found = recorded_run(manifest, "weights_sha256")
    check_same_run(settings.out, found, wanted | dataclasses.asdict(settings.recipe))
    return TuneReport(settings.out, manifest, TrainingStats())


def _rho(report: TuneReport) -> float:
    return float((report.manifest.training or {}).get("spearman", 0))


def _head(base: Pretrained, pooling: PoolingMode | Literal["auto"]) -> Head:
    return declared_or_mean(base) if pooling == "auto" else Head([pooling])
