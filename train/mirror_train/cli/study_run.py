"""Run a study at the command line: a line for each run, and the report."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

from mirror_rt.errors import require
from mirror_rt.io.atomic import check_free
from mirror_rt.progress import describe_seconds, progress_bar
from mirror_train.experiments.study import Run, Study, StudyConfig

if TYPE_CHECKING:
    from mirror_train.experiments.runner import Opener

    Plan = tuple[Study, StudyConfig, Opener | None]


def run_and_report(name: str, out: Path, plan: Callable[[], Plan]) -> int:
    """Run a study with a line for each run, and write its report; return 1 where a row failed."""
    check_free(out / "runs" / "row", overwrite=True)  # `out` may be a file
    for module in ("matplotlib", "scipy"):
        require(module, extra="study", purpose="mirror-rt study")
    from mirror_train.experiments.report import Report
    from mirror_train.experiments.runner import run_study

    # On a terminal somebody sees that it runs; a log needs lines between those of the runs.
    in_a_log, desc = not sys.stderr.isatty(), f"study {name}"
    with closing(progress_bar(None, in_a_log, unit="finished run", desc=desc)) as bar:
        planned, config, open_model = plan()
        for what, reason in planned.left_out.items():
            print(f"left out, {what}: {reason}")

        def show(run: Run, done: int, total: int, left: float) -> None:
            bar.update(1)
            print(_line(run, done, total, left), flush=True)

        try:
            runs = run_study(planned, config, open_model=open_model, on_run=show)
        except KeyboardInterrupt as error:
            raise KeyboardInterrupt(
                f"interrupted; the same command goes on with the runs in {out}"
            ) from error
    report = Report(planned, config, runs)
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
    took = "kept from an earlier run, " * run.kept + f"{run.seconds:.1f} s"
    return f"[{done}/{total}] {run.label}{seed}: {found} ({took}){rest}"
