"""The study of the systems of the papers, side by side: their entries from one base model."""

from __future__ import annotations

import dataclasses
import functools
import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from mirror_rt.bundle.manifest import Pooling
from mirror_rt.errors import ConfigError, DataError
from mirror_rt.evaluation.suites import EvaluationSet
from mirror_rt.io.atomic import path_sha256
from mirror_rt.schema import Rule, least
from mirror_train.data.inputs import Inputs
from mirror_train.experiments.study import Row, Study, StudyConfig, sets_of
from mirror_train.experiments.trained_sets import supervised_set
from mirror_train.recipes.recipe import Hyperparameters, Recipe, suggest
from mirror_train.systems import SYSTEMS, MultitaskRecipe, System, train
from mirror_train.systems.system import BASE, Entry
from mirror_train.training.run_config import RunConfig, TrainConfig

if TYPE_CHECKING:
    from mirror_train.training.run import TuneReport

SUITES = ("sentences", "words", "linking", "geometry")
# Not in the annotation: `get_type_hints` evaluates that without the names of this module.
_RATE = Rule("above 0", lambda rate: 0 < rate < math.inf)


@dataclass(frozen=True, slots=True, kw_only=True)
class SystemsConfig(StudyConfig):
    """The settings of a comparison of systems; see `StudyConfig`.

    Attributes:
        data: the folder with the data to tune on and to evaluate on.
        systems: their names; by default all that `data` has the inputs of.
        language: the language of the inputs and the sets.
        top: the number of first strings, pairs or rows to tune on; by default all.
        evaluate: suites, or SUITE/SET, to evaluate on.
        max_steps: most optimiser steps of flow, cf, burt and multitask; by default those of their
            papers, which take hours without a GPU.
        learning_rate: of everything that moves the encoder; by default each paper's, made for
            models of BERT-base's size (a small one takes a higher rate).
        select: scored pairs that choose the weights of every system (see `TrainConfig`), as those
            of STS-13 do in BERT-CF, section 5.3.
        evaluate_every: steps between evaluations for that choice.
        supervised: whether each row is fine-tuned, too, on sentiment, paraphrases and similarity at
            once, for columns of these (BERT-CF, Table 1).
        export: whether exported bundles are evaluated, by the opener that `run_study` is given.
    """

    data: Path
    systems: list[str] | None = None
    language: str = "en"
    top: Annotated[int | None, least(2)] = None
    evaluate: tuple[str, ...] = SUITES
    max_steps: Annotated[int | None, least(1)] = None
    learning_rate: Annotated[float | None, _RATE] = None
    select: Path | None = None
    evaluate_every: Annotated[int, least(1)] = 500
    supervised: bool = False
    export: bool = True
    seeds: Annotated[int, least(1)] = 1


ENTRIES: dict[str, tuple[System, Entry]] = {
    entry.name: (system, entry) for system in SYSTEMS.values() for entry in system.entries
}
_SUPERVISED = {"sentiment": "accuracy", "paraphrase": "accuracy", "similarity": "pearson"}


def fitted(recipe: Any, config: SystemsConfig, max_length: int) -> Any:
    """Return the recipe with `max_steps` steps at most, and texts cut to the model's limit.

    A learning rate is that of everything that moves the encoder, so not that of a flow, which
    learns vectors, however large the encoder is.
    """
    values = {one.name: getattr(recipe, one.name) for one in dataclasses.fields(recipe)}
    changes = {
        name: fitted(value, config, max_length)
        for name, value in values.items()
        if isinstance(value, Hyperparameters)
    }
    if "max_length" in values:
        changes["max_length"] = min(recipe.max_length, max_length)
        if config.learning_rate is not None:
            changes["learning_rate"] = config.learning_rate
    epochs = isinstance(recipe, Recipe) and recipe.steps is None
    if "steps" in values and not epochs and config.max_steps is not None:
        changes["steps"] = min(recipe.steps or config.max_steps, config.max_steps)
    return dataclasses.replace(recipe, **changes)


def find_entries(names: list[str] | None) -> list[Entry]:
    """Return the entries of the given names, in the order of the table; all for None."""
    for name in names or ():
        if name not in ENTRIES:
            raise ConfigError(
                f"no system {name!r}{suggest(name, ENTRIES)}; there are {', '.join(ENTRIES)}"
            )
    return [entry for name, (_, entry) in ENTRIES.items() if names is None or name in names]


def plan_systems(config: SystemsConfig) -> Study:
    """Return the study of the systems that the data are enough for, after the base model.

    An unknown system, a folder without sets of the language, and one without the inputs of any
    system raise an error; a system without its inputs, and a set without a language, are left out.
    """
    from mirror_train.model.pretrained import load_pretrained

    sets, untagged = sets_of(config.data, config.evaluate, config.language)
    entries, lacking = _available(config)
    max_length = load_pretrained(config.model, **config.load_options()).max_length
    setting: dict[str, Any] = {"export": config.export}
    if config.supervised:
        recipe = fitted(ENTRIES["multitask"][1].recipe(), config, max_length)
        sets.append(_supervised(recipe, config))
        setting["supervised"] = dataclasses.asdict(recipe)
    return Study(
        name="systems",
        title="every system from one base model, on the same sets",
        rows=[
            Row(BASE, pooling=config.untuned_pooling),
            *(_row(entry, config, max_length) for entry in entries),
        ],
        sets=sets,
        isolated=True,
        setting=setting,
        about=_about(config),
        left_out=lacking | untagged,
    )


def _about(config: SystemsConfig) -> dict[str, Any]:
    names = ("language", "top", "max_steps", "learning_rate", "pooling", "seed", "samples")
    about = {name: getattr(config, name) for name in names}
    if config.select is not None:
        about["weights chosen by"] = f"{config.select.name}, every {config.evaluate_every} steps"
    return about


def _available(config: SystemsConfig) -> tuple[list[Entry], dict[str, str]]:
    """Return the entries that can be tuned, and for each of the others the reason why not."""
    inputs, chosen, left_out = _inputs(config), [], {}
    for entry in find_entries(config.systems):
        lacking = [inputs.why_missing(name) for name in entry.inputs if not inputs.find(name)]
        if lacking:
            left_out[entry.name] = lacking[0]
        else:
            chosen.append(entry)
    if not chosen:
        reasons = "; ".join(f"{name}: {reason}" for name, reason in left_out.items())
        raise DataError(f"no system can be tuned: {reasons}")
    return chosen, left_out


def _inputs(config: SystemsConfig) -> Inputs:
    names = ("select", "evaluate_every")
    choice = {} if config.select is None else {name: getattr(config, name) for name in names}
    return Inputs(config.data, config.language, config.top, choice)


def _supervised(recipe: MultitaskRecipe, config: SystemsConfig) -> EvaluationSet:
    # The tasks' own metrics choose the weights.
    entry, inputs = ENTRIES["multitask"][1], dataclasses.replace(_inputs(config), choice={})
    files = [path for name in entry.inputs for path in inputs.files(name)]
    files += [path for name in entry.optional for path in inputs.find(name)]

    def train(run: RunConfig, pooling: Pooling | Literal["auto"]) -> TuneReport:
        # Layers behind the pooling of a tuned row, such as a flow, stay and are trained with it.
        own = dataclasses.replace(config, pooling=pooling)
        return _train(entry.name, inputs, recipe, own, run)

    return supervised_set("multitask", train, _SUPERVISED, config, files)


def _train(
    name: str, inputs: Inputs, recipe: Any, config: SystemsConfig, run: RunConfig
) -> TuneReport:
    """Train the system of an entry on the inputs of a folder, with the settings of a run."""
    system, entry = ENTRIES[name]
    data = entry.read(inputs, run.seed)
    names = [one for one in ("pooling", "precision") if one in system.settings]
    options = {one: getattr(config, one) for one in names} | run.run_options() | inputs.choice
    recipe = system.fitted(recipe, data, config.pooling)
    return train(system.name, data, TrainConfig(recipe=recipe, **options))


def _row(entry: Entry, config: SystemsConfig, max_length: int) -> Row:
    inputs, recipe = _inputs(config), fitted(entry.recipe(), config, max_length)
    files = {
        path.relative_to(config.data).as_posix(): path_sha256(path)
        for name in (*entry.inputs, *entry.optional)
        for path in inputs.find(name)
    }
    identity: dict[str, Any] = {
        "system": entry.name,
        "recipe": dataclasses.asdict(recipe),
        "files": files,
        "top": config.top,
        "tuned with": config.pooling,
    }
    if config.select is not None:
        identity["chosen by"] = [path_sha256(config.select), config.evaluate_every]
    tune = functools.partial(_train, entry.name, inputs, recipe, config)
    return Row(entry.name, tune, identity, claims=entry.claims)
