"""Choose a recipe by the strings, where none is named."""

from __future__ import annotations

from statistics import median

from mirror_train.data.scripts import UNSPACED, letters_by_script
from mirror_train.data.training_data import TrainingData

_MOST_WORDS = 5  # of a phrase; what is longer is a sentence
_LETTERS = 2  # of a word in scripts without spaces, about
_SAMPLE = 1000


def default_recipe(data: TrainingData, data_format: str | None) -> tuple[str, str]:
    """Return the name of the recipe for strings to tune on, and the reason for it."""
    if data_format == "synonyms":
        return "mirror-ms", "for concepts with several names"
    if data.hard_negatives is not None:
        return "simcse-nli", "for strings with negatives of their own"
    sample = data.first[:_SAMPLE]
    scripts = letters_by_script(sample)
    if 2 * sum(scripts[one] for one in UNSPACED) > scripts.total():
        size = median(len(text) / _LETTERS for text in sample)
    else:
        size = median(len(text.split()) for text in sample)
    if size > _MOST_WORDS:
        return "sentence", f"for sentences: half of the strings have {size:g} words or more"
    return "word", f"for words and phrases: half of the strings have {size:g} or fewer words"
