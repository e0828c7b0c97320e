"""Write the results of benchmarks/serve*.py as JSON and as tables."""

from __future__ import annotations

import argparse
import datetime
import json
import re
import shlex
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mirror_rt.diagnostics.benchmarking import machine_name
from mirror_rt.io.tables import markdown_table

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Goal:
    """A figure and its goal.

    Attributes:
        what: description of the figure.
        goal: the least value that the figure should have, or the most.
        found: the figure; None if it was not measured.
        of: the numbers from which the figure is computed.
        most: whether the goal is an upper limit.
    """

    what: str
    goal: float
    found: float | None
    of: str = ""
    most: bool = False

    @property
    def reached(self) -> bool:
        if self.found is None:
            return False
        return self.found <= self.goal if self.most else self.found >= self.goal

    def row(self) -> list[str]:
        found = "not measured" if self.found is None else f"{self.found:.2f}"
        missed = "" if self.reached or self.found is None else ", missed"
        of = f" ({self.of})" if self.of else ""
        kind = "most" if self.most else "least"
        return [self.what, f"at {kind} {self.goal:g}", f"{found}{missed}{of}"]


def goals(rows: list[Goal]) -> list[str]:
    table = markdown_table(["", "goal", "measured"], (row.row() for row in rows), numbers=True)
    return table.splitlines()


def add_output_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results")


def write_report(
    kind: str, found: dict[str, Any], lines: list[str], arguments: argparse.Namespace
) -> Path:
    """Write KIND-DATE-MACHINE .json and .md to `--out`.

    Returns:
        The path of both files, without the suffix.
    """
    machine, date = machine_name(), datetime.datetime.now(datetime.UTC).date().isoformat()
    command = shlex.join(["python", f"benchmarks/serve/{Path(sys.argv[0]).name}", *sys.argv[1:]])
    slug = re.sub(r"[^a-z0-9]+", "-", machine.lower()).strip("-")
    stem = arguments.out / f"{kind}-{date}-{slug}"
    arguments.out.mkdir(parents=True, exist_ok=True)
    about = {"machine": machine, "date": date, "command": command}
    stem.with_suffix(".json").write_text(
        json.dumps({"about": about} | found, indent=1) + "\n", encoding="utf-8"
    )
    text = "\n".join([f"{machine}, {date}. `{command}`", "", *lines]) + "\n"
    stem.with_suffix(".md").write_text(f"# {kind}\n\n{text}", encoding="utf-8")
    print(f"\n{text}\nwritten: {stem}.json, .md")
    return stem
