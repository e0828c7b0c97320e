"""Train encoders on labelled texts and pairs: fine-tuning on one task or several, and BURT."""

from typing import TYPE_CHECKING

from mirror_rt.lazy_exports import lazy_exports
from mirror_train.recipes.systems import BurtRecipe, FinetuneRecipe, MultitaskRecipe
from mirror_train.training.run_config import BurtConfig, FinetuneConfig, MultitaskConfig

if TYPE_CHECKING:
    from mirror_train.pairs.burt import tune_burt
    from mirror_train.pairs.burt_data import BurtTasks
    from mirror_train.pairs.multitask import finetune, tune_multitask
    from mirror_train.pairs.multitask_data import (
        MultitaskData,
        TaskData,
        TaskFiles,
        load_multitask_data,
    )

__all__ = [
    "BurtConfig",
    "BurtRecipe",
    "BurtTasks",
    "FinetuneConfig",
    "FinetuneRecipe",
    "MultitaskConfig",
    "MultitaskData",
    "MultitaskRecipe",
    "TaskData",
    "TaskFiles",
    "finetune",
    "load_multitask_data",
    "tune_burt",
    "tune_multitask",
]

__getattr__ = lazy_exports(
    __name__, __all__, ("multitask_data", "burt_data", "multitask", "burt"), extra="train"
)
