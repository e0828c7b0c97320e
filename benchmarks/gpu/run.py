"""Run the steps of benchmarks/gpu.sh, keep the findings of each, and sum them up.

    bash benchmarks/gpu.sh OUT [--stage N ...] [--parts FOLDER] [--work FOLDER] [--again]
                               [--patience FACTOR] [--device cpu] [--list]

A step is a command in a process of its own. It has a time limit, its failure does not stop the
next step, and its verdict, figures and log are written as soon as it ends:

    OUT/gpu.json   every step: verdict, seconds, figures
    OUT/gpu.md     the goals (measured, met or missed), the steps and the tables of figures
    OUT/log.txt    what the steps printed

They are copies: what is known lies in the folder of --work, so OUT may be emptied between two runs.
A second run repeats only the steps that have not passed (--again repeats all). If the sources have
changed in between, it starts from the beginning.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # for the other folders

from helpers import write_whole

PASSED, FAILED, OVERRAN, LEFT_OUT = "passed", "failed", "over time", "left out"
# A step with less time left than this is not started.
_LEAST_SECONDS = 5.0
_TAIL_LINES = 12
_LOG_BYTES = 8 << 20  # of the end of the log, in the report
_TOOLS = "/usr/local/cuda/bin"  # where the CUDA toolkit is, even if it is not on the path

Record = dict[str, Any]
State = dict[str, Any]


@dataclass(frozen=True)
class Step:
    """One command of a stage.

    Attributes:
        name: unique among all steps.
        command: program and arguments, run in the repository's root; `{result}` among them stands
            for the JSON file to which the step writes its figures.
        limit: seconds after which the process and its children are killed.
        environment: variables on top of the runner's own.
        needs: names of steps that must have passed before this one can run.
    """

    name: str
    command: Sequence[str]
    limit: float
    environment: Mapping[str, str] = field(default_factory=dict)
    needs: Sequence[str] = ()


@dataclass(frozen=True)
class Stage:
    """Steps that run in order; together they may take `budget` seconds."""

    title: str
    budget: float
    steps: Sequence[Step]


class Runner:
    """Runs stages, keeps their state in a folder, and copies it out after every step.

    Args:
        out: folder of the report; made if it does not exist.
        work: folder of the state, and of the files that steps leave for one another.
        about: description of the run for the report; `sources` names the version of the code.
        summarize: makes the report in Markdown from the state.
    """

    def __init__(
        self, out: Path, work: Path, about: Mapping[str, str], summarize: Callable[[State], str]
    ) -> None:
        self.out, self.work, self._summarize = out, work, summarize
        work.mkdir(parents=True, exist_ok=True)
        self._kept, self._log = work / "state.json", work / "log.txt"
        self.state: State = {"about": dict(about), "stages": {}, "steps": {}}
        if self._kept.is_file():
            old = json.loads(self._kept.read_text())
            if old["about"].get("sources") == about.get("sources"):
                self.state = old
            else:
                print(f"{self._kept} is of other sources: everything runs again")
                self._log.unlink(missing_ok=True)
        self.save()

    def run(self, stages: Mapping[int, Stage], chosen: Sequence[int], *, again: bool) -> None:
        for number in chosen:
            self._run_stage(number, stages[number], again=again)

    def _run_stage(self, number: int, stage: Stage, *, again: bool) -> None:
        print(f"\n== stage {number}: {stage.title} ({stage.budget:.0f} s)", flush=True)
        began = time.monotonic()
        for step in stage.steps:
            if not again and self.state["steps"].get(step.name, {}).get("verdict") == PASSED:
                print(f"   {step.name}: passed before", flush=True)
                continue
            left = stage.budget - (time.monotonic() - began)
            record = {"stage": number, "limit": step.limit} | self._run_step(step, left)
            print(f"   {step.name}: {record['verdict']}, {record['seconds']:.0f} s of "
                  f"{step.limit:.0f} s{said(record)}", flush=True)  # fmt: skip
            self.state["steps"][step.name] = record
            self.save()
        seconds = time.monotonic() - began
        self.state["stages"][str(number)] = {
            "title": stage.title, "budget": stage.budget, "seconds": seconds,
        }  # fmt: skip
        self.save()

    def _run_step(self, step: Step, left: float) -> Record:
        missing = [
            name
            for name in step.needs
            if self.state["steps"].get(name, {}).get("verdict") != PASSED
        ]
        if missing:
            return {"verdict": LEFT_OUT, "why": f"needs {', '.join(missing)}", "seconds": 0.0}
        if left < _LEAST_SECONDS:
            return {"verdict": LEFT_OUT, "why": "the time of its stage is spent", "seconds": 0.0}
        if shutil.which(step.command[0]) is None:
            why = f"{step.command[0]} is not on this machine"
            return {"verdict": LEFT_OUT, "why": why, "seconds": 0.0}
        result, log = self.work / f"{step.name}.json", self.work / f"{step.name}.log"
        result.unlink(missing_ok=True)
        command = [word.replace("{result}", str(result)) for word in step.command]
        began = time.monotonic()
        with log.open("w") as stream:
            stream.write(f"$ {' '.join(command)}\n")
            stream.flush()
            environment = os.environ | dict(step.environment)
            record = _run_process(command, environment, stream, min(step.limit, left))
        record["seconds"] = time.monotonic() - began
        lines = log.read_text(errors="replace").splitlines()
        with self._log.open("a") as stream:
            print(f"== {step.name}: {record['verdict']}", *lines, "", sep="\n", file=stream)
        if record["verdict"] != PASSED:
            record["tail"] = lines[1:][-_TAIL_LINES:]
        if result.is_file():
            with contextlib.suppress(json.JSONDecodeError):  # it was killed while writing
                record["result"] = json.loads(result.read_text())
        return record

    def save(self) -> None:
        """Keep the state, and write the report anew."""
        text = json.dumps(self.state, indent=1) + "\n"
        write_whole(self._kept, text)
        self.out.mkdir(parents=True, exist_ok=True)
        write_whole(self.out / "gpu.json", text)
        if self._log.is_file():
            end = self._log.read_bytes()[-_LOG_BYTES:].decode(errors="replace")
            write_whole(self.out / "log.txt", end)
        try:
            write_whole(self.out / "gpu.md", self._summarize(self.state))
        except Exception as error:  # noqa: BLE001 - figures of a killed step may be incomplete
            print(f"gpu.md cannot be written: {type(error).__name__}: {error}", flush=True)


def _run_process(
    command: Sequence[str], environment: Mapping[str, str], log: Any, seconds: float
) -> Record:
    """Run a command to its end, or kill it and its children after `seconds`."""
    process = subprocess.Popen(
        list(command), stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT,
        env=environment, start_new_session=True,
    )  # fmt: skip
    try:
        status = process.wait(timeout=seconds)
    except subprocess.TimeoutExpired:
        return {"verdict": OVERRAN, "why": f"killed after {seconds:.0f} s"}
    finally:
        _end_session(process.pid)
        process.wait()
    if status == 0:
        return {"verdict": PASSED}
    return {"verdict": FAILED, "why": f"exit status {status}"}


def _end_session(session: int) -> None:
    """Kill all processes of a session, also children that outlive their parents.

    They may hold memory of the GPU, or, as compilers, which ninja puts into groups of their own,
    take the processors from the next step.
    """
    found = True
    while found:
        found = False
        for entry in Path("/proc").iterdir():
            with contextlib.suppress(ProcessLookupError, ValueError):
                if os.getsid(int(entry.name)) == session and _is_alive(entry):
                    os.kill(int(entry.name), signal.SIGKILL)
                    found = True


def _is_alive(entry: Path) -> bool:
    """Return whether a process in /proc still runs; one that has ended waits for its parent."""
    with contextlib.suppress(OSError):
        return (entry / "stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    return False


def said(record: Record) -> str:
    """Return why a step did not pass, with the last line that it printed."""
    tail = [line for line in record.get("tail", []) if line.strip()][-1:]
    return "".join(f": {text}" for text in [record.get("why"), *tail] if text)


def patient(stage: Stage, factor: float) -> Stage:
    """Return the stage with `factor` times the time."""
    steps = [replace(step, limit=factor * step.limit) for step in stage.steps]
    return replace(stage, budget=factor * stage.budget, steps=steps)


def main() -> int:
    from gpu.report import summarize
    from gpu.steps import CARRYING, about, make_stages

    arguments = _parse()
    os.environ["PATH"] = os.pathsep.join((os.environ.get("PATH", os.defpath), _TOOLS))
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the running step ends, too
    stages = {
        number: patient(stage, arguments.patience)
        for number, stage in make_stages(arguments).items()
    }
    if arguments.list:
        for number, stage in stages.items():
            print(f"stage {number}: {stage.title} ({stage.budget:.0f} s)")
            for step in stage.steps:
                print(f"   {step.name} ({step.limit:.0f} s): {' '.join(step.command)}")
        seconds = CARRYING + sum(stage.budget for stage in stages.values())
        print(f"all, with {CARRYING} s to start a machine and carry the boxes: {seconds:.0f} s")
        return 0
    if unknown := [number for number in arguments.stage or () if number not in stages]:
        sys.exit(f"gpu.sh: --stage {unknown[0]}: the stages are {', '.join(map(str, stages))}")
    runner = Runner(arguments.out, arguments.work / "steps", about(arguments), summarize)
    runner.run(stages, arguments.stage or list(stages), again=arguments.again)
    print(f"\n{(arguments.out / 'gpu.md').read_text()}\nreport: {arguments.out}/gpu.md")
    steps = runner.state["steps"].values()
    return int(any(record["verdict"] != PASSED for record in steps))


def _parse() -> argparse.Namespace:
    root = Path(__file__).resolve().parents[2]
    parser = argparse.ArgumentParser(
        prog="gpu.sh", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=Path, help="folder of the report")
    parser.add_argument("--stage", type=int, action="append", help="run this one; may be repeated")
    parser.add_argument("--parts", type=Path, help="what benchmarks/gpu/parts.sh made, or some of "
                        "it (default: build/gpu-parts)")  # fmt: skip
    parser.add_argument("--work", type=Path, help="what steps leave for one another: packages, "
                        "models (default: build/gpu)")  # fmt: skip
    parser.add_argument("--again", action="store_true", help="repeat steps that have passed")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda",
                        help="cpu: few texts and rows on the CPU, to rehearse the run")  # fmt: skip
    parser.add_argument("--patience", type=float, default=1.0, metavar="FACTOR",
                        help="multiply every limit, on a slow machine (default 1)")  # fmt: skip
    parser.add_argument("--list", action="store_true", help="show the steps and run none")
    arguments = parser.parse_args()
    arguments.root = root
    arguments.out = arguments.out.resolve()
    arguments.parts = (arguments.parts or root / "build" / "gpu-parts").resolve()
    arguments.work = (arguments.work or root / "build" / "gpu").resolve()
    arguments.started = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%MZ")
    os.chdir(root)
    return arguments


if __name__ == "__main__":
    sys.exit(main())
