"""benchmarks/gpu.sh: what becomes of a step, of the next ones, of a second run; what they find."""

from __future__ import annotations

import argparse
import json
import os
import shlex
import subprocess
import sys

import pytest

from paths import ROOT

sys.path.append(str(ROOT / "benchmarks"))
from gpu import runner
from gpu.report import summarize
from gpu.runner import FAILED, LEFT_OUT, OVERRAN, PASSED, Runner, Stage, Step
from gpu.steps import make_stages

pytestmark = pytest.mark.full

WRITES = "import sys, json; open(sys.argv[1], 'w').write(json.dumps({'figure': 7}));"
HANGS = "import time; time.sleep(600)"
HUNG = "import sys, json; open(sys.argv[1], 'w').write(json.dumps({'hung': 'test_x'})); sys.exit(1)"


def step(name, code="", *, limit=60.0, **more):
    return Step(name, [sys.executable, "-c", code, "{result}"], limit, **more)


@pytest.fixture
def run(tmp_path):
    """Run a stage of some steps, and return what became of them and the verdict."""

    def run(*steps, sources="a", again=False, seconds=float("inf"), **more):
        about = {"sources": sources, "device": "cpu"}
        stage = Stage("the stage", steps, **({"proof": steps[0].name} | more))
        made = Runner(tmp_path / "out", tmp_path / "work", about, summarize, seconds)
        made.run(1, stage, os.environ, again=again)
        kept = json.loads((tmp_path / "out" / "gpu.json").read_text())
        assert kept == made.state
        return kept["steps"], made.verdict({1: stage})

    return run


def test_no_step_stops_the_next(run, tmp_path):
    steps, _ = run(
        step("works"),
        step("fails", "print('why it failed'); raise SystemExit(3)"),
        step("crashes", "import os; os.abort()"),
        step("hangs", WRITES + HANGS, limit=1),
        step("waits", needs=["works", "fails"]),
        Step("absent", ["/no/such/program"], 30),
        step("told", "import os; assert os.environ['SAID'] == 'so'", environment={"SAID": "so"}),
    )
    told = {name: (of["verdict"], of.get("why", "")) for name, of in steps.items()}
    assert told == {
        "works": (PASSED, ""),
        "fails": (FAILED, "exit status 3"),
        "crashes": (FAILED, "ended by SIGABRT"),
        "hangs": (OVERRAN, "killed after 1 s"),
        "waits": (LEFT_OUT, "needs fails"),
        "absent": (LEFT_OUT, "/no/such/program is not on this machine"),
        "told": (PASSED, ""),
    }
    assert steps["fails"]["tail"] == ["why it failed"]
    assert steps["hangs"]["result"] == {"figure": 7}  # what it had measured
    assert "== fails: failed\n" in (tmp_path / "out" / "log.txt").read_text()
    report = (tmp_path / "out" / "gpu.md").read_text()
    for name, (verdict, why) in told.items():
        assert f"| 1 | {name} | {verdict} |" in report
        assert why in report


@pytest.mark.parametrize(
    ("proof", "tests", "verdict"),
    [
        (step("proof"), step("tests"), "right"),
        (step("proof"), step("tests", limit=0.0), "right"),  # no time for them
        (step("proof"), step("tests", "raise SystemExit(1)"), "wrong"),
        (step("proof"), step("tests", HUNG), "hangs"),
        (step("proof"), step("tests", "raise SystemExit(1)", wrong_status=86), "right"),
        (step("proof"), step("tests", "raise SystemExit(86)", wrong_status=86), "wrong"),
        (step("proof", "raise SystemExit(1)"), step("tests"), "wrong"),
        (step("proof", "import os; os.abort()"), step("tests"), "wrong"),
        (step("proof", HANGS, limit=0.5), step("tests"), "hangs"),
        (step("proof", needs=["what is not there"]), step("tests"), "wrong"),
    ],
)
def test_the_verdict_and_what_finds_the_fault(run, proof, tests, verdict):
    finds, costs = step("finds", unless="proof"), step("costs", needs=["proof"])
    steps, found = run(proof, tests, costs, finds, judges=["tests"])
    assert found == verdict
    bad = steps["proof"]["verdict"] in (FAILED, OVERRAN)
    assert (steps["costs"]["verdict"] == PASSED) == (steps["proof"]["verdict"] == PASSED)
    assert steps["finds"]["verdict"] == (PASSED if bad else LEFT_OUT)


def test_time_that_is_spent_leaves_out_the_rest(run, monkeypatch):
    """A proof that fails ends the run earlier, for a second try."""
    monkeypatch.setattr(runner, "_LEAST_SECONDS", 1.0)
    steps, _ = run(step("hangs", HANGS), step("late"), seconds=2.0)
    assert [of["verdict"] for of in steps.values()] == [OVERRAN, LEFT_OUT]
    assert steps["late"]["why"] == "the time is spent"
    wrong = step("proof", "raise SystemExit(1)")
    steps, found = run(wrong, step("late"), seconds_if_wrong=0.0)
    assert (steps["late"]["verdict"], found) == (LEFT_OUT, "wrong")


def test_a_second_run_repeats_what_has_not_passed(run, tmp_path):
    """Some machines empty the folder of results before each command."""
    counter = tmp_path / "counter"
    counts = step("counts", f"open({str(counter)!r}, 'a').write('once ')")
    run(counts, step("fails", "raise SystemExit(1)"))
    for path in (tmp_path / "out").iterdir():
        path.unlink()
    assert run(counts, step("fails"))[0]["fails"]["verdict"] == PASSED
    assert counter.read_text() == "once "
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "gpu.json", "gpu.md", "log.txt",
    ]  # fmt: skip
    run(counts, again=True)
    assert list(run(counts, sources="b")[0]) == ["counts"]  # other sources: begun anew
    assert counter.read_text() == "once " * 3


@pytest.mark.parametrize("device", ["cuda", "cpu"])
def test_the_proof_comes_before_all_that_costs_time(device, tmp_path):
    arguments = argparse.Namespace(device=device, parts=tmp_path, work=tmp_path, patience=1)
    for stage in make_stages(arguments).values():
        before: dict[str, Step] = {}
        for one in stage.steps:
            assert one.name not in before
            assert {*one.needs, one.unless} <= {*before, ""}
            if stage.proof not in before and one.name != "install":
                assert one.limit <= 90
            scripts = [word for word in one.command if word.endswith(".py") and "/" in word]
            assert all((ROOT / script).is_file() for script in scripts)
            before[one.name] = one
        assert device == "cpu" or {stage.proof, *stage.judges} <= set(before)
        # If it is wrong or hangs, what finds the fault must have its time.
        needed = [one.limit for one in stage.steps if stage.proof not in one.needs]
        assert min(needed) < stage.seconds_if_wrong


def test_the_script_lists_its_steps_with_nothing_but_python(tmp_path):
    """Like on a bare machine: an interpreter without packages, isolated from this one."""
    bare = tmp_path / "python"
    bare.write_text(f'#!/bin/sh\nexec {shlex.quote(sys._base_executable)} -S "$@"\n')
    bare.chmod(0o755)
    command = ["bash", ROOT / "benchmarks" / "gpu.sh", tmp_path, "--list"]
    environment = {"PATH": "/usr/bin:/bin", "PYTHON": str(bare)}
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    assert "stage 1" in done.stdout
    assert "stage 2" in done.stdout


def test_a_test_that_hangs_is_named(tmp_path):
    (tmp_path / "test_it.py").write_text(
        "import time\ndef test_good(): pass\ndef test_bad(): time.sleep(600)\n"
    )
    script = ROOT / "benchmarks" / "gpu" / "device_tests.py"
    found = tmp_path / "found.json"
    options = ["--json", str(found), "--seconds", "1", "--device", "cpu", "-p", "no:randomly"]
    command = [sys.executable, str(script), *options, str(tmp_path / "test_it.py")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 1
    result = json.loads(found.read_text())
    assert result["hung"].endswith("::test_bad")
    assert result["failed"] == [result["hung"]]
    assert result["passed"] == 1
    assert "time.sleep" in done.stderr or "test_it.py" in done.stderr  # where it hangs
