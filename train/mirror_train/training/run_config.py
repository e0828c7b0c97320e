"""The settings of a run, of whatever system."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from mirror_rt.bundle.identity import digest_of
from mirror_rt.bundle.manifest import Layout, Manifest, Pooling
from mirror_rt.errors import ConfigError, OutputExistsError, Setting
from mirror_rt.heads.task_heads import HEAD_NAME
from mirror_rt.io.atomic import path_sha256
from mirror_rt.kept_work import Identity
from mirror_rt.keywords import take_paths
from mirror_rt.schema import check_rules, least
from mirror_train.compute.precision import Precision
from mirror_train.model.model_folder import DEFAULT_MODEL
from mirror_train.training.teacher_model import kept_teacher

# `paper` takes the pooling of the papers, whatever the base model declares.
TunedPooling = Literal[Pooling, "auto", "paper"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunConfig:
    """All settings of a run but its data and its hyper-parameters.

    Attributes:
        out: folder to write.
        model: base model: folder, hub name, or the embedded default.
        revision: branch, tag or commit on the hub.
        device: auto, cpu, cuda or cuda:N.
        seed: the same seed gives the same vectors on the same machine.
        overwrite: replace an existing `out`, and forget the checkpoints of an earlier run.
        offline: never ask the network.
        trust_remote_code: run code that comes with the base model.
        show_progress_bar: by default a bar where standard error is a terminal.
    """

    out: Path
    model: str = DEFAULT_MODEL
    revision: str | None = None
    device: str = "auto"
    seed: Annotated[int, least(0)] = 42
    overwrite: bool = False
    offline: bool = False
    trust_remote_code: bool = False
    show_progress_bar: bool | None = None

    def __post_init__(self) -> None:
        take_paths(self)
        check_rules(self)

    def run_options(self) -> dict[str, Any]:
        """Return the fields of `RunConfig`, to make the settings of another run from."""
        return {one.name: getattr(self, one.name) for one in dataclasses.fields(RunConfig)}

    def load_options(self, model: str | None = None) -> dict[str, Any]:
        """Return the fields that say how a model is loaded; only the base has the revision."""
        revision = self.revision if model in (None, self.model) else None
        own = {name: getattr(self, name) for name in ("offline", "trust_remote_code")}
        return own | {"revision": revision}


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainConfig(RunConfig):
    """All settings of a run of a system but its data; see `RunConfig`.

    Each system takes some of the fields from `pooling` on, `System.settings`; others keep their
    defaults.

    Attributes:
        recipe: hyper-parameters, of the class that the system has.
        seed: the same seed gives the same vectors on the same machine (default 42; 11711, that of
            BERT-CF, for cf, burt, finetune and multitask).
        checkpoint_every: steps between checkpoints; 0 for none but on Ctrl-C.
        resume: continue after the last checkpoint, if there is one, and with finished parts.
        select: a table of scored pairs that choose the weights: those with the highest Spearman's
            rho, in the place of those of the last step (of Trans-Encoder also the cycle).
        evaluate_every: steps between evaluations for that choice; the last step is evaluated, too.
        pooling: `auto` takes that of the row which the base model's name has in the table, else
            what the model declares, else that of the row of the model which a folder is a copy of,
            else the recipe's, else the papers' (the mean for BERT and sentences, [CLS] otherwise);
            but a recipe's `mean-without-special` goes first. `paper` passes over the base model. A
            flow alone keeps the layers that the model declares behind its pooling.
        pooling_from: the reason for another `pooling`, in words.
        precision: auto, fp32, bf16 or fp16.
        loss_batch: pairs contrasted with one another in a step, at least the recipe's batch size.
            That many pairs then go through the encoder at a time, and gradients are cached: memory
            follows the batch size, the loss `loss_batch`. By default the batch size.
        task: name of the head that the layer becomes.
        teacher: of Mirror-BERT, an encoder whose cosines are followed: what `Encoder.load` takes, a
            bundle, a tuned folder or a name; or `auto`, which is all-mpnet-base-v2, tuned on
            English words and kept in the cache. Of pairs, it reads the first text; of those of
            several languages, one that it knows. Of Trans-Encoder, the folder of a cross-encoder
            that labels the pairs of the first cycle, in the place of one that learns from the base
            model.
    """

    recipe: Any
    seed: Annotated[int, least(0)] = None  # type: ignore[assignment]
    checkpoint_every: Annotated[int, least(0)] = 0
    resume: bool = False
    select: Path | None = None
    evaluate_every: Annotated[int, least(1)] = 500
    pooling: TunedPooling = "auto"
    pooling_from: str = "as asked for"
    precision: Precision = "auto"
    loss_batch: int | None = None
    task: Annotated[str, HEAD_NAME] = "label"
    teacher: Path | None = None

    def __post_init__(self) -> None:
        seed = self.recipe.default_seed if self.seed is None else self.seed
        object.__setattr__(self, "seed", seed)
        RunConfig.__post_init__(self)
        if self.resume and self.overwrite:
            raise ConfigError(
                Setting("resume"), " continues a run, overwrite starts it again: choose one"
            )
        if self.loss_batch is not None and self.loss_batch < self.recipe.batch_size:
            raise ConfigError(
                Setting("loss_batch"),
                " must be at least ",
                Setting("batch_size"),
                f", {self.recipe.batch_size}, got {self.loss_batch}: it counts the pairs that are "
                "contrasted with one another, the batch size those that go through the encoder at "
                "a time",
            )

    @property
    def selects(self) -> dict[str, Any] | None:
        """The choice of the weights by `select`, for mirror.json; None for none."""
        if self.select is None:
            return None
        digest, every = path_sha256(self.select), self.evaluate_every
        return {"file": self.select.name, "sha256": digest, "evaluate_every": every}

    @property
    def teacher_name(self) -> str | None:
        """The teacher as it was given, which may be a name and no folder."""
        return None if self.teacher is None else self.teacher.as_posix()

    def beside(self, name: str) -> Path:
        """Return the folder OUT.name, which keeps finished parts of a run until it is complete."""
        return beside(self.out, name)


def beside(out: Path, name: str) -> Path:
    """Return the folder OUT.name of `TrainConfig.beside`."""
    return out.parent / f"{out.name}.{name}"


def left_over(path: Path) -> OutputExistsError:
    """Return the error for files of an earlier run, with both ways to go on."""
    return OutputExistsError(
        f"{path} is left of an earlier run: continue it with --resume, or start again with "
        "--overwrite"
    )


def finished_run(
    config: TrainConfig, data: str, base_model: Mapping[str, Any] | None = None
) -> Manifest | None:
    """Return the manifest of the run that has finished `config.out`; None if it is not to be kept.

    Damaged files are refused, and so is a run with other data (of another hash), another seed,
    recipe, choice of the weights or teacher (by its name and its present files), or with other
    fields of the base model than those given; but no pooling is compared that the base model
    decides.
    """
    if not (config.resume and (config.out / Layout.manifest).is_file()):
        return None
    manifest = Manifest.read(config.out, "mirror_rt encoder")
    manifest.verify(config.out)
    training, recipe = manifest.training or {}, manifest.recipe or {}
    wanted = dataclasses.asdict(config.recipe) | {"data": data, "seed": config.seed,
                                                  "select": config.selects}  # fmt: skip
    found = recipe | {"data": (manifest.data or {}).get("sha256"), "seed": training.get("seed"),
                      "select": training.get("select")}  # fmt: skip
    taught = training.get("teacher", {})
    wanted["teacher"], found["teacher"] = config.teacher_name, taught.get("name")
    if config.teacher_name is not None and taught.get("name") == config.teacher_name:
        found["teacher's hash"] = taught.get("sha256")
        folder = kept_teacher(config)  # one that is not there would be tuned with the same result
        wanted["teacher's hash"] = taught.get("sha256") if folder is None else digest_of(folder)
    named = config.pooling not in ("auto", "paper")
    wanted["pooling"] = config.pooling if named else recipe.get("pooling")
    for name, value in (base_model or {}).items():
        wanted[f"base model's {name}"] = value
        found[f"base model's {name}"] = manifest.base_model.get(name)
    check_same_run(config.out, {name: found.get(name) for name in wanted}, Identity(wanted))
    return manifest


def check_same_run(path: Path, found: Mapping[str, Any], wanted: Identity) -> None:
    """Raise ConfigError, naming a difference, if `path` is of another run."""
    advice = "use the same settings, or --overwrite to start again"
    wanted.check(found, f"{path} is of another run", advice, ConfigError)
