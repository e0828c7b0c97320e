"""Define the options of `mirror-rt tune`: those of every way of tuning, and of each alone."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from mirror_rt.adapters.ray_cluster import ClusterOptions
from mirror_rt.cli.parsing.options import Given, Group, Help
from mirror_rt.errors import ConfigError, Setting
from mirror_train.cli.recipes import RecipesFile
from mirror_train.cli.training_options import MODEL, RUN, StringOptions, Training
from mirror_train.data.thesaurus import FREQUENT
from mirror_train.recipes.cross_encoders import CrossEncoderRecipe, TransEncoderRecipe
from mirror_train.recipes.recipe import Recipe, recipe_names
from mirror_train.training.run_config import CrossEncoderConfig, TransEncoderConfig, TuneConfig

INSTALLED = ""  # --thesaurus without a value
_ENCODER = ("encoder_epochs", "encoder_steps", "encoder_batch_size", "encoder_learning_rate")


@dataclass(frozen=True, kw_only=True)
class SynonymOptions:
    """Synonyms in place of strings."""

    thesaurus: Annotated[
        str | None,
        Help("the thesaurus that is installed for a language, or a MyThes file (.dat), the folder "
             "of WordNet's files, a TSV of synonyms; without a value, what is installed for each "
             f"language of --lang; --top frequent words (default {FREQUENT}, the most "
             "frequent ones first)", "LANG|FILE",
             empty=INSTALLED),
    ] = None  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class LanguageOptions(ClusterOptions):
    """How several languages are tuned: each by itself, or all as one encoder."""

    recipes: RecipesFile = None
    json: Annotated[bool, Help("the table at the end as JSON")] = False
    joint: Annotated[bool, Help("one encoder for all of these languages, into OUT")] = False
    dictionary: Annotated[
        tuple[Path, ...],
        Help("with --joint: word TAB translation on each line, further pairs"),
    ] = ()
    installed: Annotated[
        bool,
        Help("with --joint: FreeDict's dictionaries that the system has as further pairs, and its "
             "thesauri to measure with"),
    ] = False  # fmt: skip
    pairs: Annotated[
        int | None, Help("with --joint: pairs of an epoch (default: as many as there are)")
    ] = None
    share_temperature: Annotated[
        float,
        Help("with --joint: a language or dictionary of n pairs has a share of n^(1/T) of each "
             "epoch; 1 keeps the sizes", "T"),
    ] = 2.0  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class PairOptions:
    """What a model of pairs learns from, in the place of Mirror-BERT."""

    objective: Annotated[
        Literal["mirror-bert", "cross-encoder", "trans-encoder"],
        Help("what to train: an encoder by Mirror-BERT; a cross-encoder on the labelled pairs of "
             "--data, a table with a header; or both kinds without labels (Trans-Encoder) on the "
             "pairs of --data, as OUT/cross-encoder and OUT/encoder"),
    ] = "mirror-bert"  # fmt: skip
    fields: Annotated[
        str | None,
        Help("the columns of the two texts (default: text1 and text2, sentence1 and sentence2, and "
             "other usual names); numbers from 1 on for a table without a header", "A,B"),
    ] = None  # fmt: skip
    label_field: Annotated[
        str | None, Help("the column of the label (default: score, label and other usual names)")
    ] = None
    labels: Annotated[
        str | None,
        Help("the classes in order, for labels that are numbers but no scores", "NAME,NAME"),
    ] = None
    labelled: Annotated[Given[CrossEncoderRecipe], Group(only=("both_orders", "lowest", "highest"))]
    unlabelled: Annotated[Given[TransEncoderRecipe], Group(only=("cycles", *_ENCODER))]
    cross_config: Given[CrossEncoderConfig]
    trans_config: Annotated[Given[TransEncoderConfig], Group(only=("teacher",))]

    def check_unused(self) -> None:
        """Raise ConfigError for an option that Mirror-BERT would ignore."""
        own = {name: getattr(self, name) for name in ("fields", "label_field", "labels")}
        options = {
            "cross-encoder": own | self.labelled.values(),
            "trans-encoder": self.of_trans_encoder(),
        }
        for objective, given in options.items():
            if used := [name for name, value in given.items() if value is not None]:
                raise ConfigError(Setting(used[0]), " goes with ", Setting("objective", objective))

    def of_trans_encoder(self) -> dict[str, Any]:
        """Return what was given for options of Trans-Encoder alone."""
        return self.unlabelled.values() | self.trans_config.values()


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
            "sts/stsb-TAG-test.tsv or\nTAG.tsv to score before and after. --resume keeps what is "
            "finished.",
        ),
    ]
    pairs: Annotated[PairOptions, Group("cross-encoders")]
    config: Annotated[Given[TuneConfig], RUN]
    # --pooling is an option of the run.
    changes: Annotated[
        Given[Recipe], Group("overrides of the recipe", leave_out=("pooling",), overrides=True)
    ]
