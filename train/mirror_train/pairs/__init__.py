"""Encoders trained on labelled texts and pairs: multi-task fine-tuning, and BURT."""

from mirror_train.pairs.burt import BurtConfig, BurtRecipe, tune_burt
from mirror_train.pairs.burt_data import BurtTasks
from mirror_train.pairs.multitask import MultitaskConfig, MultitaskRecipe, tune_multitask
from mirror_train.pairs.multitask_data import MultitaskData, load_multitask_data

__all__ = [
    "BurtConfig",
    "BurtRecipe",
    "BurtTasks",
    "MultitaskConfig",
    "MultitaskData",
    "MultitaskRecipe",
    "load_multitask_data",
    "tune_burt",
    "tune_multitask",
]
