"""The command `mirror-rt study`."""

from __future__ import annotations

import argparse
import dataclasses
import math
import sys
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

from mirror_rt.cli.common import add_hub_options, fill_table
from mirror_rt.cli.options import add_options
from mirror_rt.cli.parser import Subparsers, add_model, add_subparser
from mirror_rt.cli.wording import flag_of
from mirror_rt.errors import ConfigError, require
from mirror_rt.io.atomic import check_free
from mirror_rt.plugins import load_plugin
from mirror_rt.progress import describe_seconds, progress_bar
from mirror_train.cli.training_options import given_config
from mirror_train.data.strings import load_training_data, word_list
from mirror_train.data.training_data import TrainingData
from mirror_train.experiments.mirror_studies import STUDIES, MirrorStudy
from mirror_train.experiments.study import Run, Study, StudyConfig
from mirror_train.experiments.systems.table import SYSTEMS, SystemsConfig, plan_systems
from mirror_train.recipes.recipe import Recipe, load_recipe

if TYPE_CHECKING:
    from mirror_train.experiments.runner import Opener

_SYSTEMS = "systems"
_TITLES = {name: f"{study.title} ({study.source})" for name, study in STUDIES.items()} | {
    _SYSTEMS: "every system of the papers from one base model, on the same sets "
    "(docs/guides/systems.md)"
}
_SYSTEM_OPTIONS = ("seed", "max_steps", "learning_rate", "samples")
# The options that not every study has, with their values where they are not given.
_OF_SYSTEMS = dict.fromkeys(["systems", *_SYSTEM_OPTIONS]) | {"no_export": False}
_OF_OTHERS = dict.fromkeys(["strings", "words", "pairs", "recipe", "seeds", "pooling"]) | {
    "small": False
}

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
        "studies:\n" + _listed(_TITLES),
        examples="""
mirror-rt study ablation --data data --out study
mirror-rt study drophead --data data --out study --top 2000 --seeds 5
mirror-rt study data-size --words en --pairs multisimlex/en.tsv --out study
mirror-rt study pooling --recipe word --strings words.txt --pairs pairs.tsv --out study --small
mirror-rt study systems --data data --out study
mirror-rt study systems --data data --systems mirror,simcse,flow --top 2000 --out study
""",
    )
    parser.add_argument("name", metavar="NAME", choices=list(_TITLES), help="one of those above")
    add_model(
        parser,
        help="base model: folder or hub name (default: all-MiniLM-L6-v2)",
        metavar="MODEL",
        required=False,
    )
    parser.add_argument("--out", required=True, type=Path, metavar="STUDY", help="folder to write")
    _add_data_options(parser)
    _add_run_options(parser)
    _add_systems_options(parser)
    parser.set_defaults(run=run)


def _listed(titles: dict[str, str]) -> str:
    return "\n".join(f"  {line}" for line in fill_table(list(titles.items())).splitlines())


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
    add_options(group, StudyConfig, only=("pooling", "seeds", "precision", "device"))


def _add_systems_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group(
        "systems",
        "only with 'systems'. It takes --data, --lang, --top and the model's options.\n"
        + _listed({name: f"{one.title} ({one.source})" for name, one in SYSTEMS.items()}),
    )
    group.add_argument(
        "--systems", metavar="NAME,...", help="these alone (default: all that --data is enough for)"
    )
    add_options(group, SystemsConfig, only=_SYSTEM_OPTIONS)
    group.add_argument(
        "--no-export", action="store_true", help="evaluate with PyTorch, not through bundles"
    )


def run(arguments: argparse.Namespace) -> int:
    """Run the command; return 1 where a row failed."""
    own = arguments.name == _SYSTEMS
    for name, default in (_OF_OTHERS if own else _OF_SYSTEMS).items():
        if getattr(arguments, name) != default:
            raise ConfigError(f"{flag_of(name)} does not go with the study {arguments.name!r}")
    study, config, open_model = (_systems if own else _setups)(arguments)
    return run_and_report(study, config, open_model)


def _setups(arguments: argparse.Namespace) -> tuple[Study, StudyConfig, Opener | None]:
    study = STUDIES[arguments.name]
    recipe = load_recipe(arguments.recipe or study.level)
    if arguments.small and arguments.seeds is None:
        arguments.seeds = _SMALL_SEEDS
    config = given_config(arguments, StudyConfig, samples=0)  # the intervals are over the seeds
    data = _strings(arguments, study, recipe)
    pairs = arguments.pairs or _in_data(arguments, recipe, 1, "--pairs FILE.tsv")
    print(
        f"{study.name}: {study.title} (Mirror-BERT, {study.source}); recipe {recipe.level}, "
        f"{len(data):,} strings, {pairs}"
    )
    return study.plan(recipe, data, pairs, config), config, None


def _systems(arguments: argparse.Namespace) -> tuple[Study, StudyConfig, Opener | None]:
    if arguments.data is None:
        raise ConfigError(
            "study systems needs --data DIR: docs/guides/systems.md says what is in it"
        )
    systems = None if arguments.systems is None else arguments.systems.split(",")
    config = given_config(
        arguments,
        SystemsConfig,
        systems=systems,
        language=arguments.lang,
        export=not arguments.no_export,
    )
    open_model = None
    if config.export:
        purpose = "mirror-rt study systems"
        open_model = load_plugin("mirror_train.openers", "bundle", purpose=purpose)(config)
    return plan_systems(config), config, open_model


def _strings(arguments: argparse.Namespace, study: MirrorStudy, recipe: Recipe) -> TrainingData:
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


def run_and_report(study: Study, config: StudyConfig, open_model: Opener | None = None) -> int:
    """Run a study with a line for each run, and write its report; return 1 where a row failed."""
    for module in ("matplotlib", "scipy"):
        require(module, extra="study", purpose="mirror-rt study")
    from mirror_train.experiments.report import Report
    from mirror_train.experiments.runner import run_study

    check_free(config.out / "runs" / "row", overwrite=True)  # --out may be a file
    for name, reason in study.left_out.items():
        print(f"left out, {name}: {reason}")
    # On a terminal somebody sees that it runs; a log needs lines between those of the runs.
    in_a_log, desc = not sys.stderr.isatty(), f"study {study.name}"
    with closing(progress_bar(None, in_a_log, unit="finished run", desc=desc)) as bar:

        def show(run: Run, done: int, total: int, left: float) -> None:
            bar.update(1)
            print(_line(run, done, total, left), flush=True)

        try:
            runs = run_study(study, config, open_model=open_model, on_run=show)
        except KeyboardInterrupt as error:
            raise KeyboardInterrupt(
                f"interrupted; the same command goes on with what {config.out} holds"
            ) from error
    report = Report(study, config, runs)
    files = report.write()
    print(f"\n{report.table()}")
    print(", ".join(map(str, files)))
    return int(any(run.error for run in runs))


def _line(run: Run, done: int, total: int, left: float) -> str:
    from mirror_train.experiments.figures import column_title

    seed = "" if run.seed is None else f", seed {run.seed}"
    rest = "" if done == total or math.isnan(left) else f"; about {describe_seconds(left)} left"
    figures = [
        f"{title} {result.outcome.value:.4f}"
        for result in run.results
        if result.outcome.ranked and (title := column_title(result.measure))
    ]
    found = f"failed: {run.error}" if run.error else ", ".join(figures)
    return f"[{done}/{total}] {run.label}{seed}: {found} ({run.seconds:.1f} s){rest}"
