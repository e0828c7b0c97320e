"""Run `mirror-rt evaluate`: compare models over sets in a folder, and write a report."""

from __future__ import annotations

import datetime
import sys
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

from mirror_rt.bundle.manifest import Layout
from mirror_rt.bundle.pack_index import PackIndex, is_pack
from mirror_rt.cli.common import LoadingOptions
from mirror_rt.cli.parsing.invocation import Invocation
from mirror_rt.cli.parsing.options import Group, Help
from mirror_rt.encoding.batch_encoder import BatchEncoder
from mirror_rt.errors import BundleError, ConfigError, require
from mirror_rt.evaluation.html import to_html
from mirror_rt.evaluation.models import EvaluatedModel
from mirror_rt.evaluation.report import Header, figure_cells, to_json
from mirror_rt.evaluation.run import Evaluation, evaluate_sets
from mirror_rt.evaluation.static_vectors import is_static
from mirror_rt.evaluation.suites import SUITES, EvaluationSet, Found, SuiteOptions, find_sets
from mirror_rt.io.atomic import check_free, new_file, write_json
from mirror_rt.io.tables import text_table
from mirror_rt.languages.tags import language_key
from mirror_rt.progress import progress_bar
from mirror_rt.version import __version__


@dataclass(frozen=True, kw_only=True)
class Evaluate(Invocation):
    """Evaluate models over suites of sets in a folder, and write a report.

    Runs bundles without torch, and Hugging Face folders with it. 'mirror-rt evaluate
    similarity' and 'mirror-rt evaluate geometry' look at one file.

    Examples:
        mirror-rt evaluate bundle --suite all --data DIR --out report --allow-missing
        mirror-rt evaluate before=bundle after=tuned --suite words bli --data DIR --out report
    """

    model: Annotated[
        tuple[str, ...],
        Help("bundles, packs, Hugging Face folders or names, or folders that have one for each "
             "language, or word vectors (.vec, .txt, .bin); several are compared; M:cls has a "
             "pooling of its own", "[LABEL=]M",
             word=True),
    ]  # fmt: skip
    suite: Annotated[
        tuple[str, ...], Help(f"suites to evaluate: {', '.join(SUITES)}, or all", many=True)
    ]
    data: Annotated[Path, Help("folder of evaluation sets", "DIR")]
    out: Annotated[Path, Help("folder for the report", "REPORT")]
    overwrite: Annotated[bool, Help("replace an earlier report")] = False
    allow_missing: Annotated[
        bool, Help("end with 0 though sets that the paper reports are not in --data")
    ] = False
    samples: Annotated[int, Help("samples of the bootstrap; 0: no intervals")] = 1000
    options: Annotated[SuiteOptions, Group()]
    no_plots: Annotated[bool, Help("a report without plots")] = False
    quiet: Annotated[bool, Help("no progress bar")] = False
    loading: Annotated[LoadingOptions, Group()]

    def run(self) -> int:
        """Run the command; return 1 if a set failed or, without --allow-missing, is missing."""
        _check(self.samples, self.options)
        if not self.no_plots:
            purpose = "a report with plots (or --no-plots)"
            require("matplotlib", extra="evaluate|demo", purpose=purpose)
        suites = list(SUITES) if self.suite == ("all",) else list(dict.fromkeys(self.suite))
        found = find_sets(self.data, suites, self.options)
        sources = dict(_labelled(spec) for spec in self.model)
        if len(sources) < len(self.model):
            raise ConfigError("two models have the same label: name them, --model a=M1 b=M2")
        check_free(self.out, overwrite=self.overwrite)
        for one in found.missing:  # said first, as the sets that are there may take long
            print(f"missing: {one}", file=sys.stderr)
        for left in found.left_out:
            name = f"{left.suite}/{left.name}"
            why = "models are trained on it or chosen by it"
            print(f"left out: {name}, as {why}: --suite {name} measures it", file=sys.stderr)
        models = [_model(label, path, self.loading) for label, path in sources.items()]
        header = Header(
            generator=f"mirror_rt {__version__}",
            created=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            data=str(self.data),
            models=sources,
            suites=suites,
            missing=found.missing,
            samples=self.samples,
            seed=self.options.seed,
            geometry_texts=self.options.geometry_texts,
        )
        evaluation = _evaluate(self, header, models, found)
        _print(evaluation)
        print(f"\n{self.out / 'report.html'}")
        return _exit_code(evaluation, found.missing, self.allow_missing)


def _check(samples: int, options: SuiteOptions) -> None:
    for name, value in {"samples": samples, **asdict(options)}.items():
        if value < 0:
            raise ConfigError(field=name, expected="at least 0", value=value)


def _evaluate(
    call: Evaluate, header: Header, models: list[EvaluatedModel], found: Found
) -> Evaluation:
    """Evaluate; write the report after every set, its plots at the end or at Ctrl-C alone."""
    latest = Evaluation(list(header.models))

    def write_html(*, plots: bool) -> None:
        with new_file(call.out / "report.html", overwrite=True) as file:
            file.write(to_html(header, latest, plots=plots).encode())

    def keep(evaluation: Evaluation) -> None:
        nonlocal latest
        latest = evaluation
        bar.update(1)
        write_json(call.out / "report.json", to_json(header, evaluation))
        write_html(plots=False)

    def announce(model: EvaluatedModel, one: EvaluationSet) -> None:
        bar.set_postfix_str(f"{model.label} {one.name}")

    call.out.mkdir(parents=True, exist_ok=True)
    steps = len(models) * len(found.sets)
    bar = progress_bar(steps, not call.quiet, unit="set", desc="evaluate")
    with closing(bar):
        try:
            return evaluate_sets(
                models,
                found.sets,
                samples=call.samples,
                seed=header.seed,
                before=announce,
                after=keep,
            )
        finally:
            write_html(plots=not call.no_plots)


def _labelled(spec: str) -> tuple[str, str]:
    label, equals, path = spec.partition("=")
    if equals and label and path and not Path(spec).exists():
        return label, path
    return spec, spec


def _model(label: str, path: str, loading: LoadingOptions) -> EvaluatedModel:
    """Make a model with one encoder, or with one per language (a pack or a folder of models)."""
    if is_static(Path(path)):
        return EvaluatedModel(label, lambda language: loading.load_evaluated(path))
    path, loading = loading.pooled(path)
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
        return EvaluatedModel(label, lambda language: loading.load_named(path))

    def load(language: str | None) -> BatchEncoder:
        return loading.load_named(str(folder / folders[str(language)]))

    return EvaluatedModel(label, load, languages=frozenset(folders))


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
        print(text_table(["suite", "set", "measure", *evaluation.models, *shown], rows))


def _exit_code(evaluation: Evaluation, missing: list[str], allow_missing: bool) -> int:
    for failure in evaluation.failures:
        outcome = "skipped" if failure.skipped else "failed"
        print(
            f"{outcome}: {failure.suite}/{failure.set} with {failure.model}: {failure.reason}",
            file=sys.stderr,
        )
    if missing and not allow_missing:
        print(
            f"mirror-rt: error: {len(missing)} sets are missing: add them, or pass --allow-missing",
            file=sys.stderr,
        )
        return 1
    return int(any(not failure.skipped for failure in evaluation.failures))
