"""Train on texts and pairs: fine-tuning, BURT, cross-encoders and Trans-Encoder."""

from typing import TYPE_CHECKING

from mirror_rt.lazy_exports import lazy_exports
from mirror_train.recipes.cross_encoders import CrossEncoderRecipe, TransEncoderRecipe
from mirror_train.recipes.systems import BurtRecipe, FinetuneRecipe, MultitaskRecipe
from mirror_train.training.run_config import (
    BurtConfig,
    CrossEncoderConfig,
    FinetuneConfig,
    MultitaskConfig,
    TransEncoderConfig,
)

if TYPE_CHECKING:
    from mirror_train.pairs.burt import tune_burt
    from mirror_train.pairs.burt_data import BurtTasks
    from mirror_train.pairs.cross_encoder import tune_cross_encoder
    from mirror_train.pairs.multitask import finetune, tune_multitask
    from mirror_train.pairs.multitask_data import (
        MultitaskData,
        TaskData,
        TaskFiles,
        load_multitask_data,
    )
    from mirror_train.pairs.pair_data import read_labelled_pairs, read_unlabelled_pairs
    from mirror_train.pairs.trans_encoder import tune_trans_encoder

__all__ = [
    "BurtConfig",
    "BurtRecipe",
    "BurtTasks",
    "CrossEncoderConfig",
    "CrossEncoderRecipe",
    "FinetuneConfig",
    "FinetuneRecipe",
    "MultitaskConfig",
    "MultitaskData",
    "MultitaskRecipe",
    "TaskData",
    "TaskFiles",
    "TransEncoderConfig",
    "TransEncoderRecipe",
    "finetune",
    "load_multitask_data",
    "read_labelled_pairs",
    "read_unlabelled_pairs",
    "tune_burt",
    "tune_cross_encoder",
    "tune_multitask",
    "tune_trans_encoder",
]

__getattr__ = lazy_exports(
    __name__,
    __all__,
    (
        "multitask_data",
        "burt_data",
        "pair_data",
        "multitask",
        "burt",
        "cross_encoder",
        "trans_encoder",
    ),
    extra="train",
)
