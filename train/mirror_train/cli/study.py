"""mirror-rt study."""

from __future__ import annotations

import argparse
import dataclasses
import math
from pathlib import Path
from typing import TYPE_CHECKING

from mirror_rt.cli.common import Subparsers, add_hub_options, add_subparser, fill_table
from mirror_train.cli.study_systems import (
    NAME,
    TITLE,
    add_systems_options,
    check_systems_options,
    run_systems,
)
from mirror_train.cli.training_options import require_train
from mirror_rt.errors import ConfigError, MissingDependencyError, require
from mirror_rt.io.atomic import check_free

if TYPE_CHECKING:
    from mirror_train import Recipe, TrainingData
    from mirror_train.experiments.studies import Study
    from mirror_train.experiments.study_run import Run

__all__ = ["STUDIES", "add_parser"]

# As in mirror_train.experiments.studies, which cannot be imported for a help text:
# name -> title (source).
STUDIES = {
    "ablation": "dropout and span masking, each turned off (Tables 7 and 20)",
    "drophead": "drophead in the place of dropout (Tables 3 and 7)",
    "controlled-dropout": "the same dropout for a string and its copy (Table 8)",
    "dropout-rate": "rates of dropout (Table 12)",
    "masking-rate": "lengths of the masked span (Table 13)",
    "data-size": "1,000 to 100,000 strings (Figure 5)",
    "random-strings": "random letters and digits instead of words (Table 10)",
    "pooling": "[CLS] against the mean of the tokens (Appendix B)",
    "masking": "which strings are masked, and with what (the authors' code)",
    "word-plus": "what the recipe word-plus changes (not in the paper)",
}
_NAMES = STUDIES | {NAME: TITLE}

# What --data holds for a level: strings to tune on, pairs to evaluate on.
_FILES = {
    "word": ("words/{}.txt", "multisimlex/{}.tsv"),
    "phrase": ("phrases/{}.txt", "multisimlex/{}.tsv"),
    "sentence": ("sentences/{}.txt", "sts/stsb-{}-test.tsv"),
}
_SMALL_TOP, _SMALL_SEEDS, _SEEDS = 1000, 2, 3
_WORDS = 100_000  # of --words; the data-size study goes as far


def add_parser(commands: Subparsers) -> None:
    """Add the command to the command line."""
    parser = add_subparser(
        commands,
        "study",
        help="the paper's analyses, on your model and data: tables and plots over seeds",
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
    group.add_argument(
        "--model", metavar="PATH|NAME", help="base model (default: all-MiniLM-L6-v2)"
    )
    add_hub_options(parser)
    group.add_argument(
        "--recipe",
        metavar="NAME|FILE.toml",
        help="what the study changes (default: that of the paper's table, word or sentence)",
    )
    group.add_argument(
        "--pooling",
        choices=["auto", "cls", "mean", "mean-without-special", "mean-with-padding"],
        default="auto",
        help="auto: what the base model declares, else the recipe's (mean-without-special of a "
        "recipe goes first)",
    )
    group.add_argument(
        "--seeds", type=int, metavar="N", help=f"runs of every setup (default {_SEEDS})"
    )
    group.add_argument(
        "--small",
        action="store_true",
        help=f"a first look: --top {_SMALL_TOP} --seeds {_SMALL_SEEDS} unless given",
    )
    group.add_argument(
        "--precision",
        choices=["auto", "fp32", "bf16", "fp16"],
        default="auto",
        help="auto: what the processor is good at",
    )
    group.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:N")


def run(arguments: argparse.Namespace) -> int | None:
    """Run the command."""
    check_systems_options(arguments)
    if arguments.name == NAME:
        return _run_systems(arguments)
    for module in ("matplotlib", "scipy"):
        require(module, extra="study", purpose="mirror-rt study")
    require_train("study")
    import mirror_train
    from mirror_train.experiments.studies import find_study
    from mirror_train.experiments.study_plot import plot_study
    from mirror_train.experiments.study_report import markdown_table, summarize, write_report
    from mirror_train.experiments.study_run import StudyConfig, run_study

    study = find_study(arguments.name)
    recipe = mirror_train.load_recipe(arguments.recipe or study.level)
    seeds = _SMALL_SEEDS if arguments.small else _SEEDS
    config = StudyConfig(
        study=study,
        recipe=recipe,
        data=_strings(arguments, study, recipe),
        pairs=_pairs(arguments, recipe),
        out=arguments.out,
        seeds=seeds if arguments.seeds is None else arguments.seeds,
        model=arguments.model or mirror_train.DEFAULT_MODEL,
        revision=arguments.revision,
        pooling=arguments.pooling,
        precision=arguments.precision,
        device=arguments.device,
        offline=arguments.offline,
    )
    check_free(arguments.out / study.name, overwrite=True)  # --out may be a file
    print(
        f"{study.name}: {study.title} (Mirror-BERT, {study.source}); recipe {recipe.level}, "
        f"{len(config.data):,} strings, {config.pairs}"
    )
    try:
        runs = run_study(config, on_run=_print_run)
    except KeyboardInterrupt as error:
        raise KeyboardInterrupt(
            f"interrupted; the same command goes on with what {arguments.out} holds"
        ) from error
    rows = summarize(config, runs)
    files = write_report(config, runs, rows)
    plot_study(arguments.out / f"{study.name}.png", study, rows)
    print(f"\n{markdown_table(rows)}")
    print(", ".join(str(path) for path in [*files, arguments.out / f"{study.name}.png"]))
    return None


def _run_systems(arguments: argparse.Namespace) -> int:
    try:
        return run_systems(arguments)
    except MissingDependencyError as error:
        raise MissingDependencyError(f"mirror-rt study systems: {error}") from error


def _print_run(run: Run, done: int, total: int, left: float) -> None:
    seed = "" if run.seed is None else f", seed {run.seed}"
    rest = "" if done == total or math.isnan(left) else f"; about {_duration(left)} left"
    line = f"[{done}/{total}] {run.label}{seed}: rho {run.spearman:.4f} ({run.seconds:.1f} s){rest}"
    print(line, flush=True)


def _duration(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.0f} min"


def _strings(arguments: argparse.Namespace, study: Study, recipe: Recipe) -> TrainingData:
    from mirror_train import load_training_data, word_list

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


def _pairs(arguments: argparse.Namespace, recipe: Recipe) -> Path:
    return arguments.pairs or _in_data(arguments, recipe, 1, "--pairs FILE.tsv")


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
