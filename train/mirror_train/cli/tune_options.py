"""Define the options of `mirror-rt tune`: those of every way of tuning, and of each alone."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from mirror_rt.adapters.ray_cluster import ClusterOptions
from mirror_rt.cli.parsing.options import Given, Group, Help
from mirror_train.cli.recipes import RecipesFile
from mirror_train.data.thesaurus import FREQUENT
from mirror_train.recipes.recipe import Recipe, recipe_names
from mirror_train.systems.options import MODEL, StringOptions, Training, run_options
from mirror_train.training.run_config import TrainConfig

INSTALLED = ""  # --thesaurus without a value


@dataclass(frozen=True, kw_only=True)
class SynonymOptions:
    """Synonyms in place of strings."""

    thesaurus: Annotated[
        str | None,
        Help("the thesaurus that is installed for a language, or a MyThes file (.dat), the folder "
             "of WordNet's files, a TSV of synonyms; without a value, the one "
             f"installed for each language of --lang; --top frequent words (default {FREQUENT}, "
             "the most frequent ones first)", "LANG|FILE",
             empty=INSTALLED),
    ] = None  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class LanguageOptions(ClusterOptions):
    """The options of tuning several languages: each by itself, or all as one encoder."""

    recipes: RecipesFile = None
    json: Annotated[bool, Help("the table at the end as JSON")] = False
    joint: Annotated[bool, Help("one encoder for all of these languages, into OUT")] = False
    dictionary: Annotated[
        tuple[Path, ...], Help("with --joint: word TAB translation on each line, further pairs")
    ] = ()
    installed: Annotated[
        bool,
        Help("with --joint: FreeDict's dictionaries that the system has as further pairs, and its "
             "thesauri to measure with"),
    ] = False  # fmt: skip
    pairs: Annotated[
        int | None,
        Help(
            "with --joint: pairs of an epoch (default: as many as there are; with --teacher, twice "
            "those that it can read)"
        ),
    ] = None
    share_temperature: Annotated[
        float,
        Help("with --joint: a language or dictionary of n pairs has a share of n^(1/T) of each "
             "epoch; 1 keeps the sizes", "T"),
    ] = 2.0  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class TuneOptions(Training):
    """All options of `mirror-rt tune`."""

    recipe: Annotated[
        str | None,
        Help(f"{', '.join(recipe_names())}, which the pages 'Tune on your strings' and 'Other "
             "systems' of the documentation describe; or a TOML file (default: word for words and "
             "phrases, sentence for sentences)", "NAME|FILE.toml"),
    ] = None  # fmt: skip
    model: Annotated[
        str | None,
        Help(f"base model: {MODEL}; with --words or --lang: that of each language, see 'mirror-rt "
             "recipes')", "MODEL", word=True),
    ] = None  # fmt: skip
    strings: Annotated[StringOptions, Group("strings")]
    synonyms: Annotated[
        SynonymOptions,
        Group(
            "synonyms",
            "Instead of strings: words that list each other in a thesaurus, so that words of one\n"
            "meaning come together. Few pairs of a word are taken, and only of frequent words.",
        ),
    ]
    languages: Annotated[
        LanguageOptions,
        Group(
            "many languages",
            "With --lang alone, each language is tuned on its most frequent words, or on TAG.txt "
            "in\nthe folder --words. A folder as --data has multisimlex/TAG.tsv, "
            "sts/stsb-TAG-test.tsv or\nTAG.tsv to score before and after. --resume keeps finished "
            "languages.",
        ),
    ]
    config: Annotated[
        Given[TrainConfig], run_options("pooling", "precision", "loss_batch", "teacher")
    ]
    # --pooling is an option of the run.
    changes: Annotated[
        Given[Recipe], Group("overrides of the recipe", leave_out=("pooling",), overrides=True)
    ]
