"""The training systems, a module each, which `train` runs; their recipes and their data."""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules
from typing import TYPE_CHECKING, Any

from mirror_rt.errors import ConfigError, Setting, require
from mirror_train.data.burt_tasks import BurtTasks
from mirror_train.data.pair_data import read_labelled_pairs, read_unlabelled_pairs
from mirror_train.data.tasks import MultitaskData, TaskData, TaskFiles, load_multitask_data
from mirror_train.recipes.recipe import suggest
from mirror_train.systems.burt import BurtRecipe
from mirror_train.systems.cf import CfRecipe
from mirror_train.systems.colbert import ColbertRecipe
from mirror_train.systems.cross_encoder import CrossEncoderRecipe
from mirror_train.systems.finetune import FinetuneRecipe
from mirror_train.systems.flow import FlowRecipe
from mirror_train.systems.multitask import MultitaskRecipe
from mirror_train.systems.splade import SpladeRecipe
from mirror_train.systems.system import System
from mirror_train.systems.trans_encoder import TransEncoderRecipe
from mirror_train.training.run_config import TrainConfig

if TYPE_CHECKING:
    from mirror_train.training.run import TuneReport

__all__ = [
    "SYSTEMS",
    "BurtRecipe",
    "BurtTasks",
    "CfRecipe",
    "ColbertRecipe",
    "CrossEncoderRecipe",
    "FinetuneRecipe",
    "FlowRecipe",
    "MultitaskData",
    "MultitaskRecipe",
    "SpladeRecipe",
    "System",
    "TaskData",
    "TaskFiles",
    "TrainConfig",
    "TransEncoderRecipe",
    "load_multitask_data",
    "read_labelled_pairs",
    "read_unlabelled_pairs",
    "train",
]

_MODULES = [import_module(f"{__name__}.{found.name}") for found in iter_modules(__path__)]
SYSTEMS: dict[str, System] = {
    module.SYSTEM.name: module.SYSTEM for module in _MODULES if hasattr(module, "SYSTEM")
}


def train(system: str, data: Any, config: TrainConfig) -> TuneReport:
    """Train a system on its data, and write the model to `config.out`.

    Each system of `SYSTEMS` has data of its own: Mirror-BERT, BERT-flow and BERT-CF `TrainingData`,
    SPLADE and ColBERT that of pairs, BURT `BurtTasks`, fine-tuning `TaskData`, several tasks
    `MultitaskData`, cross-encoders the result of `read_labelled_pairs`, and Trans-Encoder that
    of `read_unlabelled_pairs`.

    Raises:
        ConfigError: there is no such system, an option cannot be used, or the files to resume are
            of another run.
        DataError: the data cannot be used, or are too few.
        ModelError: the base model cannot be loaded or used, or a loss diverges.
        OutputExistsError: `config.out` exists, or files that an earlier run has left.
        Interrupted: training was stopped by Ctrl-C or SIGTERM; a checkpoint was written.
        KeyboardInterrupt: Ctrl-C between two models of a run; those that are finished are kept.
        OSError: the disk cannot hold the result (checked before the work), or a write failed.
    """
    if system not in SYSTEMS:
        known = ", ".join(SYSTEMS)
        raise ConfigError(f"no system {system!r}{suggest(system, SYSTEMS)}; there are {known}")
    found = SYSTEMS[system]
    if not isinstance(config.recipe, found.recipe):
        raise ConfigError(
            field="recipe", expected=f"a {found.recipe.__name__}", value=type(config.recipe)
        )
    for name, default in found.not_taken().items():
        if getattr(config, name) != default:
            raise ConfigError(Setting(name), f" does not go with the system {system!r}")
    for module in ("torch", "transformers"):
        require(module, extra="train", purpose=f"training {system}")
    return found.run(data, config)
