"""mirror_train: Mirror-BERT tuning (Liu et al., EMNLP 2021). Needs the extra `train`."""

from mirror_rt.errors import require as _require

_require("torch", extra="train", purpose="tuning")
_require("transformers", extra="train", purpose="tuning")

from mirror_train.data.strings import (  # noqa: E402
    TrainingData,
    has_word_list,
    load_training_data,
    word_list,
)
from mirror_train.languages.run import LanguageJob, LanguageResult, tune_languages  # noqa: E402
from mirror_train.languages.table import LanguageRecipe, LanguageTable, load_languages  # noqa: E402
from mirror_train.loss import infonce  # noqa: E402
from mirror_train.model.default_model import DEFAULT_MODEL  # noqa: E402
from mirror_train.model.torch_encoder import TorchEncoder  # noqa: E402
from mirror_train.recipes.recipe import Recipe, load_recipe, recipe_names  # noqa: E402
from mirror_train.training.tune import TuneConfig, TuneReport, tune  # noqa: E402

__all__ = [
    "DEFAULT_MODEL",
    "LanguageJob",
    "LanguageRecipe",
    "LanguageResult",
    "LanguageTable",
    "Recipe",
    "TorchEncoder",
    "TrainingData",
    "TuneConfig",
    "TuneReport",
    "has_word_list",
    "infonce",
    "load_languages",
    "load_recipe",
    "load_training_data",
    "recipe_names",
    "tune",
    "tune_languages",
    "word_list",
]
