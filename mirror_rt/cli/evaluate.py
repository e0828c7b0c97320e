"""Run `mirror-rt evaluate`: compare models over sets in a folder, and write a report."""

from __future__ import annotations

import argparse
import datetime
import sys
from contextlib import closing
from dataclasses import asdict
from pathlib import Path

from mirror_rt import __version__
from mirror_rt.bundle.manifest import Layout
from mirror_rt.bundle.pack_index import PackIndex, is_pack
from mirror_rt.cli.common import add_loading_options, format_table, load_named, progress
from mirror_rt.cli.options import add_options, build, from_arguments
from mirror_rt.cli.parser import Subparsers, add_model, add_subparser
from mirror_rt.cli.wording import flag_of
from mirror_rt.encoding.batch_encoder import BatchEncoder
from mirror_rt.errors import BundleError, ConfigError, require
from mirror_rt.evaluation.html import to_html
from mirror_rt.evaluation.models import EvaluatedModel
from mirror_rt.evaluation.report import Header, figure_cells, to_json
from mirror_rt.evaluation.run import Evaluation, evaluate_sets
from mirror_rt.evaluation.suites import SUITES, EvaluationSet, Found, SuiteOptions, find_sets
from mirror_rt.io.atomic import check_free, new_file, write_json
from mirror_rt.languages.tags import language_key
from mirror_rt.progress import progress_bar


def add_parser(commands: Subparsers) -> None:
    """Add the command to the command line."""
    parser = add_subparser(
        commands,
        "evaluate",
        description="Evaluate bundles (with onnxruntime) or Hugging Face folders (with torch)\n"
        "over suites of sets in a folder, and write a report. 'mirror-rt evaluate similarity' and\n"
        "'mirror-rt evaluate geometry' look at one file.",
        examples="""
mirror-rt evaluate bundle --suite all --data DIR --out report --allow-missing
mirror-rt evaluate before=bundle after=tuned --suite words bli --data DIR --out report
""",
    )
    add_model(
        parser,
        help="bundles, packs, Hugging Face folders or names, or folders that have one for each "
        "language; several are compared",
        metavar="[LABEL=]M",
        several=True,
    )
    parser.add_argument(
        "--suite",
        nargs="+",
        required=True,
        metavar="SUITE",
        help=f"what to evaluate: {', '.join(SUITES)}, or all",
    )
    parser.add_argument(
        "--data", required=True, type=Path, metavar="DIR", help="folder of evaluation sets"
    )
    parser.add_argument(
        "--out", required=True, type=Path, metavar="REPORT", help="folder for the report"
    )
    parser.add_argument("--overwrite", action="store_true", help="replace an earlier report")
    parser.add_argument(
        "--allow-missing",
        action="store_true",
        help="end with 0 though sets that the paper reports are not in --data",
    )
    parser.add_argument(
        "--samples",
        type=int,
        default=1000,
        metavar="N",
        help="samples of the bootstrap (default 1000; 0: no intervals)",
    )
    add_options(parser, SuiteOptions)
    parser.add_argument("--no-plots", action="store_true", help="a report without plots")
    parser.add_argument("--quiet", action="store_true", help="no progress bar")
    add_loading_options(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Run the command; return 1 if a set failed or, without --allow-missing, is missing."""
    options = build(SuiteOptions, from_arguments(arguments))
    _check(arguments.samples, options)
    if not arguments.no_plots:
        require("matplotlib", extra="evaluate|demo", purpose="a report with plots (or --no-plots)")
    suites = list(SUITES) if arguments.suite == ["all"] else list(dict.fromkeys(arguments.suite))
    found = find_sets(arguments.data, suites, options)
    sources = dict(_labelled(spec) for spec in arguments.model)
    if len(sources) < len(arguments.model):
        raise ConfigError("two models have the same label: name them, --model a=M1 b=M2")
    check_free(arguments.out, overwrite=arguments.overwrite)
    models = [_model(label, path, arguments) for label, path in sources.items()]
    header = Header(
        generator=f"mirror_rt {__version__}",
        created=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        data=str(arguments.data),
        models=sources,
        suites=suites,
        missing=found.missing,
        samples=arguments.samples,
        seed=options.seed,
        geometry_texts=options.geometry_texts,
    )
    evaluation = _evaluate(arguments, header, models, found)
    _print(evaluation)
    print(f"\n{arguments.out / 'report.html'}")
    return _exit_code(evaluation, found.missing, arguments.allow_missing)


def _check(samples: int, options: SuiteOptions) -> None:
    for name, value in {"samples": samples, **asdict(options)}.items():
        if value < 0:
            raise ConfigError(f"{flag_of(name)} must be at least 0, got {value}")


def _evaluate(
    arguments: argparse.Namespace, header: Header, models: list[EvaluatedModel], found: Found
) -> Evaluation:
    """Evaluate; write report.json after every set, and report.html at the end or at Ctrl-C."""
    latest = Evaluation(list(header.models))

    def keep(evaluation: Evaluation) -> None:
        nonlocal latest
        latest = evaluation
        bar.update(1)
        write_json(arguments.out / "report.json", to_json(header, evaluation))

    def announce(model: EvaluatedModel, one: EvaluationSet) -> None:
        bar.set_postfix_str(f"{model.label} {one.name}")

    arguments.out.mkdir(parents=True, exist_ok=True)
    steps = len(models) * len(found.sets)
    bar = progress_bar(steps, progress(arguments), unit="set", desc="evaluate")
    with closing(bar):
        try:
            return evaluate_sets(
                models,
                found.sets,
                samples=arguments.samples,
                seed=header.seed,
                before=announce,
                after=keep,
            )
        finally:
            with new_file(arguments.out / "report.html", overwrite=True) as file:
                file.write(to_html(header, latest, plots=not arguments.no_plots).encode())


def _labelled(spec: str) -> tuple[str, str]:
    label, equals, path = spec.partition("=")
    if equals and label and path and not Path(spec).exists():
        return label, path
    return spec, spec


def _model(label: str, path: str, arguments: argparse.Namespace) -> EvaluatedModel:
    """Make a model with one encoder, or with one per language (a pack or a folder of models)."""
    folder = Path(path)
    if is_pack(folder):
        index = PackIndex.read(folder)
        folders = {
            language_key(entry.language or name): entry.path
            for name, entry in index.bundles.items()
        }
    elif folder.is_dir() and not _is_model(folder):
        folders = {one.name: one.name for one in sorted(folder.iterdir()) if _is_model(one)}
        if not folders:
            raise BundleError(f"{path} is neither a model nor a folder of models by language")
    else:
        return EvaluatedModel(label, lambda language: load_named(path, arguments))

    def load(language: str | None) -> BatchEncoder:
        return load_named(str(folder / folders[str(language)]), arguments)

    return EvaluatedModel(label, load, key=lambda language: language, languages=frozenset(folders))


def _is_model(folder: Path) -> bool:
    names = (Layout.manifest, "config.json", "modules.json")
    return any((folder / name).is_file() for name in names)


def _print(evaluation: Evaluation) -> None:
    rows = [
        [measure.suite, measure.set, measure.metric, *figure_cells(evaluation, row)]
        for measure, row in evaluation.by_measure().items()
    ]
    shown = ["shown"] * (len(evaluation.models) > 1)
    if rows:
        print(format_table(["suite", "set", "measure", *evaluation.models, *shown], rows))


def _exit_code(evaluation: Evaluation, missing: list[str], allow_missing: bool) -> int:
    for failure in evaluation.failures:
        what = "skipped" if failure.skipped else "failed"
        print(
            f"{what}: {failure.suite}/{failure.set} with {failure.model}: {failure.reason}",
            file=sys.stderr,
        )
    for one in missing:
        print(f"missing: {one}", file=sys.stderr)
    if missing and not allow_missing:
        print(
            f"mirror-rt: error: {len(missing)} sets are missing: add them, or pass --allow-missing",
            file=sys.stderr,
        )
        return 1
    return int(any(not failure.skipped for failure in evaluation.failures))
