"""The studies of Mirror-BERT as data (EMNLP 2021, section 4.4, appendices B to D), and their rows.

A study is a list of setups, which are labelled changes of a recipe. The first setup that is tuned
is the reference that the others are compared with.
"""

from __future__ import annotations

import dataclasses
import string
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from mirror_rt.bundle.manifest import Pooling
from mirror_rt.evaluation import read_scored_pairs
from mirror_rt.evaluation.suites.base import scored_set
from mirror_train.data.training_data import TrainingData
from mirror_train.experiments.study import Row, Study, StudyConfig
from mirror_train.recipes.recipe import Level, Recipe
from mirror_train.training.run_config import RunConfig, TuneConfig

if TYPE_CHECKING:
    from mirror_train.training.run import TuneReport


@dataclass(frozen=True, slots=True)
class Setup:
    """One row of the table of a study.

    Attributes:
        label: its name in the table and the plot.
        changes: recipe fields that differ from the study's recipe.
        tuned: False for the base model without tuning.
        top: number of first strings to tune on; None for all.
        random_strings: whether to tune on random letters and digits of the strings' lengths.
        x: position on the axis of a study of rates or sizes.
    """

    label: str
    changes: dict[str, Any] = field(default_factory=dict)
    tuned: bool = True
    top: int | None = None
    random_strings: bool = False
    x: float | None = None


@dataclass(frozen=True, slots=True)
class MirrorStudy:
    """A comparison of setups.

    Attributes:
        name: name on the command line.
        source: the paper's table or figure.
        title: what is compared, in a line.
        level: the recipe that the paper used, which is the default.
        compared: maps the recipe and the number of strings to the setups, before which comes the
            base model, unless some are of base models themselves.
        axis: label of the axis of a study of rates or sizes; "" where setups only have names.
        log: whether that axis is logarithmic.
    """

    name: str
    source: str
    title: str
    level: Level
    compared: Callable[[Recipe, int], list[Setup]]
    axis: str = ""
    log: bool = False

    def setups(self, recipe: Recipe, count: int) -> list[Setup]:
        """Return the setups for a recipe and a number of strings, after the base model."""
        found = self.compared(recipe, count)
        return found if not found[0].tuned else [Setup("untuned", tuned=False), *found]

    def plan(self, recipe: Recipe, data: TrainingData, pairs: Path, config: StudyConfig) -> Study:
        """Return the study of a recipe, on strings without positives of their own.

        `pairs` is a TSV file of scored pairs, on which every setup is measured. It is read here, so
        that a file that cannot be used ends the command before any training.
        """
        setups = self.setups(recipe, len(data))
        scored = read_scored_pairs(pairs)
        return Study(
            name=self.name,
            title=self.title,
            source=f"Mirror-BERT (Liu et al., EMNLP 2021), {self.source}",
            rows=[_row(setup, recipe, data, config) for setup in setups],
            sets=[scored_set("pairs", pairs.stem, pairs, (data.language,), lambda _: scored)],
            reference=next(setup.label for setup in setups if setup.tuned),
            axis=self.axis,
            log=self.log,
            about={
                "strings": f"{data.source}, {len(data)}",
                "pairs": pairs.name,
                "recipe": dataclasses.asdict(recipe),
                **_too_short(setups, recipe, data.first),
            },
        )


def _too_short(setups: list[Setup], recipe: Recipe, strings: list[str]) -> dict[str, str]:
    """Say how many strings are not longer than the longest span of characters, which half gets."""
    changed = [recipe.replace(**setup.changes) for setup in setups if setup.tuned]
    longest = max(one.span_length for one in changed if one.span_mask == "mask-token")
    short = sum(len(text) <= longest for text in strings)
    shown = f"{100 * short / len(strings):.1f} %, of which half is masked instead"
    return {f"strings that a span of {longest} characters would hide": shown} if short else {}


def _row(setup: Setup, recipe: Recipe, data: TrainingData, config: StudyConfig) -> Row:
    pooling = setup.changes.get("pooling", config.pooling)
    if not setup.tuned:
        own = setup.changes.get("pooling", config.untuned_pooling)
        return Row(setup.label, pooling=own)
    changed = recipe.replace(**setup.changes)
    strings = data.first[: setup.top]
    data = dataclasses.replace(data, first=strings, second=strings)
    settings = {"recipe": changed, "pooling": pooling, "precision": config.precision}
    identity = {
        "recipe": dataclasses.asdict(changed),
        "strings": data.sha256(),
        "random_strings": setup.random_strings,
        "tuned with": pooling,
    }
    train = partial(_tune, data, settings, setup.random_strings)
    return Row(setup.label, train, identity, work=len(data) * changed.epochs, x=setup.x)


def _tune(data: TrainingData, settings: dict[str, Any], random: bool, run: RunConfig) -> TuneReport:
    from mirror_train.training.tune import tune

    if random:
        strings = random_strings(data.first, seed=run.seed)
        data = dataclasses.replace(data, first=strings, second=strings)
    options = run.run_options() | {"show_progress_bar": False}
    return tune(data, TuneConfig(resume=True, **settings, **options))


def random_strings(like: list[str], *, seed: int) -> list[str]:
    """Return different random strings of letters and digits, as long as those of `like`.

    They follow the "zero-semantics" strings of EMNLP 2021, section 4.4. Letters are lower case,
    because an uncased model could not tell some strings apart otherwise. A string that was drawn
    before is replaced by a longer one.
    """
    alphabet = list(string.ascii_lowercase + string.digits)
    rng = np.random.default_rng([seed, 2])
    drawn: dict[str, None] = {}
    for text in like:
        length = len(text)
        while (candidate := "".join(rng.choice(alphabet, length))) in drawn:
            length += 1
        drawn[candidate] = None
    return list(drawn)


_DROPOUT_RATES = (0.05, 0.1, 0.2, 0.3, 0.4)
_DROPHEAD_RATES = (0.05, 0.2)  # the authors' defaults for RoBERTa and for BERT
_POOLINGS: dict[Pooling, str] = {
    "cls": "[CLS]",
    "mean": "mean",
    "mean-without-special": "mean without special tokens",
}
# Numbers of characters to mask: the paper's for sentences; most of those are too long for words.
_SPANS = {"word": (0, 1, 2, 3, 5), "phrase": (0, 1, 2, 5, 10), "sentence": (2, 5, 10, 15, 20)}


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


def _dropout_rate(recipe: Recipe, count: int) -> list[Setup]:
    return _along("dropout", recipe.dropout, _DROPOUT_RATES, "dropout {:g}")


def _masking_rate(recipe: Recipe, count: int) -> list[Setup]:
    return _along("span_length", recipe.span_length, _SPANS[recipe.level], "{} characters")


def _along(name: str, own: float, values: tuple[float, ...], label: str) -> list[Setup]:
    """Return setups along the axis of a field of the recipe, the recipe's own value first."""
    places = (own, *sorted({*values} - {own}))
    return [Setup(label.format(value), {name: value}, x=value) for value in places]


def _data_size(recipe: Recipe, count: int) -> list[Setup]:
    """Return setups of 1, 2, 5, 10, ... strings, from a hundredth of all strings up to all."""
    steps = [step * 10**k for k in range(9) for step in (1, 2, 5)]
    sizes = [n for n in steps if max(recipe.batch_size, count / 100) <= n <= count] or [count]
    first = 10_000 if 10_000 in sizes else sizes[-1]  # the size in the paper's other experiments
    sizes.remove(first)
    return [Setup(f"{n:,} strings", top=n, x=n) for n in (first, *sizes)]


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


STUDIES = {
    study.name: study
    for study in (
        MirrorStudy("ablation", "Tables 7 and 20", "dropout and span masking, each turned off",
                    "sentence", _ablation),
        MirrorStudy("drophead", "Tables 3 and 7", "drophead in the place of dropout", "sentence",
                    _drophead),
        MirrorStudy("controlled-dropout", "Table 8",
                    "the same dropout for a string and its copy", "sentence", _controlled_dropout),
        MirrorStudy("dropout-rate", "Table 12", "rates of dropout", "sentence", _dropout_rate,
                    axis="dropout rate"),
        MirrorStudy("masking-rate", "Table 13", "lengths of the masked span", "sentence",
                    _masking_rate, axis="masked characters"),
        MirrorStudy("data-size", "Figure 5", "1,000 to 100,000 strings", "word", _data_size,
                    axis="strings", log=True),
        MirrorStudy("random-strings", "Table 10", "random letters and digits instead of words",
                    "word", _random_strings),
        MirrorStudy("pooling", "Appendix B", "[CLS] against the mean of the tokens", "word",
                    _pooling),
        MirrorStudy("masking", "the authors' code", "which strings are masked, and with what",
                    "sentence", _masking),
        MirrorStudy("word-plus", "not in the paper", "what the recipe word-plus changes", "word",
                    _word_plus),
    )
}  # fmt: skip
