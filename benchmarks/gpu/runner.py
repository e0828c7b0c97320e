"""Run steps in processes of their own, and keep their findings, also while they run."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from helpers import write_whole

PASSED, FAILED, OVERRAN, LEFT_OUT = "passed", "failed", "over time", "left out"
CUT = "cut short"  # what a step is called that still runs: nobody tells the end of a machine
# A step with less time left than this is not started.
_LEAST_SECONDS = 5.0
_PERIOD = 3.0  # between two copies of what the running step has found
_END_SECONDS = 10.0  # for processes that are killed to end
_TAIL_LINES = 12
_MARK = "MIRROR_RT_GPU_STEPS"  # a variable of all processes of steps
_LOG_BYTES = 2 << 20  # of the end of a log, in the report

Record = dict[str, Any]
State = dict[str, Any]


@dataclass(frozen=True)
class Step:
    """One command of a stage.

    Attributes:
        name: the same name in two stages is the same step.
        command: program and arguments, run in the repository's root; `{result}` among them stands
            for the JSON file to which the step writes its figures.
        limit: seconds after which the process and its children are killed.
        environment: variables on top of the runner's own.
        needs: names of steps that must have passed before this one can run.
        unless: name of a step; this one runs only where that one ran and did not pass.
        wrong_status: the only exit status that says that what is tested is wrong, where others say
            that it could not be tested; 0 for any.
    """

    name: str
    command: Sequence[str]
    limit: float
    environment: Mapping[str, str] = field(default_factory=dict)
    needs: Sequence[str] = ()
    unless: str = ""
    wrong_status: int = 0


@dataclass(frozen=True)
class Stage:
    """Steps that run in order.

    Attributes:
        proof: name of the step that must pass, or else the stage is wrong.
        judges: names of steps that, if they run, must not say that it is wrong.
        seconds_if_wrong: seconds after which the run ends where the proof did not pass, so that a
            second try has the rest.
    """

    title: str
    steps: Sequence[Step]
    proof: str
    judges: Sequence[str] = ()
    seconds_if_wrong: float = float("inf")


class Runner:
    """Runs stages, keeps their state in a folder, and copies it out every few seconds.

    Args:
        out: folder of the report; made if it does not exist.
        work: folder of the state and the logs.
        about: description of the run; `sources` names the version of the code.
        summarize: makes the report in Markdown from the state.
        seconds: time for everything, from now on.
    """

    def __init__(
        self, out: Path, work: Path, about: Mapping[str, str], summarize: Callable[[State], str],
        seconds: float = float("inf"),
    ) -> None:  # fmt: skip
        self.out, self.work, self._summarize = out, work, summarize
        self._began, self._seconds = time.monotonic(), seconds
        work.mkdir(parents=True, exist_ok=True)
        self._end_processes()  # of a run that was cut short
        self._kept, self._log = work / "state.json", work / "log.txt"
        self.state: State = {"about": dict(about), "steps": {}}
        if self._kept.is_file():
            old = json.loads(self._kept.read_text(encoding="utf-8"))
            if old["about"].get("sources") == about.get("sources"):
                self.state = old
            else:
                print(f"{self._kept} is of other sources: everything runs again")
                self._log.unlink(missing_ok=True)
        self.save()

    def run(
        self, number: int, stage: Stage, environment: Mapping[str, str], *, again: bool
    ) -> None:
        print(f"\n== stage {number}: {stage.title}", flush=True)
        for step in stage.steps:
            if not again and self._verdict_of(step.name) == PASSED:
                print(f"   {step.name}: passed before", flush=True)
                continue
            record: Record = {"stage": number, "limit": step.limit, "seconds": 0.0}
            record |= {"wrong_status": step.wrong_status} if step.wrong_status else {}
            self.state["steps"][step.name] = record
            left = self._seconds_left(stage)
            if why := self._obstacle(step, left):
                record |= {"verdict": LEFT_OUT, "why": why}
            else:
                self._run_step(step, record, {**environment, **step.environment}, left)
            print(f"   {step.name}: {record['verdict']}, {record['seconds']:.0f} s of "
                  f"{step.limit:.0f} s{said(record)}", flush=True)  # fmt: skip
            self.save()

    def verdict(self, stages: Mapping[int, Stage]) -> str | None:
        """Return `right`, `wrong` or `hangs` for the stages that ran; None if none did."""
        ran = [stage for stage in stages.values() if self._verdict_of(stage.proof) is not None]
        names = [name for stage in ran for name in (stage.proof, *stage.judges)]
        proofs = {self._verdict_of(stage.proof) for stage in ran}
        if OVERRAN in proofs or any(map(self._hung, names)):
            return "hangs"
        if proofs - {PASSED} or any(map(self._is_wrong, names)):
            return "wrong"
        return "right" if ran else None

    def _hung(self, name: str) -> bool:
        """Return whether a step told of something that did not end."""
        return bool(self.state["steps"].get(name, {}).get("result", {}).get("hung"))

    def _is_wrong(self, name: str) -> bool:
        """Return whether a step failed in a way that tells."""
        record = self.state["steps"].get(name, {})
        tells = record.get("wrong_status", 0)
        return record.get("verdict") == FAILED and tells in (0, record.get("status"))

    def _verdict_of(self, name: str) -> str | None:
        verdict: str | None = self.state["steps"].get(name, {}).get("verdict")
        return verdict

    def _seconds_left(self, stage: Stage) -> float:
        seconds = self._seconds
        if self._verdict_of(stage.proof) in (FAILED, OVERRAN):
            seconds = min(seconds, stage.seconds_if_wrong)
        return self._began + seconds - time.monotonic()

    def _obstacle(self, step: Step, left: float) -> str | None:
        """Return why a step cannot run; None if it can."""
        if missing := [name for name in step.needs if self._verdict_of(name) != PASSED]:
            return f"needs {', '.join(missing)}"
        if step.unless and self._verdict_of(step.unless) not in (FAILED, OVERRAN):
            return f"asks what is wrong where {step.unless} fails"
        if left < _LEAST_SECONDS:
            return "the time is spent"
        if shutil.which(step.command[0]) is None:
            return f"{step.command[0]} is not on this machine"
        return None

    def _run_step(
        self, step: Step, record: Record, environment: Mapping[str, str], left: float
    ) -> None:
        """Run a step to its end, and note meanwhile its findings."""
        result, log = self.work / f"{step.name}.json", self.work / f"{step.name}.log"
        scratch = self.work / "scratch"  # emptied after each step, so that none fills the disk
        result.unlink(missing_ok=True)
        scratch.mkdir(exist_ok=True)
        began = time.monotonic()

        def note(ending: Record) -> None:
            record.update(ending, seconds=time.monotonic() - began)
            _add_findings(record, log, result)

        def copy() -> None:
            note({"verdict": CUT})
            self.save(log)

        command = [word.replace("{result}", str(result)) for word in step.command]
        variables = {**environment, "TMPDIR": str(scratch), _MARK: str(self.work)}
        try:
            with log.open("w", encoding="utf-8") as stream:
                print(f"$ {' '.join(command)}", file=stream, flush=True)
                ending = self._run_process(command, variables, stream, min(step.limit, left), copy)
        except OSError as error:  # a full disk
            ending = {"verdict": FAILED, "why": str(error)}
        shutil.rmtree(scratch, ignore_errors=True)
        note(ending)
        if record["verdict"] == PASSED:
            record.pop("tail", None)
        with _tolerated(self._log), self._log.open("a", encoding="utf-8") as stream:
            print(f"== {step.name}: {record['verdict']}\n{_end_of(log)}", file=stream)

    def _run_process(
        self, command: Sequence[str], environment: Mapping[str, str], log: Any, seconds: float,
        copy: Callable[[], None],
    ) -> Record:  # fmt: skip
        """Run a command to its end, or kill it and its children after `seconds`; copy meanwhile.

        They stay in this session, for some machines end what a command left, but no other sessions.
        """
        streams: Any = {"stdout": log, "stderr": subprocess.STDOUT, "stdin": subprocess.DEVNULL}
        process = subprocess.Popen(command, env=environment, **streams)
        until = time.monotonic() + seconds
        try:
            while (status := _wait(process, min(_PERIOD, until - time.monotonic()))) is None:
                if time.monotonic() >= until:
                    return {"verdict": OVERRAN, "why": f"killed after {seconds:.0f} s"}
                copy()
        finally:
            self._end_processes()
            _wait(process, _END_SECONDS)
        if status == 0:
            return {"verdict": PASSED}
        why = f"ended by {signal.Signals(-status).name}" if status < 0 else f"exit status {status}"
        return {"verdict": FAILED, "status": status, "why": why}

    def _end_processes(self) -> None:
        """Kill all processes of steps, also children that outlive their parents.

        They may hold memory of the GPU, or, as compilers, take processors from the next step. One
        that waits for a driver that hangs does not end: it is left behind.
        """
        mark, until = f"{_MARK}={self.work}".encode(), time.monotonic() + _END_SECONDS
        while found := [entry for entry in Path("/proc").iterdir() if _has_mark(entry, mark)]:
            for entry in found:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(entry.name), signal.SIGKILL)
            if time.monotonic() >= until:
                print(f"still there: {', '.join(entry.name for entry in found)}", flush=True)
                return

    def save(self, running: Path | None = None) -> None:
        """Keep the state, and write the report anew, with the log of the running step.

        Where the disk is full a file keeps its last content.
        """
        text = json.dumps(self.state, indent=1) + "\n"
        lines = f"== running\n{_end_of(running)}" if running else ""
        with _tolerated(self._kept):
            write_whole(self._kept, text)
        with _tolerated(self.out):
            self.out.mkdir(parents=True, exist_ok=True)
            write_whole(self.out / "gpu.json", text)
            write_whole(self.out / "log.txt", _end_of(self._log) + lines)
        try:
            write_whole(self.out / "gpu.md", self._summarize(self.state))
        except Exception as error:  # noqa: BLE001 - figures of a killed step may be incomplete
            print(f"gpu.md cannot be written: {type(error).__name__}: {error}", flush=True)


@contextlib.contextmanager
def _tolerated(path: Path) -> Iterator[None]:
    """Go on where a file cannot be written, as on a full disk, and say so."""
    try:
        yield
    except OSError as error:
        print(f"{path} cannot be written: {error}", flush=True)


def _end_of(log: Path) -> str:
    return log.read_bytes()[-_LOG_BYTES:].decode(errors="replace") if log.is_file() else ""


def _add_findings(record: Record, log: Path, result: Path) -> None:
    """Add the last lines that a step printed, and its figures so far."""
    record["tail"] = _end_of(log).splitlines()[1:][-_TAIL_LINES:]
    with contextlib.suppress(OSError, json.JSONDecodeError):  # not there, or just being written
        record["result"] = json.loads(result.read_text(encoding="utf-8"))


def _wait(process: subprocess.Popen[bytes], seconds: float) -> int | None:
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(timeout=max(0.0, seconds))
    return process.returncode


def _has_mark(entry: Path, mark: bytes) -> bool:
    """Return whether a process in /proc runs and has the mark in its environment."""
    with contextlib.suppress(OSError):
        return mark in (entry / "environ").read_bytes().split(b"\0")
    return False  # it is another user's, or has ended


def said(record: Record) -> str:
    """Return why a step did not pass, with the last line that it printed."""
    if record["verdict"] == PASSED:
        return ""
    tail = [line for line in record.get("tail", []) if line.strip()][-1:]
    return "".join(f": {text}" for text in [record.get("why"), *tail] if text)
