"""The command `mirror-rt train burt`."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from mirror_rt.cli.options import add_options
from mirror_rt.cli.parser import Subparsers, add_subparser
from mirror_rt.errors import ConfigError
from mirror_train.cli.training_options import (
    add_base_options,
    add_run_options,
    given_config,
    print_result,
)
from mirror_train.pairs.burt_data import BurtTasks
from mirror_train.pairs.recipe import BurtConfig, BurtRecipe

if TYPE_CHECKING:
    from mirror_rt.evaluation.suites import EvaluationSet

_FILES = {
    "nli": "SNLI, MultiNLI: the published .jsonl or .txt, or a TSV of premise, hypothesis, label",
    "ppdb": "PPDB 2.0, plain or .gz; equally many pairs of each relation are drawn",
    "paraphrases": "more pairs for pi: two columns (TSV, or text||text), or Quora's table (.csv)",
}


def add_parser(commands: Subparsers) -> None:
    """Add the command to the command line."""
    parser = add_subparser(
        commands,
        "burt",
        description="Train an encoder on pairs, each side encoded by itself (BURT, Li and Zhao "
        "2020):\n  nli  entailment, neutral or contradiction, of sentences\n  pi   paraphrases "
        "against random pairs, of phrases and words\n  ptc  equivalence, entailment or "
        "independent, of phrases and words\nBatches of the three come in turn, those of sentences "
        "every second time. The folder is exported\nlike any other, with the heads of the three "
        "(see 'mirror-rt predict'). Ctrl-C leaves nothing;\nwith --ablation, it leaves the runs "
        "that are finished.",
        examples="""
mirror-rt train burt --nli snli_1.0_train.jsonl --ppdb ppdb-2.0-s-phrasal.gz --out tuned
mirror-rt train burt --nli snli-dev.tsv --paraphrases quora-dev.csv --out tuned --steps 500
mirror-rt train burt --nli train.tsv --ppdb train.gz --ablation pooling --evaluate sts=test.tsv \\
    --ppdb-test test.gz --out ablation --steps 2000
""",
    )
    _add_data_options(parser)
    add_base_options(parser)
    add_run_options(parser, BurtConfig)
    add_options(parser.add_argument_group("hyper-parameters"), BurtRecipe)
    _add_ablation_options(parser)
    parser.set_defaults(run=run)


def _add_data_options(parser: argparse.ArgumentParser) -> None:
    data = parser.add_argument_group("data")
    for name, text in _FILES.items():
        data.add_argument(f"--{name}", nargs="+", type=Path, default=[], metavar="FILE", help=text)
    data.add_argument(
        "--per-relation",
        type=int,
        metavar="N",
        help="pairs of each relation of --ppdb (default: as many as the rarest has)",
    )
    data.add_argument(
        "--top", type=int, metavar="N", help="the first N rows of --nli and --paraphrases alone"
    )


def _add_ablation_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("ablations (table 4 of the paper)")
    group.add_argument(
        "--ablation",
        choices=["objectives", "pooling", "concatenation", "negatives", "all"],
        help="train each row and write ablation.md and ablation.json into --out; the same command "
        "goes on after an interruption",
    )
    group.add_argument(
        "--evaluate",
        action="append",
        default=[],
        metavar="NAME=FILE.tsv",
        help="scored pairs to evaluate the rows on (Spearman's rho); may be given again",
    )
    group.add_argument(
        "--ppdb-test",
        type=Path,
        metavar="FILE",
        help="PPDB: its phrases with the probability of equivalence, to evaluate on",
    )


def run(arguments: argparse.Namespace) -> int:
    """Run the command."""
    from mirror_train.experiments.burt_ablation import read_sets
    from mirror_train.pairs.burt import tune_burt

    config = given_config(arguments, BurtConfig)
    sets = []
    if arguments.ablation is not None:
        sets = read_sets(arguments.evaluate, arguments.ppdb_test)
    elif arguments.evaluate or arguments.ppdb_test:
        raise ConfigError(
            "--evaluate and --ppdb-test go with --ablation; a tuned folder is evaluated by "
            "'mirror-rt evaluate'"
        )
    tasks = BurtTasks.load(
        nli=arguments.nli,
        ppdb=arguments.ppdb,
        paraphrases=arguments.paraphrases,
        per_relation=arguments.per_relation,
        top=arguments.top,
        seed=config.seed,
    )
    for name in tasks.objectives:
        rows = tasks.of(name)
        print(f"{name}: {len(rows)} pairs ({rows.source}; {rows.left_out} lines left out)")
    if arguments.ablation is not None:
        return _run_ablation(tasks, config, arguments.ablation, sets)
    print_result(tune_burt(tasks, config))
    return 0


def _run_ablation(
    tasks: BurtTasks, config: BurtConfig, name: str, sets: list[EvaluationSet]
) -> int:
    from mirror_train.cli.study import run_and_report
    from mirror_train.experiments.burt_ablation import ABLATIONS, plan_ablations
    from mirror_train.experiments.study import StudyConfig

    study = plan_ablations(list(ABLATIONS) if name == "all" else [name], tasks, config, sets)
    settings = StudyConfig(seeds=1, precision=config.precision, **config.run_options())
    return run_and_report(study, settings)
