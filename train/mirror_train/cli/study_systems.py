"""mirror-rt study systems: every system of the papers from one base model, in one table."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import TYPE_CHECKING

from mirror_rt.bundle.manifest import Manifest
from mirror_rt.cli.common import fill_table
from mirror_rt.cli.info import describe_parity
from mirror_rt.encoding.encoder import Encoder
from mirror_rt.errors import ConfigError
from mirror_rt.io.atomic import check_free

if TYPE_CHECKING:
    from mirror_train.experiments.systems import Opened, Row, SystemsConfig

__all__ = [
    "NAME",
    "SYSTEMS",
    "TITLE",
    "add_systems_options",
    "check_systems_options",
    "open_bundles",
    "run_systems",
]

NAME = "systems"
TITLE = "every system of the papers from one base model, on the same sets (docs/systems.md)"

# As in mirror_train.experiments.systems.table, which cannot be imported for a help text.
SYSTEMS = {
    "mirror": "dropout and span masking, on sentences (Mirror-BERT (Liu et al. 2021))",
    "mirror-words": "dropout, on frequent words (Mirror-BERT (Liu et al. 2021))",
    "mirror-ms": "mirror with multi-similarity on hard triplets "
    "(Mirror-BERT (Liu et al. 2021), footnote 2)",
    "simcse": "dropout alone, one way, on sentences (SimCSE (Gao et al. 2021))",
    "simcse-nli": "inference pairs, contradictions as hard negatives (SimCSE (Gao et al. 2021))",
    "synonyms": "multi-similarity on names of one concept (SapBERT (Liu et al. 2021))",
    "mirror-tokens": "the first step of cf: masked spans of tokens (BERT-CF, 4.1)",
    "flow": "a flow over frozen vectors, on sentences (BERT-flow (Li et al. 2020))",
    "cf": "Mirror-BERT with token spans, then a regularised flow (BERT-CF)",
    "cf-simcse": "the same with SimCSE in the place of Mirror-BERT (BERT-CF, 6.1)",
    "cf-joint": "the same with the encoder unfrozen (BERT-CF, 6.1)",
    "cf-unregularised": "a flow after Mirror-BERT, by likelihood alone (BERT-CF, 6.1)",
    "burt": "inference and paraphrases, by classes (BURT (Li and Zhao 2020))",
    "multitask": "sentiment, paraphrases and similarity at once (BERT-CF, 4.3)",
}

# Options of the other studies, and what they are where they are not given.
_OF_OTHERS = {"strings": None, "words": None, "pairs": None, "recipe": None, "seeds": None,
              "pooling": "auto", "small": False}  # fmt: skip
_OWN = {"systems": None, "seed": None, "max_steps": None, "learning_rate": None,
        "samples": None, "export": True}  # fmt: skip
_SEED, _SAMPLES = 42, 1000


def add_systems_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this study alone."""
    listed = "\n".join(f"  {line}" for line in fill_table(list(SYSTEMS.items())).splitlines())
    group = parser.add_argument_group(
        "systems",
        "only with 'systems'. It takes --data, --lang, --top and the model's options.\n" + listed,
    )
    group.add_argument(
        "--systems", metavar="NAME,...", help="these alone (default: all that --data is enough for)"
    )
    group.add_argument("--seed", type=int, help=f"of every run (default {_SEED})")
    group.add_argument(
        "--max-steps",
        type=int,
        metavar="N",
        help="most optimiser steps of flow, cf, burt and multitask (default: their papers', hours "
        "without a GPU)",
    )
    group.add_argument(
        "--learning-rate",
        type=float,
        metavar="RATE",
        help="of everything that moves the encoder (default: each paper's, made for models of "
        "BERT-base's size; a small one takes a higher rate)",
    )
    group.add_argument(
        "--samples", type=int, metavar="N", help=f"of the bootstrap (default {_SAMPLES})"
    )
    group.add_argument(
        "--no-export",
        dest="export",
        action="store_false",
        help="evaluate with PyTorch, not through exported bundles",
    )


def check_systems_options(arguments: argparse.Namespace) -> None:
    """Raise ConfigError where an option does not go with the study that was named."""
    own = arguments.name == NAME
    for name, default in (_OF_OTHERS if own else _OWN).items():
        if getattr(arguments, name) != default:
            option = "--no-export" if name == "export" else f"--{name.replace('_', '-')}"
            raise ConfigError(f"{option} does not go with the study {arguments.name!r}")


def run_systems(arguments: argparse.Namespace) -> int:
    """Run the study; return 1 where a system failed."""
    from mirror_train import DEFAULT_MODEL
    from mirror_train.experiments.systems import (
        SystemsConfig,
        figures_table,
        open_with_torch,
        write_report,
    )
    from mirror_train.experiments.systems import run_systems as run

    if arguments.data is None:
        raise ConfigError("study systems needs --data DIR: docs/systems.md says what is in it")
    config = SystemsConfig(
        data=arguments.data,
        out=arguments.out,
        systems=None if arguments.systems is None else arguments.systems.split(","),
        model=arguments.model or DEFAULT_MODEL,
        revision=arguments.revision,
        language=arguments.lang,
        top=arguments.top,
        max_steps=arguments.max_steps,
        learning_rate=arguments.learning_rate,
        seed=_SEED if arguments.seed is None else arguments.seed,
        samples=_SAMPLES if arguments.samples is None else arguments.samples,
        precision=arguments.precision,
        device=arguments.device,
        offline=arguments.offline,
    )
    check_free(arguments.out / "runs" / "row", overwrite=True)  # --out may be a file
    open_model = open_bundles(config) if arguments.export else open_with_torch(config)
    try:
        rows, left_out = run(config, open_model, on_start=_print_start, on_row=_print_row)
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


def open_bundles(config: SystemsConfig) -> Callable[[str, str], Opened]:
    """Evaluate models as they are used: exported, compared with PyTorch, run by onnxruntime."""
    from mirror_export import ExportConfig, export_bundle
    from mirror_train.experiments.systems import BASE, Opened
    from mirror_train.model.declared_modules import declared_head
    from mirror_train.model.pretrained import load_pretrained

    def open_model(name: str, model: str) -> Opened:
        out = config.out / "bundles" / name
        revision = config.revision if name == BASE else None
        folder = load_pretrained(model, revision=revision, offline=config.offline).folder
        export_bundle(
            ExportConfig(
                model,
                out,
                pooling="auto" if declared_head(folder) else "mean",  # as `TorchEncoder.load`
                revision=revision,
                overwrite=True,
                offline=config.offline,
            )
        )
        variant = Manifest.read(out).variants["fp32"]
        return Opened(Encoder.load(out), f"bundle {describe_parity(variant)}")

    return open_model


def _print_start(name: str) -> None:
    print(f"{name} ...", flush=True)


def _print_row(row: Row) -> None:
    if row.tuned.error is not None:
        print(f"{row.system}: failed: {row.tuned.error}", flush=True)
        return
    figures = [
        f"{result.measure.set} {result.outcome.value:.4f}"
        for result in row.results
        if result.outcome.ranked and result.measure.metric in ("spearman", "accuracy @1")
    ]
    print(f"{row.system}: {', '.join(figures)} ({row.tuned.seconds:.0f} s)", flush=True)
