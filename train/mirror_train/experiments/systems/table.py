"""The systems of the papers as data: their inputs, their tuning and the claims about them."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from mirror_rt.bundle.manifest import Pooling
from mirror_rt.errors import ConfigError, DataError
from mirror_rt.evaluation.suites import EvaluationSet
from mirror_rt.io.atomic import path_sha256
from mirror_rt.schema import Rule
from mirror_train.data.training_data import TrainingData
from mirror_train.experiments.study import Claim, Row, Study, StudyConfig, sets_of
from mirror_train.experiments.supervised import supervised_set
from mirror_train.experiments.systems import tuning
from mirror_train.experiments.systems.inputs import Inputs
from mirror_train.recipes.recipe import least, load_recipe, suggest
from mirror_train.recipes.systems import BurtRecipe, FlowRecipe, MultitaskRecipe
from mirror_train.training.run_config import RunConfig

if TYPE_CHECKING:
    from mirror_train.training.run import TuneReport

BASE = "untuned"
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
        max_steps: most optimiser steps of flow, cf, burt and multitask; by default as many as
            their papers, which take hours without a GPU.
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


@dataclass(frozen=True, slots=True)
class System:
    """A row of the table of systems.

    Attributes:
        name: name on the command line.
        title: description in a line.
        source: the paper.
        inputs: names in `mirror_train.experiments.systems.inputs.INPUTS`; all are required.
        recipe: returns its hyper-parameters.
        tune: tunes it with these.
        claims: the improvements that its paper claims.
        optional: inputs that are not required: further training data, or the evaluated pairs, which
            are left out of the training data.
    """

    name: str
    title: str
    source: str
    inputs: tuple[str, ...]
    recipe: Callable[[], Any]
    tune: tuning.Tune
    claims: tuple[Claim, ...] = ()
    optional: tuple[str, ...] = ()


def _mirror(
    name: str,
    title: str,
    source: str,
    needs: str,
    read: Callable[[Inputs], TrainingData],
    recipe: str,
    *claims: Claim,
    **changes: Any,
) -> System:
    tune = functools.partial(tuning.tune_mirror, read)
    return System(
        name, title, source, (needs,), lambda: load_recipe(recipe).replace(**changes), tune, claims
    )


def _multi_similarity() -> dict[str, Any]:
    """Return the fields of the loss of `mirror-ms`, to put into another recipe."""
    recipe = load_recipe("mirror-ms")
    names = ("loss", "temperature", "ms_alpha", "ms_beta", "ms_base", "triplet_margin")
    return {name: getattr(recipe, name) for name in names}


_STS, _WORDS = ("sentences",), ("words",)
_SUPERVISED = {"sentiment": "accuracy", "paraphrase": "accuracy", "similarity": "pearson"}
_COMPARED_WITH_CF = ("mirror-tokens", "flow", "cf-joint", "cf-unregularised")
_MIRROR = "Mirror-BERT (Liu et al. 2021)"
_SIMCSE = "SimCSE (Gao et al. 2021)"

SYSTEMS: dict[str, System] = {
    system.name: system
    for system in (
        _mirror("mirror", "dropout and span masking, on sentences", _MIRROR, "sentences",
                Inputs.sentences, "sentence", Claim(BASE, _STS)),
        _mirror("mirror-words", "dropout, on frequent words", _MIRROR, "words",
                Inputs.words, "word", Claim(BASE, _WORDS)),
        _mirror("mirror-ms", "mirror with multi-similarity on hard triplets",
                f"{_MIRROR}, footnote 2", "sentences", Inputs.sentences, "sentence",
                Claim("mirror", _STS, "on par"), **_multi_similarity()),
        _mirror("simcse", "dropout alone, one way, on sentences", _SIMCSE, "sentences",
                Inputs.sentences, "simcse", Claim(BASE, _STS)),
        _mirror("simcse-nli", "inference pairs, contradictions as hard negatives", _SIMCSE,
                "inference", Inputs.triplets, "simcse-nli", Claim("simcse", _STS)),
        _mirror("synonyms", "multi-similarity on names of one concept", "SapBERT (Liu et al. 2021)",
                "synonyms", Inputs.synonyms, "mirror-ms", Claim(BASE, ("linking",)),
                span_length=0, epochs=1, batch_size=256),
        _mirror("mirror-tokens", "the first step of cf: masked spans of tokens", "BERT-CF, 4.1",
                "sentences", Inputs.sentences, "cf", Claim(BASE, _STS)),
        _mirror("mirror-dropout", "the first step of cf-simcse: dropout alone", "BERT-CF, 6.1",
                "sentences", Inputs.sentences, "cf", Claim(BASE, _STS), span_length=0),
        System("flow", "a flow over frozen vectors, on sentences", "BERT-flow (Li et al. 2020)",
               ("sentences",), FlowRecipe, tuning.tune_flow, (Claim(BASE, _STS),)),
        System("cf", "Mirror-BERT with token spans, then a regularised flow", "BERT-CF",
               ("sentences",), tuning.cf_recipe, tuning.tune_cf,
               tuple(Claim(name, _STS) for name in _COMPARED_WITH_CF)),
        System("cf-simcse", "the same with SimCSE in the place of Mirror-BERT", "BERT-CF, 6.1",
               ("sentences",), functools.partial(tuning.cf_recipe, views="simcse"), tuning.tune_cf),
        System("cf-joint", "the same with the encoder unfrozen", "BERT-CF, 6.1", ("sentences",),
               functools.partial(tuning.cf_recipe, joint=True), tuning.tune_cf),
        System("cf-unregularised", "a flow after Mirror-BERT, by likelihood alone", "BERT-CF, 6.1",
               ("sentences",), functools.partial(tuning.cf_recipe, regulariser=False),
               tuning.tune_cf),
        System("burt", "inference and paraphrases, by classes", "BURT (Li and Zhao 2020)",
               ("inference",), BurtRecipe, tuning.tune_burt,
               (Claim(BASE, _STS + _WORDS),), ("ppdb", "paraphrases")),
        System("multitask", "sentiment, paraphrases and similarity at once", "BERT-CF, 4.3",
               ("sentiment", "paraphrases", "similarity"), MultitaskRecipe,
               tuning.tune_multitask, optional=("evaluated",)),
    )
}  # fmt: skip


def find_systems(names: list[str] | None) -> list[System]:
    """Return the systems of the given names, in the order of the table; all for None."""
    if names is None:
        return list(SYSTEMS.values())
    for name in names:
        if name not in SYSTEMS:
            raise ConfigError(
                f"no system {name!r}{suggest(name, SYSTEMS)}; there are {', '.join(SYSTEMS)}"
            )
    return [system for name, system in SYSTEMS.items() if name in names]


def plan_systems(config: SystemsConfig) -> Study:
    """Return the study of the systems that the data are enough for, after the base model.

    An unknown system, a folder without sets of the language, and one without the inputs of any
    system raise an error; a system without its inputs, and a set without a language, are left out.
    """
    from mirror_train.model.pretrained import load_pretrained

    sets, untagged = sets_of(config.data, config.evaluate, config.language)
    systems, lacking = _available(config)
    max_length = load_pretrained(config.model, **config.load_options()).max_length
    setting: dict[str, Any] = {"export": config.export}
    if config.supervised:
        recipe = _fitted(SYSTEMS["multitask"], config, max_length)
        sets.append(_supervised(recipe, config))
        setting["supervised"] = dataclasses.asdict(recipe)
    return Study(
        name="systems",
        title="every system from one base model, on the same sets",
        rows=[
            Row(BASE, pooling=config.untuned_pooling),
            *(_row(system, config, max_length) for system in systems),
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


def _available(config: SystemsConfig) -> tuple[list[System], dict[str, str]]:
    """Return the systems that can be tuned, and for each of the others the reason why not."""
    inputs, chosen, left_out = _inputs(config), [], {}
    for system in find_systems(config.systems):
        lacking = [inputs.why_missing(name) for name in system.inputs if not inputs.find(name)]
        if lacking:
            left_out[system.name] = lacking[0]
        else:
            chosen.append(system)
    if not chosen:
        reasons = "; ".join(f"{name}: {reason}" for name, reason in left_out.items())
        raise DataError(f"no system can be tuned: {reasons}")
    return chosen, left_out


def _inputs(config: SystemsConfig) -> Inputs:
    names = ("select", "evaluate_every")
    choice = {} if config.select is None else {name: getattr(config, name) for name in names}
    return Inputs(config.data, config.language, config.top, choice)


def _fitted(system: System, config: SystemsConfig, max_length: int) -> Any:
    return tuning.fitted(
        system.recipe(),
        max_steps=config.max_steps,
        learning_rate=config.learning_rate,
        max_length=max_length,
    )


def _supervised(recipe: MultitaskRecipe, config: SystemsConfig) -> EvaluationSet:
    # The tasks' own metrics choose the weights.
    system, inputs = SYSTEMS["multitask"], dataclasses.replace(_inputs(config), choice={})
    files = [path for name in system.inputs for path in inputs.files(name)]
    files += [path for name in system.optional for path in inputs.find(name)]

    def train(run: RunConfig, pooling: Pooling | Literal["auto"]) -> TuneReport:
        # What follows the pooling of a tuned row, such as a flow, stays, and is trained with it.
        return system.tune(inputs, recipe, pooling, config.precision, run)

    return supervised_set("multitask", train, _SUPERVISED, config, files)


def _row(system: System, config: SystemsConfig, max_length: int) -> Row:
    inputs, recipe = _inputs(config), _fitted(system, config, max_length)
    files = {
        path.relative_to(config.data).as_posix(): path_sha256(path)
        for name in (*system.inputs, *system.optional)
        for path in inputs.find(name)
    }
    identity: dict[str, Any] = {
        "system": system.name,
        "recipe": dataclasses.asdict(recipe),
        "files": files,
        "top": config.top,
        "tuned with": config.pooling,
    }
    if config.select is not None:
        identity["chosen by"] = [path_sha256(config.select), config.evaluate_every]
    tune = functools.partial(system.tune, inputs, recipe, config.pooling, config.precision)
    return Row(system.name, tune, identity, claims=system.claims)
