"""Mirror-BERT (Liu et al. 2021), SimCSE and SapBERT's loss: contrast two views of each string."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from mirror_train.data.inputs import Inputs
from mirror_train.data.training_data import TrainingData
from mirror_train.recipes.recipe import Recipe, load_recipe
from mirror_train.systems.system import Claim, Entry, System
from mirror_train.training.run_config import TrainConfig, TunedPooling

if TYPE_CHECKING:
    from mirror_train.training.run import TuneReport

_MIRROR = "Mirror-BERT (Liu et al. 2021)"
_SIMCSE = "SimCSE (Gao et al. 2021)"


def _run(data: TrainingData, config: TrainConfig) -> TuneReport:
    from mirror_train.training.tune import tune

    return tune(data, config)


def _fitted(recipe: Recipe, data: TrainingData, pooling: TunedPooling) -> Recipe:
    """Return the recipe with batches no larger than the data."""
    return recipe.replace(batch_size=max(2, min(recipe.batch_size, len(data))))


def _shipped(name: str, **changes: Any) -> Recipe:
    return load_recipe(name).replace(**changes)


def _with_multi_similarity() -> Recipe:
    """Return the recipe of sentences with the loss of `mirror-ms`."""
    own = load_recipe("mirror-ms")
    names = ("loss", "temperature", "ms_alpha", "ms_beta", "ms_base", "triplet_margin")
    return load_recipe("sentence").replace(**{name: getattr(own, name) for name in names})


SYSTEM = System(
    name="mirror",
    title="tune a masked language model on raw strings (Mirror-BERT)",
    paper="",  # mirror.json names no system
    recipe=Recipe,
    run=_run,
    command="mirror_train.cli.tune:Tune",
    settings=("pooling", "precision", "loss_batch", "teacher"),
    fitted=_fitted,
    entries=(
        Entry("mirror", "dropout and span masking, on sentences", _MIRROR, ("sentences",),
              partial(_shipped, "sentence"), Inputs.sentences, (Claim(),)),
        Entry("mirror-words", "dropout, on frequent words", _MIRROR, ("words",),
              partial(_shipped, "word"), Inputs.words, (Claim(suites=("words",)),)),
        Entry("mirror-ms", "mirror with multi-similarity on hard triplets",
              f"{_MIRROR}, footnote 2", ("sentences",), _with_multi_similarity, Inputs.sentences,
              (Claim("mirror", wanted="on par"),)),
        Entry("simcse", "dropout alone, one way, on sentences", _SIMCSE, ("sentences",),
              partial(_shipped, "simcse"), Inputs.sentences, (Claim(),)),
        Entry("simcse-nli", "inference pairs, contradictions as hard negatives", _SIMCSE,
              ("inference",), partial(_shipped, "simcse-nli"), Inputs.triplets,
              (Claim("simcse"),)),
        Entry("synonyms", "multi-similarity on names of one concept", "SapBERT (Liu et al. 2021)",
              ("synonyms",),
              partial(_shipped, "mirror-ms", span_length=0, epochs=1, batch_size=256),
              Inputs.synonyms, (Claim(suites=("linking",)),)),
        Entry("mirror-tokens", "the first step of cf: masked spans of tokens", "BERT-CF, 4.1",
              ("sentences",), partial(_shipped, "cf"), Inputs.sentences, (Claim(),)),
        Entry("mirror-dropout", "the first step of cf-simcse: dropout alone", "BERT-CF, 6.1",
              ("sentences",), partial(_shipped, "cf", span_length=0), Inputs.sentences,
              (Claim(),)),
    ),
)  # fmt: skip
