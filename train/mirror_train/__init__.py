"""Tune encoders by Mirror-BERT (Liu et al., EMNLP 2021); this package needs the extra `train`.

Recipes, tables of languages and configurations can be read without that extra.
"""

import os
from typing import TYPE_CHECKING

from mirror_rt.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from mirror_train.data.strings import has_word_list, load_training_data, word_list
    from mirror_train.data.thesaurus import load_thesaurus
    from mirror_train.data.training_data import TrainingData
    from mirror_train.languages.language_job import LanguageJob, LanguageResult
    from mirror_train.languages.tune_languages import tune_languages
    from mirror_train.loss.infonce import infonce
    from mirror_train.model.model_folder import DEFAULT_MODEL
    from mirror_train.model.torch_encoder import TorchEncoder
    from mirror_train.recipes.base_models import LanguageRecipe, LanguageTable, load_languages
    from mirror_train.recipes.recipe import Recipe, load_recipe, recipe_names
    from mirror_train.training.run_config import TrainConfig
    from mirror_train.training.tune import TuneReport, tune

__all__ = [
    "DEFAULT_MODEL",
    "LanguageJob",
    "LanguageRecipe",
    "LanguageResult",
    "LanguageTable",
    "Recipe",
    "TorchEncoder",
    "TrainConfig",
    "TrainingData",
    "TuneReport",
    "has_word_list",
    "infonce",
    "load_languages",
    "load_recipe",
    "load_thesaurus",
    "load_training_data",
    "recipe_names",
    "tune",
    "tune_languages",
    "word_list",
]

# Torch's threads would look for each other 300,000 times (3 ms) before they sleep, which takes the
# processors from another run. The runtime of OpenMP reads this where torch is imported.
if "OMP_WAIT_POLICY" not in os.environ:
    os.environ.setdefault("GOMP_SPINCOUNT", "10000")

__getattr__ = lazy_exports(
    __name__,
    __all__,
    ("recipes.recipe", "recipes.base_models", "model.model_folder", "training.run_config",
     "data.training_data", "data.strings", "data.thesaurus", "loss.infonce", "model.torch_encoder",
     "training.tune", "languages.language_job", "languages.tune_languages"),
    extra="train",
)  # fmt: skip
