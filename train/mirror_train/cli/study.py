"""The command `mirror-rt study`."""

from __future__ import annotations

import argparse
import dataclasses
import math
import sys
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from mirror_rt.cli.common import add_hub_options, fill_table
from mirror_rt.cli.options import add_options
from mirror_rt.cli.parser import Subparsers, add_model, add_subparser
from mirror_rt.errors import ConfigError, require
from mirror_rt.io.atomic import check_free
from mirror_rt.progress import ProgressBar, describe_seconds, progress_bar
from mirror_train.cli.study_systems import (
    NAME,
    TITLE,
    add_systems_options,
    check_systems_options,
    run_systems,
)
from mirror_train.cli.training_options import given_config
from mirror_train.data.strings import load_training_data, word_list
from mirror_train.data.training_data import TrainingData
from mirror_train.experiments.studies import STUDIES, Study, StudyConfig, find_study
from mirror_train.recipes.recipe import Recipe, load_recipe

if TYPE_CHECKING:
    from mirror_train.experiments.study_run import Run

_TITLES = {name: f"{study.title} ({study.source})" for name, study in STUDIES.items()}
_NAMES = _TITLES | {NAME: TITLE}
_OPTIONS = ("pooling", "seeds", "precision", "device")

# The files below --data for each level: strings to tune on, pairs to evaluate on.
_FILES = {
    "word": ("words/{}.txt", "multisimlex/{}.tsv"),
    "phrase": ("phrases/{}.txt", "multisimlex/{}.tsv"),
    "sentence": ("sentences/{}.txt", "sts/stsb-{}-test.tsv"),
}
_SMALL_TOP, _SMALL_SEEDS = 1000, 2
_WORDS = 100_000  # number of words that --words takes; the data-size study goes up to it


def add_parser(commands: Subparsers) -> None:
    """Add the command to the command line."""
    parser = add_subparser(
        commands,
        "study",
        description="Tune and evaluate the setups of an analysis of the Mirror-BERT paper, with "
        "several\nseeds, and compare them: NAME.md, NAME.json and NAME.png in the output folder.\n"
        "Every run is kept there: the same command goes on after an interruption.\n\n"
        "studies:\n"
        + "\n".join(f"  {line}" for line in fill_table(list(_NAMES.items())).splitlines()),
        examples="""
mirror-rt study ablation --data data --out study
mirror-rt study drophead --data data --out study --top 2000 --seeds 5
mirror-rt study data-size --words en --pairs multisimlex/en.tsv --out study
mirror-rt study pooling --recipe word --strings words.txt --pairs pairs.tsv --out study --small
mirror-rt study systems --data data --out study
mirror-rt study systems --data data --systems mirror,simcse,flow --top 2000 --out study
""",
    )
    parser.add_argument("name", metavar="NAME", choices=list(_NAMES), help="one of those above")
    add_model(
        parser,
        help="base model: folder or hub name (default: all-MiniLM-L6-v2)",
        metavar="MODEL",
        required=False,
    )
    parser.add_argument("--out", required=True, type=Path, metavar="STUDY", help="folder to write")
    _add_data_options(parser)
    _add_run_options(parser)
    add_systems_options(parser)
    parser.set_defaults(run=run)


def _add_data_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("data")
    group.add_argument(
        "--data",
        type=Path,
        metavar="DIR",
        help="folder with words/LANG.txt and multisimlex/LANG.tsv, or for sentences "
        "sentences/LANG.txt and sts/stsb-LANG-test.tsv",
    )
    group.add_argument("--lang", default="en", help="LANG in those names (default en)")
    source = group.add_mutually_exclusive_group()
    source.add_argument("--strings", type=Path, metavar="FILE", help="tune on these lines instead")
    source.add_argument(
        "--words",
        metavar="LANG",
        help="tune on the most frequent words of a language instead (for all but data-size, "
        "10000 unless --top says otherwise)",
    )
    group.add_argument(
        "--pairs",
        type=Path,
        metavar="FILE.tsv",
        help="evaluate on these instead: a header, two text columns and score",
    )
    group.add_argument("--top", type=int, metavar="N", help="tune on the first N strings alone")


def _add_run_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("run")
    add_hub_options(parser)
    group.add_argument(
        "--recipe",
        metavar="NAME|FILE.toml",
        help="what the study changes (default: that of the paper's table, word or sentence)",
    )
    group.add_argument(
        "--small",
        action="store_true",
        help=f"a first look: --top {_SMALL_TOP} --seeds {_SMALL_SEEDS} unless given",
    )
    add_options(group, StudyConfig, only=_OPTIONS)


def run(arguments: argparse.Namespace) -> int | None:
    """Run the command."""
    check_systems_options(arguments)
    # On a terminal somebody sees that it runs; a log needs lines between those of the runs.
    in_a_log, desc = not sys.stderr.isatty(), f"study {arguments.name}"
    with closing(progress_bar(None, in_a_log, unit="finished run", desc=desc)) as bar:
        if arguments.name == NAME:
            return run_systems(arguments, bar)
        _run(arguments, bar)
    return None


def _run(arguments: argparse.Namespace, bar: ProgressBar) -> None:
    for module in ("matplotlib", "scipy"):
        require(module, extra="study", purpose="mirror-rt study")
    from mirror_train.experiments.study_plot import plot_study
    from mirror_train.experiments.study_report import markdown_table, summarize, write_report
    from mirror_train.experiments.study_run import run_study

    study = find_study(arguments.name)
    recipe = load_recipe(arguments.recipe or study.level)
    if arguments.small and arguments.seeds is None:
        arguments.seeds = _SMALL_SEEDS
    config = given_config(
        arguments,
        StudyConfig,
        study=study,
        recipe=recipe,
        data=_strings(arguments, study, recipe),
        pairs=arguments.pairs or _in_data(arguments, recipe, 1, "--pairs FILE.tsv"),
    )
    check_free(arguments.out / study.name, overwrite=True)  # --out may be a file
    print(
        f"{study.name}: {study.title} (Mirror-BERT, {study.source}); recipe {recipe.level}, "
        f"{len(config.data):,} strings, {config.pairs}"
    )
    try:
        runs = run_study(config, on_run=partial(_print_run, bar))
    except KeyboardInterrupt as error:
        raise KeyboardInterrupt(
            f"interrupted; the same command goes on with what {arguments.out} holds"
        ) from error
    rows = summarize(config, runs)
    files = write_report(config, runs, rows)
    plot_study(arguments.out / f"{study.name}.png", study, rows)
    print(f"\n{markdown_table(rows)}")
    print(", ".join(str(path) for path in [*files, arguments.out / f"{study.name}.png"]))


def _print_run(bar: ProgressBar, run: Run, done: int, total: int, left: float) -> None:
    seed = "" if run.seed is None else f", seed {run.seed}"
    rest = "" if done == total or math.isnan(left) else f"; about {describe_seconds(left)} left"
    line = f"[{done}/{total}] {run.label}{seed}: rho {run.spearman:.4f} ({run.seconds:.1f} s){rest}"
    print(line, flush=True)
    bar.update(1)


def _strings(arguments: argparse.Namespace, study: Study, recipe: Recipe) -> TrainingData:
    top = arguments.top
    if top is None and arguments.small:
        top = _SMALL_TOP
    if top is not None and top < 1:
        raise ConfigError(f"--top must be at least 1, got {top}")
    if arguments.words is not None:
        most = _WORDS if study.name == "data-size" else 10_000
        return word_list(arguments.words, top=most if top is None else top)
    path = arguments.strings or _in_data(arguments, recipe, 0, "--strings FILE")
    data = load_training_data(path, data_format="text", language=arguments.lang)
    strings = data.first[:top]
    return dataclasses.replace(data, first=strings, second=strings)


def _in_data(arguments: argparse.Namespace, recipe: Recipe, which: int, instead: str) -> Path:
    if arguments.data is None:
        raise ConfigError(f"nothing to use: pass --data DIR, or {instead}")
    path: Path = arguments.data / _FILES[recipe.level][which].format(arguments.lang)
    if not path.is_file():
        raise ConfigError(
            f"{path} does not exist, and the recipe of level {recipe.level!r} needs it: pass "
            f"{instead}, or another --data, --lang or --recipe"
        )
    return path
