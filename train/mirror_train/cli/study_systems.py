"""The command `mirror-rt study systems`: all systems of the papers from one base model."""

from __future__ import annotations

import argparse
from functools import partial
from typing import TYPE_CHECKING

from mirror_rt.cli.common import fill_table
from mirror_rt.cli.options import add_options
from mirror_rt.errors import ConfigError
from mirror_rt.io.atomic import check_free
from mirror_rt.plugins import load_plugin
from mirror_rt.progress import ProgressBar
from mirror_train.cli.training_options import given_config
from mirror_train.experiments.systems.config import SystemsConfig
from mirror_train.experiments.systems.table import SYSTEMS

if TYPE_CHECKING:
    from mirror_train.experiments.systems.rows import Row

NAME = "systems"
TITLE = "every system of the papers from one base model, on the same sets (docs/guides/systems.md)"

# The options of the other studies, with their values where they are not given.
_OF_OTHERS = {"strings": None, "words": None, "pairs": None, "recipe": None, "seeds": None,
              "pooling": None, "small": False}  # fmt: skip
_OPTIONS = ("seed", "max_steps", "learning_rate", "samples")
_OWN = dict.fromkeys(["systems", *_OPTIONS]) | {"export": True}


def add_systems_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that only this study has."""
    titles = [(name, f"{one.title} ({one.source})") for name, one in SYSTEMS.items()]
    listed = "\n".join(f"  {line}" for line in fill_table(titles).splitlines())
    group = parser.add_argument_group(
        "systems",
        "only with 'systems'. It takes --data, --lang, --top and the model's options.\n" + listed,
    )
    group.add_argument(
        "--systems", metavar="NAME,...", help="these alone (default: all that --data is enough for)"
    )
    add_options(group, SystemsConfig, only=_OPTIONS)
    group.add_argument(
        "--no-export",
        dest="export",
        action="store_false",
        help="evaluate with PyTorch, not through exported bundles",
    )


def check_systems_options(arguments: argparse.Namespace) -> None:
    """Raise ConfigError where an option does not belong to the study that was named."""
    own = arguments.name == NAME
    for name, default in (_OF_OTHERS if own else _OWN).items():
        if getattr(arguments, name) != default:
            option = "--no-export" if name == "export" else f"--{name.replace('_', '-')}"
            raise ConfigError(f"{option} does not go with the study {arguments.name!r}")


def run_systems(arguments: argparse.Namespace, bar: ProgressBar) -> int:
    """Run the study, and count its systems on the bar; return 1 where a system failed."""
    from mirror_train.experiments.systems.report import figures_table, write_report
    from mirror_train.experiments.systems.run import open_with_torch
    from mirror_train.experiments.systems.run import run_systems as run

    if arguments.data is None:
        raise ConfigError(
            "study systems needs --data DIR: docs/guides/systems.md says what is in it"
        )
    systems = None if arguments.systems is None else arguments.systems.split(",")
    config = given_config(arguments, SystemsConfig, systems=systems, language=arguments.lang)
    opener = open_with_torch
    if config.export:
        opener = load_plugin("mirror_train.openers", "bundle", purpose="mirror-rt study systems")
    check_free(arguments.out / "runs" / "row", overwrite=True)  # --out may be a file
    try:
        rows, left_out = run(
            config, opener(config), on_start=_print_start, on_row=partial(_print_row, bar)
        )
    except KeyboardInterrupt as error:
        raise KeyboardInterrupt(
            f"interrupted; the same command goes on with what {arguments.out} holds, and the "
            "running system begins again"
        ) from error
    files = write_report(config, rows, left_out)
    for name, reason in left_out.items():
        print(f"left out, {name}: {reason}")
    print(f"\n{figures_table(rows)}")
    print(", ".join(map(str, files)))
    return int(any(row.tuned.error for row in rows))


def _print_start(name: str) -> None:
    print(f"{name} ...", flush=True)


def _print_row(bar: ProgressBar, row: Row) -> None:
    bar.update(1)
    if row.tuned.error is not None:
        print(f"{row.system}: failed: {row.tuned.error}", flush=True)
        return
    figures = [
        f"{result.measure.set} {result.outcome.value:.4f}"
        for result in row.results
        if result.outcome.ranked and result.measure.metric in ("spearman", "accuracy @1")
    ]
    print(f"{row.system}: {', '.join(figures)} ({row.tuned.seconds:.0f} s)", flush=True)
