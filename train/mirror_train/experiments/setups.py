"""Define a study of Mirror-BERT as a list of setups, and make its rows.

Setups are labelled changes of a recipe. The first one that is tuned is the reference that the
others are compared with.
"""

from __future__ import annotations

import dataclasses
import string
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from mirror_rt.bundle.manifest import Pooling
from mirror_rt.errors import DataError
from mirror_rt.evaluation import read_scored_pairs
from mirror_rt.evaluation.suites import EvaluationSet
from mirror_train.data.batches import batch_sizes
from mirror_train.data.training_data import TrainingData
from mirror_train.experiments.study import PaperNumbers, Row, Study, StudyConfig
from mirror_train.recipes.recipe import Level, Recipe
from mirror_train.training.run_config import RunConfig, TrainConfig

if TYPE_CHECKING:
    from mirror_train.training.run import TuneReport


@dataclass(frozen=True, slots=True)
class Setup:
    """One row of the table of a study."""

    label: str  # its name in the table and the plot
    # Recipe fields that differ from the study's recipe.
    changes: dict[str, Any] = field(default_factory=dict)
    tuned: bool = True  # False for the base model without tuning
    # Number of strings to tune on: the first words, which are the most frequent ones, but a random
    # sample of phrases or sentences, the same for all seeds; None for all.
    top: int | None = None
    start: int = 0  # number of the first words to leave out
    # Whether to tune on random letters and digits of the strings' lengths.
    random_strings: bool = False
    x: float | None = None  # position on the axis of a study of rates or sizes


@dataclass(frozen=True, slots=True)
class MirrorStudy:
    """A comparison of setups."""

    name: str  # name on the command line
    source: str  # the paper's table or figure
    title: str  # the comparison, in a line
    level: Level  # the recipe that the paper used, which is the default
    # Maps the recipe and the number of strings to the setups, before which comes the base model,
    # unless some are of base models themselves.
    compared: Callable[[Recipe, int], list[Setup]]
    # Label of the axis of a study of rates or sizes; "" where setups only have names.
    axis: str = ""
    log: bool = False  # whether that axis is logarithmic
    # The sets to evaluate on, as `find_sets` takes it, with the recipe's level and the language for
    # {}; () for scored pairs of that level.
    evaluate: tuple[str, ...] = ()
    geometry: tuple[str, ...] = ()  # see `Study`
    # The paper's numbers for the base models that it has, by set and label of a row.
    paper: Mapping[str, PaperNumbers] = field(default_factory=dict)
    deviation: float = 0.0  # the standard deviation of its numbers over seeds
    # Base models that the paper tunes with the mean (appendix B), which counts the padding.
    padded: tuple[str, ...] = ()

    def setups(self, recipe: Recipe, count: int) -> list[Setup]:
        """Return the setups for a recipe and a number of strings, after the base model."""
        found = self.compared(recipe, count)
        return found if not found[0].tuned else [Setup("untuned", tuned=False), *found]

    def plan(
        self,
        recipe: Recipe,
        data: TrainingData,
        sets: list[EvaluationSet],
        config: StudyConfig,
        **about: str,
    ) -> Study:
        """Return the study of a recipe, on strings without positives of their own.

        Every setup is measured on `sets`; the report has `about`, notes on them, too.
        """
        setups, name = self.setups(recipe, len(data)), Path(config.model).name
        if name in self.padded and config.pooling in ("auto", "paper"):
            own = {"pooling": "mean-with-padding"}
            setups = [dataclasses.replace(one, changes=own | one.changes) for one in setups]
        without_paper = {}
        if self.paper and name not in self.paper:
            of = f"of {' and '.join(self.paper)} alone, which this is not"
            without_paper = {"the paper's numbers": of}
        same = ("name", "title", "axis", "log", "geometry", "deviation")
        return Study(
            **{one: getattr(self, one) for one in same},
            source=f"Mirror-BERT (Liu et al., EMNLP 2021), {self.source}",
            rows=[_row(setup, recipe, data, config) for setup in setups],
            sets=sets,
            reference=next(setup.label for setup in setups if setup.tuned),
            paper=self.paper.get(name, {}),
            about={
                "strings": f"{data.source}, {len(data)}",
                "evaluated on": ", ".join(one.path.name for one in sets),
                **about,
                **without_paper,
                "recipe": dataclasses.asdict(recipe),
                **_too_short(setups, recipe, data.first),
                **_of_each_bucket(setups, sets, data.first),
            },
        )


def _too_short(setups: list[Setup], recipe: Recipe, strings: list[str]) -> dict[str, str]:
    """Say how many strings are not longer than the longest span of characters, which half gets."""
    changed = [recipe.replace(**setup.changes) for setup in setups if setup.tuned]
    longest = max(one.span_length for one in changed if one.span_mask == "mask-token")
    short = sum(len(text) <= longest for text in strings)
    shown = f"{100 * short / len(strings):.1f} %, of which half is masked instead"
    return {f"strings that a span of {longest} characters would hide": shown} if short else {}


def _of_each_bucket(
    setups: list[Setup], sets: list[EvaluationSet], words: list[str]
) -> dict[str, str]:
    """Say how many words of scored pairs each bucket of strings has (Figure 8, in blue)."""
    buckets = [words[one.start :][: one.top] for one in setups if one.start]
    if not buckets:
        return {}
    buckets.insert(0, words[: next(one.start for one in setups if one.start)])
    found = {}
    for one in sets:
        if one.suite in ("pairs", "words"):
            pairs = read_scored_pairs(one.path)
            of = {*pairs.first, *pairs.second}
            counts = ", ".join(str(len(of.intersection(bucket))) for bucket in buckets)
            found[f"words of {one.name} in each bucket"] = f"{counts} of {len(of)}"
    return found


def _row(setup: Setup, recipe: Recipe, data: TrainingData, config: StudyConfig) -> Row:
    pooling = setup.changes.get("pooling", config.pooling)
    if not setup.tuned:
        own = setup.changes.get("pooling", config.untuned_pooling)
        return Row(setup.label, pooling=own)
    changed = recipe.replace(**setup.changes)
    strings = _some(data.first[setup.start :], setup.top, recipe)
    if setup.random_strings:  # drawn once for all seeds, as a file of them would be
        strings = random_strings(strings, seed=0)
    data = dataclasses.replace(data, first=strings, second=strings)
    if not batch_sizes(len(data), changed.batch_size):
        raise DataError(
            f"{data.source} has {len(data)} different strings for {setup.label!r}, which needs at "
            "least 2: give more strings (--top)"
        )
    settings = {"recipe": changed, "pooling": pooling, "precision": config.precision}
    identity = {
        "recipe": dataclasses.asdict(changed),
        "strings": data.sha256(),
        "tuned with": pooling,
    }
    train = partial(_tune, data, settings)
    # A model that was tuned with padding is measured with more of it, as the authors do.
    measured: Pooling | Literal["auto"] = pooling if pooling == "mean-with-padding" else "auto"
    work = len(data) * changed.epochs
    return Row(setup.label, train, identity, work=work, x=setup.x, pooling=measured)


def _some(strings: list[str], top: int | None, recipe: Recipe) -> list[str]:
    """Return `top` strings: the first words, or a random sample of phrases or sentences."""
    if top is None or recipe.level == "word":
        return strings[:top]
    chosen = np.random.default_rng(0).permutation(len(strings))[:top]
    return [strings[i] for i in np.sort(chosen)]


def _tune(data: TrainingData, settings: dict[str, Any], run: RunConfig) -> TuneReport:
    from mirror_train.training.tune import tune

    options = run.run_options() | {"show_progress_bar": False}
    return tune(data, TrainConfig(resume=True, **settings, **options))


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
