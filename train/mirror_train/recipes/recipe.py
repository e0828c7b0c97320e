"""Recipes: the hyper-parameters of a tuning run, kept in the TOML files of the systems."""

from __future__ import annotations

import dataclasses
import difflib
import math
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, Literal, Self, get_args, get_origin, get_type_hints

from mirror_rt.bundle.manifest import Pooling
from mirror_rt.errors import ConfigError, Setting
from mirror_rt.io.limits import read_toml
from mirror_rt.masking import SpanMask
from mirror_rt.schema import Rule, check_rules, least

Level = Literal["word", "phrase", "sentence"]
Loss = Literal["ntxent", "decoupled", "one_way", "first_view", "multi_similarity"]
CosineLoss = Literal["squared", "cosent", "angle"]
ViewMask = Literal[SpanMask, "tokens", "random-tokens"]
Mlp = Literal["none", "training", "pooler"]
RecipePooling = Literal[Pooling, "auto"]


def _are_rising(numbers: Any) -> bool:
    whole = isinstance(numbers, tuple | list) and all(type(one) is int for one in numbers)
    return whole and [0, *numbers] == sorted({0, *numbers})


# Numbers with their ranges.
Positive = Annotated[float, Rule("greater than 0", lambda value: value > 0)]
NotNegative = Annotated[float, Rule("at least 0", lambda value: value >= 0)]
Rate = Annotated[float, Rule("at least 0 and less than 1", lambda value: 0 <= value < 1)]


# The seven concatenations of BURT's table 4, of the `FEATURES` in `mirror_rt.heads.task_heads`.
CONCATENATIONS = ("u,v", "|u-v|", "u*v", "u,v,|u-v|", "u,v,u*v", "|u-v|,u*v", "u,v,|u-v|,u*v")
Concatenation = Annotated[
    str, Rule("one of " + " ".join(map(repr, CONCATENATIONS)), lambda name: name in CONCATENATIONS)
]


@dataclass(frozen=True, slots=True)
class Hyperparameters:
    """The base of all recipes, which checks each field against its type and its rules.

    Attributes:
        epochs: passes over the rows to train on.
        steps: number of optimiser steps; where there are epochs, in their place.
        batch_size: number of rows of a batch.
        learning_rate: the highest rate of the optimiser.
        weight_decay: weight decay of AdamW.
        warm_up: the share of the steps over which the learning rate rises.
        decay: whether it falls to 0 over the others, or stays.
        dropout: rate of every dropout of the encoder.
        max_length: the most tokens of a text in training.
        pooling: `auto` takes that of the base model, else the mean.
    """

    default_seed = 42  # no field: the default of `TrainConfig.seed`

    def __post_init__(self) -> None:
        for name, expected in get_type_hints(type(self)).items():
            object.__setattr__(self, name, _checked(name, getattr(self, name), expected))
        check_rules(self)

    def replace(self, **changes: Any) -> Self:
        """Return a copy with some fields changed and checked."""
        return dataclasses.replace(self, **changes)


@dataclass(frozen=True, slots=True)
class Recipe(Hyperparameters):
    """Hyper-parameters of Mirror-BERT tuning (EMNLP 2021, section 3 and appendix J).

    Attributes:
        level: the kind of strings: word, phrase or sentence.
        temperature: tau of the InfoNCE losses; 1 where the loss is `multi_similarity`.
        span_length: characters masked in one copy of each string (k); 0 for none. With the
            span_mask `tokens`, the most tokens that are; with others of footnote 13, how many.
        span_mask: how: characters, a span of `tokens`, or footnote 13's `words`, `random-tokens`
            and `reorder`.
        dropout: rate of every dropout of the model, 0 .. 1.
        pooling: the pooling for base models that declare none; `auto` for that of the papers.
        loss: InfoNCE variant, `first_view`, or `multi_similarity` on hard triplets.
        max_length: the most tokens of a training string, special tokens included.
        epochs: number of passes over the strings; with `movement` the most of them.
        batch_size: number of strings in a batch; InfoNCE sees twice as many rows.
        learning_rate: rate of AdamW.
        steps: number of optimiser steps, in the place of epochs and movement.
        drophead: rate at which whole attention heads are dropped, 0 .. 1; beside `dropout`, which
            is set to 0 to replace it.
        same_dropout: a string and its copy get the same dropout ("controlled dropout", a probe:
            the views then differ by masking alone).
        mlp: a layer with tanh behind the pooling, trained with the model: a new one, in `training`
            alone (SimCSE, section 6.3), or the base model's `pooler`, which stays (appendix B).
        whitening: power of a whitening layer that is fitted to the base model's vectors of the
            strings, 0 .. 1; 0 for none.
        frozen_layers: number of the model's first layers that are not trained, nor then are its
            embeddings; 0 to train all.
        span_probability: with the span_mask `tokens`, of the geometric distribution that the
            length of a span is drawn from, 0 .. 1; characters do not use it.
        ms_alpha: alpha of `multi_similarity`, the weight of positives; other losses do without this
            and the next three.
        ms_beta: beta of `multi_similarity`, the weight of negatives.
        ms_base: the cosine that `multi_similarity` compares both with.
        triplet_margin: margin of a hard triplet's distances, for `multi_similarity`.
        movement: the most that the learning rates of all steps may add up to, which ends the run
            before its epochs (see 'Tune on your strings' in the documentation); by default any sum
            is allowed.
        kept_neighbours: ends the run when frequent words have kept less than this share of the ten
            nearest that the base model gave them, 0 .. 1; by default this is not measured.
        teacher_weight: with a teacher, the share of the loss that follows its cosines, above 0; the
            rest contrasts the strings. At 1, strings need no second view.
        matryoshka: numbers of first dimensions of a vector that are trained to stand alone, such as
            64,128,256: the loss is the sum of that of the whole vectors and those of each of
            these parts (Kusupati et al. 2022); by default the whole alone.
        crop: each view of a string is a random run of its words, of this share of them, above 0 and
            below 1 (see `crop_words`); by default all of them.
        guide_margin: makes the teacher a guide, which is not followed: two strings are no negatives
            of each other if their cosine by it is at least that of a string and its positive, less
            this margin (see `guided`).
        mined_negatives: number of strings of other groups that share the batch of each string: the
            nearest, by the encoder before tuning or by the guide (see `nearest_negatives`).
    """

    level: Level
    temperature: Annotated[float, Rule("greater than 0", lambda tau: tau > 1e-30)]
    span_length: Annotated[int, least(0)]
    span_mask: ViewMask
    dropout: Rate
    pooling: RecipePooling
    loss: Loss
    max_length: Annotated[int, least(3)]
    epochs: Annotated[int, least(1)]
    batch_size: Annotated[int, least(2, ": InfoNCE needs negatives")]
    learning_rate: Positive
    weight_decay: NotNegative
    steps: Annotated[int | None, least(1)] = None
    warm_up: Rate = 0.0
    decay: bool = False
    drophead: Rate = 0.0
    same_dropout: bool = False
    mlp: Mlp = "none"
    whitening: Annotated[float, Rule("in 0 .. 1", lambda power: 0 <= power <= 1)] = 0.0
    frozen_layers: Annotated[int, least(0)] = 0
    span_probability: Annotated[
        float, Rule("greater than 0 and less than 1", lambda value: 0 < value < 1)
    ] = 0.3
    ms_alpha: Positive = 1.0
    ms_beta: Positive = 60.0
    ms_base: Annotated[float, Rule("a cosine, -1 to 1", lambda cosine: -1 <= cosine <= 1)] = 0.5
    triplet_margin: float = 0.2
    movement: Annotated[float | None, Rule("greater than 0", lambda value: value > 0)] = None
    kept_neighbours: Annotated[float | None, Rule("in 0 .. 1", lambda kept: 0 <= kept <= 1)] = None
    teacher_weight: Annotated[
        float, Rule("above 0 and at most 1", lambda weight: 0 < weight <= 1)
    ] = 1.0
    matryoshka: Annotated[
        tuple[int, ...] | None, Rule("rising numbers of dimensions, of 1 and more", _are_rising)
    ] = None
    crop: Annotated[
        float | None, Rule("greater than 0 and less than 1", lambda share: 0 < share < 1)
    ] = None
    guide_margin: Annotated[float | None, least(0)] = None
    mined_negatives: Annotated[int, least(0)] = 0

    def __post_init__(self) -> None:
        Hyperparameters.__post_init__(self)
        if self.matryoshka is not None:  # a list in TOML and JSON
            object.__setattr__(self, "matryoshka", tuple(self.matryoshka) or None)
        # Values that the loss ignores are refused, so that none seems to have an effect.
        if self.loss == "multi_similarity":
            if self.temperature != 1:
                raise ConfigError(
                    field="temperature",
                    expected="1 with the loss multi_similarity, which has scales of its own",
                    value=self.temperature,
                )
            return
        for field in dataclasses.fields(self):
            own = field.name.startswith(("ms_", "triplet_"))
            if own and getattr(self, field.name) != field.default:
                raise ConfigError(
                    Setting(field.name),
                    f" goes with the loss multi_similarity, not with {self.loss}",
                )

    def replace(self, **changes: Any) -> Recipe:
        """Return a copy with some fields changed and checked; epochs or movement replace the steps.

        Otherwise they would be ignored where the recipe counts steps; and a number of epochs would
        be where something else ends the recipe's runs before.
        """
        if {"epochs", "movement"} & changes.keys():
            changes.setdefault("steps", None)
        if {"epochs", "steps"} & changes.keys():
            changes = {"movement": None, "kept_neighbours": None} | changes
        return dataclasses.replace(self, **changes)

    @property
    def fixed_pooling(self) -> Pooling:
        """The pooling, once a run has chosen it."""
        if self.pooling == "auto":
            raise ConfigError("the pooling auto depends on the base model, which is not loaded yet")
        return self.pooling


def recipe_names() -> list[str]:
    """Return the names of the recipes that come with the package."""
    files = resources.files("mirror_train") / "systems"
    return sorted(Path(file.name).stem for file in files.iterdir() if file.name.endswith(".toml"))


def load_recipe(name_or_path: str | Path) -> Recipe:
    """Load a shipped recipe by name, or a TOML file by path, which may say `extends = "word"`.

    Raises:
        ConfigError: there is no such recipe, or a field is unknown, missing or out of range; the
            message suggests a similar name.
    """
    name = str(name_or_path)
    if name.endswith(".toml"):
        try:
            table = read_toml(Path(name))
        except ConfigError as error:
            raise ConfigError(f"recipe {name}: {error}") from error
    elif name in recipe_names():
        text = (resources.files("mirror_train") / "systems" / f"{name}.toml").read_text("utf-8")
        table = tomllib.loads(text)
    else:
        near = suggest(name, recipe_names())
        raise ConfigError(f"no recipe {name!r}{near}; there are {', '.join(recipe_names())}")
    try:
        return _from_table(table)
    except ConfigError as error:
        raise ConfigError(f"recipe {name}: {error}") from error


def _from_table(table: dict[str, Any]) -> Recipe:
    fields = {field.name: field.default for field in dataclasses.fields(Recipe)}
    if "extends" in table:
        if (base := table.pop("extends")) not in recipe_names():
            shipped = f"one of {', '.join(recipe_names())}"
            raise ConfigError(field="extends", expected=shipped, value=base)
        table = dataclasses.asdict(load_recipe(base)) | table
    for key in table:
        if key not in fields:
            raise ConfigError(f"unknown field {key!r}{suggest(key, fields)}")
    required = [name for name, default in fields.items() if default is dataclasses.MISSING]
    if missing := [name for name in required if name not in table]:
        others = 'extends = "word" takes missing fields from the recipe word'
        raise ConfigError(f"missing {', '.join(missing)}; {others}")
    return Recipe(**table)


def _checked(name: str, value: Any, expected: Any) -> Any:
    """Return a choice, a number or a flag as its declared type; other types are left to the rules.

    An int passes as a float, a bool as neither.
    """
    if get_origin(expected) is Literal:
        if value not in get_args(expected):
            choices = ", ".join(get_args(expected))
            raise ConfigError(field=name, expected=f"one of {choices}", value=value)
        return value
    if expected not in (float, int, bool):
        return value
    if expected is float and isinstance(value, int | float) and not isinstance(value, bool):
        if not math.isfinite(value):
            raise ConfigError(field=name, expected="a finite number", value=value)
        return float(value)
    if isinstance(value, expected) and isinstance(value, bool) == (expected is bool):
        return value
    raise ConfigError(field=name, expected=expected.__name__, value=value)


def suggest(name: str, known: Iterable[str]) -> str:
    """Return the end of an error message that suggests the most similar known name, if any."""
    near = difflib.get_close_matches(name, list(known), n=1)
    return f" (did you mean {near[0]!r}?)" if near else ""
