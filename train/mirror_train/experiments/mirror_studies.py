"""The studies of Mirror-BERT as data (EMNLP 2021, section 4.4, appendices B to E and J)."""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import Any

from mirror_rt.bundle.manifest import Pooling
from mirror_train.experiments.paper_numbers import SENTENCES, WORDS
from mirror_train.experiments.setups import MirrorStudy, Setup
from mirror_train.recipes.recipe import Level, Recipe

_Values = tuple[float, ...]
_DROPOUT_RATES = (0.05, 0.1, 0.2, 0.3, 0.4)
_DROPHEAD_RATES = (0.05, 0.2)  # the authors' defaults for RoBERTa and for BERT
_POOLINGS: dict[Pooling, str] = {
    "cls": "[CLS]",
    "mean": "mean",
    "mean-without-special": "mean without special tokens",
}
# Table 21.
_GRID: dict[str, tuple[float, ...]] = {
    "learning_rate": (5e-5, 2e-5, 1e-5),
    "batch_size": (100, 200, 300),
    "epochs": (1, 2, 3, 5),
    "temperature": (0.03, 0.04, 0.05, 0.07, 0.1, 0.2, 0.3),
}
# Numbers of characters to mask: the paper's for sentences; most of those are too long for words.
_SPANS: dict[Level, _Values] = {
    "word": (0, 1, 2, 3, 5),
    "phrase": (0, 1, 2, 5, 10),
    "sentence": (2, 5, 10, 15, 20),
}


def _masked(recipe: Recipe) -> dict[str, Any]:
    """Return the recipe's span masking, or two characters (as for phrases) if it has none."""
    return {"span_length": recipe.span_length or 2}


def _dropout(recipe: Recipe) -> dict[str, Any]:
    return {"dropout": recipe.dropout or 0.1, "drophead": 0.0, "same_dropout": False}


def _ablation(recipe: Recipe, count: int) -> list[Setup]:
    dropout, masked = _dropout(recipe), _masked(recipe)
    off = dropout | {"dropout": 0.0}
    return [
        Setup("dropout + span masking", dropout | masked),
        Setup("- dropout", off | masked),
        Setup("- span masking", dropout | {"span_length": 0}),
        Setup("- dropout & span masking", off | {"span_length": 0}),
    ]


def _drophead(recipe: Recipe, count: int) -> list[Setup]:
    dropout = _dropout(recipe)
    off = dropout | {"dropout": 0.0}
    return [
        Setup(f"dropout {dropout['dropout']:g}", dropout),
        Setup("neither", off),
        *(Setup(f"drophead {rate:g}", off | {"drophead": rate}) for rate in _DROPHEAD_RATES),
    ]


def _controlled_dropout(recipe: Recipe, count: int) -> list[Setup]:
    dropout = _dropout(recipe) | {"span_length": 0}
    return [
        Setup("no dropout", dropout | {"dropout": 0.0}),
        Setup("dropout", dropout),
        Setup("controlled dropout", dropout | {"same_dropout": True}),
    ]


def _along(
    name: str, values: dict[Level, _Values] | _Values, label: str, recipe: Recipe, count: int
) -> list[Setup]:
    """Return setups along the axis of a field of the recipe, the recipe's own value first."""
    own = getattr(recipe, name)
    others = values[recipe.level] if isinstance(values, dict) else values
    places = (own, *sorted({*others} - {own}))
    return [Setup(label.format(value), {name: value}, x=value) for value in places]


def _grid(recipe: Recipe, count: int) -> list[Setup]:
    """Return the recipe and every other value of the grid, one hyper-parameter at a time.

    A batch that is larger than the number of strings is left out.
    """
    return [
        Setup("the recipe"),
        *(
            Setup(f"{name.replace('_', ' ')} {value:g}", {name: value})
            for name, values in _GRID.items()
            for value in values
            if value != getattr(recipe, name) and (name != "batch_size" or value <= count)
        ),
    ]


def _isotropy(recipe: Recipe, count: int) -> list[Setup]:
    none = {"dropout": 0.0, "drophead": 0.0, "span_length": 0}
    return [*_untuned(), Setup("tuned"), Setup("tuned without augmentation", none)]


def _data_size(recipe: Recipe, count: int) -> list[Setup]:
    """Return setups of 1, 2, 5, 10, ... strings, from a hundredth of all strings up to all."""
    steps = [step * 10**k for k in range(9) for step in (1, 2, 5)]
    sizes = [n for n in steps if max(recipe.batch_size, count / 100) <= n <= count] or [count]
    first = 10_000 if 10_000 in sizes else sizes[-1]  # the size in the paper's other experiments
    sizes.remove(first)
    return [Setup(f"{n:,} strings", top=n, x=n) for n in (first, *sizes)]


def _frequency(recipe: Recipe, count: int) -> list[Setup]:
    """Return setups of ten buckets of words, the most frequent first; fewer where words are few."""
    buckets = max(1, min(10, count // recipe.batch_size))
    size = count // buckets
    starts = range(0, buckets * size, size)
    return [
        Setup(f"words {start + 1:,} to {start + size:,}", top=size, start=start, x=start + size)
        for start in starts
    ]


def _random_strings(recipe: Recipe, count: int) -> list[Setup]:
    fast = {"learning_rate": 5e-5}
    return [
        Setup("real strings"),
        Setup("random strings", random_strings=True),
        Setup("random strings, lr 5e-5", fast, random_strings=True),
    ]


def _pooling(recipe: Recipe, count: int) -> list[Setup]:
    return [
        *(
            Setup(f"untuned, {name}", {"pooling": pooling}, tuned=False)
            for pooling, name in _POOLINGS.items()
        ),
        *(Setup(f"tuned, {name}", {"pooling": pooling}) for pooling, name in _POOLINGS.items()),
    ]


def _masking(recipe: Recipe, count: int) -> list[Setup]:
    """Compare ways to mask: the authors' code leaves strings under 30 characters unmasked.

    It also masks with the literal [MASK], whatever the tokenizer's mask token is.
    """
    span = _masked(recipe)
    return [
        Setup("as the authors' code", span | {"span_mask": "reference"}),
        Setup("own mask token, short strings too", span | {"span_mask": "mask-token"}),
        Setup("no masking", {"span_length": 0}),
    ]


def _word_plus(recipe: Recipe, count: int) -> list[Setup]:
    own, white = {"pooling": "mean-without-special"}, {"whitening": 0.25}
    return [
        Setup("the recipe"),
        Setup("without special tokens", own),
        Setup("with whitening", white),
        Setup("both", own | white),
        Setup("both, one epoch (word-plus)", own | white | {"epochs": 1}),
    ]


def _words(recipe: Recipe, count: int) -> list[Setup]:
    return [*_untuned(), Setup("+ Mirror"), *_random_strings(recipe, count)[1:]]


def _sentences(recipe: Recipe, count: int) -> list[Setup]:
    full, *parts = _ablation(recipe, count)
    heads = _drophead(recipe, count)[2:]
    return [*_untuned(), dataclasses.replace(full, label="+ Mirror"), *heads, *parts]


def _untuned() -> list[Setup]:
    """Return the base model by [CLS], by the paper's mean ("mp"), and by that of tokens alone."""
    poolings = _POOLINGS | {"mean-with-padding": "mean with padding"}
    return [
        Setup(f"untuned, {poolings[one]}", {"pooling": one}, tuned=False)
        for one in ("cls", "mean-with-padding", "mean")
    ]


def _augmentation(recipe: Recipe, count: int) -> list[Setup]:
    """Compare span masking with other changes (footnote 13), of two words or tokens."""
    return [
        Setup("span masking", _masked(recipe)),
        Setup("whole words", {"span_length": 2, "span_mask": "words"}),
        Setup("random tokens", {"span_length": 2, "span_mask": "random-tokens"}),
        Setup("reordered words", {"span_length": 2, "span_mask": "reorder"}),
        Setup("none", {"span_length": 0}),
    ]


def _layer(recipe: Recipe, count: int) -> list[Setup]:
    """Compare [CLS] with the output of the base model's pooler, and with SimCSE's layer."""
    return [
        Setup("[CLS]", {"pooling": "cls"}),
        Setup("after the pooler", {"pooling": "cls", "mlp": "pooler"}),
        Setup("another layer, in training alone", {"pooling": "cls", "mlp": "training"}),
    ]


STUDIES = {
    study.name: study
    for study in (
        MirrorStudy("ablation", "Tables 7 and 20", "dropout and span masking, each turned off",
                    "sentence", _ablation),
        MirrorStudy("drophead", "Tables 3 and 7", "drophead in the place of dropout", "sentence",
                    _drophead),
        MirrorStudy("controlled-dropout", "Table 8",
                    "the same dropout for a string and its copy", "sentence", _controlled_dropout),
        MirrorStudy("dropout-rate", "Table 12", "rates of dropout", "sentence",
                    partial(_along, "dropout", _DROPOUT_RATES, "dropout {:g}"),
                    axis="dropout rate"),
        MirrorStudy("masking-rate", "Table 13", "lengths of the masked span", "sentence",
                    partial(_along, "span_length", _SPANS, "{} characters"),
                    axis="masked characters"),
        MirrorStudy("data-size", "Figure 5", "1,000 to 100,000 strings", "word", _data_size,
                    axis="strings", log=True),
        MirrorStudy("frequency", "Figure 8", "ten buckets of words, the most frequent first",
                    "word", _frequency, axis="rank of the words"),
        MirrorStudy("random-strings", "Table 10", "random letters and digits instead of words",
                    "word", _random_strings),
        MirrorStudy("epochs", "section 4.4 and Table 21", "more epochs", "word",
                    partial(_along, "epochs", _GRID["epochs"], "{} epochs"), axis="epochs"),
        MirrorStudy("grid", "Table 21", "the grid of hyper-parameters, one by one", "word", _grid),
        MirrorStudy("isotropy", "Tables 9 and 14", "isotropy and the mean vector, of the strings",
                    "sentence", _isotropy,
                    geometry=("isotropy score one sign", "isotropy score", "mean vector norm")),
        MirrorStudy("pooling", "Appendix B", "[CLS] against the mean of the tokens", "word",
                    _pooling),
        MirrorStudy("layer", "Appendix B", "[CLS] after the pooling layer, and SimCSE's layer",
                    "word", _layer),
        MirrorStudy("augmentation", "footnote 13", "other changes of the input than span masking",
                    "sentence", _augmentation),
        MirrorStudy("masking", "the authors' code", "which strings are masked, and with what",
                    "sentence", _masking),
        MirrorStudy("reproduce-words", "Tables 1 and 10", "word similarity, also on random strings",
                    "word", _words, evaluate=("words/multisimlex-{lang}",), paper=WORDS,
                    deviation=0.005),
        MirrorStudy("reproduce-sts", "Tables 3, 7 and 20",
                    "English STS, whole and in parts", "sentence", _sentences,
                    paper=SENTENCES, deviation=0.002, padded=("bert-base-uncased",)),
        MirrorStudy("word-plus", "not in the paper", "what the recipe word-plus changes", "word",
                    _word_plus),
    )
}  # fmt: skip
