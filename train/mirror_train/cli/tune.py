"""The command `mirror-rt tune`."""

from __future__ import annotations

import argparse
import logging
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from mirror_rt.adapters.ray_cluster import ClusterOptions
from mirror_rt.cli.options import add_options, build, from_arguments, given_values
from mirror_rt.cli.parser import Subparsers, add_subparser
from mirror_rt.errors import ConfigError
from mirror_train.cli.default_recipe import default_recipe
from mirror_train.cli.recipes import add_recipes_option
from mirror_train.cli.training_options import (
    add_base_options,
    add_run_options,
    given_config,
    print_result,
)
from mirror_train.cli.tune_joint import JOINT_BASE, SHARE_TEMPERATURE, JointRun, joint_run
from mirror_train.cli.tune_languages import first_strings, run_languages, with_base
from mirror_train.compute.launch import is_first_process
from mirror_train.data.strings import DataFormat, load_training_data, word_list
from mirror_train.data.thesaurus import FREQUENT, load_thesaurus
from mirror_train.data.training_data import TrainingData
from mirror_train.languages.base_models import load_languages
from mirror_train.recipes.recipe import Recipe, load_recipe, recipe_names
from mirror_train.training.run_config import TuneConfig

if TYPE_CHECKING:
    from mirror_train.model.pretrained import Pretrained

logger = logging.getLogger("mirror_train")

_TOP = 10_000
_INSTALLED = ""  # --thesaurus without a value
_NO_OVERRIDES = ("pooling",)  # of the recipe; --pooling is an option of the run


def add_parser(commands: Subparsers) -> None:
    """Add the command to the command line."""
    parser = add_subparser(
        commands,
        "tune",
        description="Tune a masked language model on raw strings, without labels, by Mirror-BERT.\n"
        "Writes an ordinary Hugging Face folder plus mirror.json; one for each language of\n"
        "--lang en,fr.",
        examples="""
mirror-rt tune --words en --out tuned
mirror-rt tune bert-base-uncased --data lines.txt --out tuned
mirror-rt tune --thesaurus en --out tuned
mirror-rt tune --words en --out tuned --checkpoint-every 20
mirror-rt tune --words en --out tuned --resume
mirror-rt tune --words en --out tuned --loss-batch 2000
mirror-rt tune --recipe simcse --data lines.txt --out tuned
mirror-rt tune --recipe simcse-nli --data snli_1.0_train.jsonl --data-format nli --out tuned
mirror-rt tune --recipe mirror-ms --data synonyms.tsv --data-format synonyms --out tuned
mirror-rt tune --lang en,fr,ru --out TUNED
mirror-rt tune --lang en,fr,ru --engine ray --worker-cpus 4 --out /shared/TUNED
mirror-rt tune --thesaurus --lang en,fr,ru --out TUNED
mirror-rt tune --lang en,fr,ru --joint --dictionary en-fr.tsv --out tuned
mirror-rt tune mbert --recipe sentence --lang en,ru --words sentences --data DIR --out TUNED
torchrun --nproc-per-node 4 -m mirror_rt.cli tune --words en --out tuned
""",
    )
    parser.add_argument(
        "--recipe",
        metavar="NAME|FILE.toml",
        help=f"{', '.join(recipe_names())}, which docs/guides/tuning.md and docs/guides/systems.md "
        "describe; or a TOML file (default: word for words and phrases, sentence for sentences)",
    )
    add_base_options(
        parser, note="; with --words or --lang: that of each language, see 'mirror-rt recipes'"
    )
    add_data_options(parser)
    _add_thesaurus_option(parser)
    _add_language_options(parser)
    add_run_options(parser, TuneConfig)
    overrides = parser.add_argument_group("overrides of the recipe")
    add_options(overrides, Recipe, leave_out=_NO_OVERRIDES, overrides=True)
    parser.set_defaults(run=run, wrong_usage=parser.error)


class _Joined(argparse.Action):
    """Joins by commas what an option is given several times."""

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: Any, values: Any, *_: Any
    ) -> None:
        before = getattr(namespace, self.dest)
        setattr(namespace, self.dest, f"{before},{values}" if before else values)


def add_data_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that `training_data` reads."""
    group = parser.add_argument_group("strings")
    group.add_argument(
        "--data",
        type=Path,
        metavar="FILE",
        help="UTF-8 text, one string a line; or pairs: text1||text2, or two-column TSV; or what "
        "--data-format says",
    )
    group.add_argument("--words", metavar="LANG", help="the most frequent words of a language")
    group.add_argument("--top", type=int, help=f"with --words: how many (default {_TOP})")
    group.add_argument(
        "--data-format",
        choices=get_args(DataFormat),
        help="form of --data (default auto: text or pairs, by name and content). triplets: a table "
        "with columns anchor, positive, negative; nli: SNLI or MultiNLI, JSONL or TSV, made into "
        "triplets; synonyms: concept id TAB name",
    )
    group.add_argument(
        "--lang",
        action=_Joined,
        metavar="TAG[,TAG]",
        help="with a file as --data or --thesaurus: its language; otherwise tune for each of "
        "these languages, into OUT/TAG (see below)",
    )


def _add_thesaurus_option(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group(
        "synonyms",
        "Instead of strings: words that list each other in a thesaurus, so that words of one\n"
        "meaning come together. At most two pairs of a word are taken, and only of frequent words.",
    )
    group.add_argument(
        "--thesaurus",
        nargs="?",
        const=_INSTALLED,
        metavar="LANG|FILE",
        help="the thesaurus that is installed for a language, or a MyThes file (.dat), the folder "
        "of WordNet's files, a TSV of synonyms; without a value, what is installed for each "
        f"language of --lang; --top frequent words (default {FREQUENT})",
    )


def _add_language_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group(
        "many languages",
        "With --lang alone, each language is tuned on its most frequent words, or on TAG.txt in\n"
        "the folder --words. A folder as --data has multisimlex/TAG.tsv, sts/stsb-TAG-test.tsv or\n"
        "TAG.tsv to score before and after. --resume keeps what is finished.",
    )
    add_recipes_option(group)
    add_options(group, ClusterOptions)
    group.add_argument("--json", action="store_true", help="the table at the end as JSON")
    group.add_argument(
        "--joint", action="store_true", help="one encoder for all of these languages, into OUT"
    )
    group.add_argument(
        "--dictionary",
        action="append",
        type=Path,
        metavar="FILE",
        help="with --joint: word TAB translation on each line, further pairs; several may be given",
    )
    group.add_argument(
        "--installed",
        action="store_true",
        help="with --joint: FreeDict's dictionaries that the system has as further pairs, and its "
        "thesauri to measure with",
    )
    group.add_argument(
        "--pairs",
        type=int,
        metavar="N",
        help="with --joint: pairs of an epoch (default: as many as there are)",
    )
    group.add_argument(
        "--share-temperature",
        type=float,
        default=SHARE_TEMPERATURE,
        metavar="T",
        help="with --joint: a language or dictionary of n pairs has a share of n^(1/T) of each "
        "epoch (default %(default)s; 1 keeps the sizes)",
    )


def run(arguments: argparse.Namespace) -> None:
    """Run the command."""
    from mirror_train.training.tune import tune

    cluster = build(ClusterOptions, from_arguments(arguments))
    changes = given_values(Recipe, from_arguments(arguments), leave_out=_NO_OVERRIDES)
    file = arguments.thesaurus or (arguments.data is not None and not arguments.data.is_dir())
    many = arguments.lang is not None and not file
    data, joint = None, None
    if arguments.joint:
        joint, many = joint_run(arguments), False
        data, arguments.model = joint.data, arguments.model or JOINT_BASE
    elif arguments.dictionary or arguments.installed:
        raise ConfigError("--dictionary and --installed go with --joint")
    elif not many:
        _check_one_language(arguments)
    if cluster.engine and not many:
        raise ConfigError("--engine goes with --lang alone: its languages are the tasks")
    if arguments.recipe is None:
        data = data or (first_strings(arguments) if many else _strings(arguments))
        arguments.recipe = _chosen_recipe(data, arguments)
    recipe = load_recipe(arguments.recipe).replace(**changes)
    config = given_config(arguments, TuneConfig, recipe=recipe)
    if many:
        run_languages(arguments, config, changes, cluster)
        return
    data = data or _strings(arguments)
    config = with_base(config, arguments.model, data.language)
    if arguments.model is None and data.language is not None and is_first_process():
        print(f"base model {config.model}, for {data.language} (--model names another)")
    report = tune(data, config, on_base=partial(_look_at, data, config, joint))
    if not is_first_process():
        return
    if joint is not None:
        joint.print_result(config, as_json=arguments.json)
    if not arguments.json:
        print_result(report)


def _look_at(
    data: TrainingData, config: TuneConfig, joint: JointRun | None, base: Pretrained
) -> None:
    from mirror_train.languages.fit import run_warnings

    for warning in run_warnings(data, base, config, load_languages()):
        logger.warning("%s", warning)
    if joint is not None:
        joint.measure_base(base, config)


def _chosen_recipe(data: TrainingData | None, arguments: argparse.Namespace) -> str:
    """Return the recipe for the strings, and say which it is and why."""
    name, reason = ("word", "for words")
    if arguments.joint:
        name, reason = ("joint", "for one encoder of many languages")
    elif arguments.thesaurus is not None:
        name, reason = ("synonyms", "for the synonyms of a thesaurus")
    elif data is not None:
        name, reason = default_recipe(data, arguments.data_format)
    if is_first_process() and not arguments.json:
        print(f"recipe {name}, {reason} (--recipe names another)")
    return name


def _check_one_language(arguments: argparse.Namespace) -> None:
    given = [arguments.data, arguments.words, arguments.thesaurus]
    if len(given) - given.count(None) != 1:
        arguments.wrong_usage(
            "pass one of --data FILE, --words LANG and --thesaurus LANG, or --lang TAG,... alone"
        )
    if arguments.thesaurus == _INSTALLED:
        raise ConfigError("--thesaurus names no language: pass --thesaurus LANG, or --lang TAG,...")
    if arguments.lang is not None and "," in arguments.lang:
        file = arguments.data or arguments.thesaurus
        raise ConfigError(
            f"--lang {arguments.lang}: the file {file} has one language (--thesaurus without a "
            "value takes what is installed for each)"
        )
    if arguments.json or arguments.recipes is not None:
        raise ConfigError("--json and --recipes go with --lang alone")


def training_data(arguments: argparse.Namespace) -> TrainingData:
    """Read the strings that the options name, and print how many there are."""
    if (arguments.data is None) == (arguments.words is None):
        arguments.wrong_usage("pass one of --data FILE and --words LANG")
    if arguments.words is not None:
        if arguments.data_format or arguments.lang:
            raise ConfigError("--data-format and --lang go with --data, not with --words LANG")
        return word_list(arguments.words, top=_TOP if arguments.top is None else arguments.top)
    if arguments.top is not None:
        raise ConfigError("--top goes with --words, not with --data")
    data = load_training_data(
        arguments.data,
        data_format=arguments.data_format or "auto",
        language=arguments.lang,
    )
    if is_first_process():
        print(
            f"{arguments.data}: {len(data)} strings ({data.blank} blank and {data.duplicates} "
            "repeated lines dropped)"
        )
    return data


def _strings(arguments: argparse.Namespace) -> TrainingData:
    if arguments.thesaurus is None:
        return training_data(arguments)
    if arguments.data_format:
        raise ConfigError("--data-format goes with --data, not with --thesaurus")
    top = FREQUENT if arguments.top is None else arguments.top
    data = load_thesaurus(arguments.thesaurus, language=arguments.lang, top=top)
    if is_first_process():
        licence = (data.origin or {})["license"]
        print(f"{data.source}: {len(data)} pairs of synonyms (licence: {licence})")
    return data
