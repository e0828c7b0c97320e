"""benchmarks/gpu.sh: what becomes of a step, of the next ones, of a second run; what they find."""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from unittest import mock

import pytest
import torch

from paths import ROOT

sys.path.append(str(ROOT / "benchmarks"))
from gpu import faults, report, runner
from gpu.report import goals, summarize
from gpu.runner import CUT, FAILED, LEFT_OUT, OVERRAN, PASSED, Runner, Stage, Step
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


def until(condition):
    """Wait for an event; the test's own limit ends what does not come."""
    while not condition():
        time.sleep(0.05)


CUT_RUN = """
import json, os, sys
from pathlib import Path
from gpu import runner
from gpu.report import summarize
runner._PERIOD = 0.1
folder, *commands = map(str, sys.argv[1:])
steps = [runner.Step(f"s{i}", [sys.executable, "-c", code, "{result}"], 60)
         for i, code in enumerate(commands)]
made = runner.Runner(Path(folder, "out"), Path(folder, "work"), {"sources": "a"}, summarize)
made.run(1, runner.Stage("cut", steps, "s0"), os.environ, again=False)
print("VERDICT:", made.verdict({1: runner.Stage("cut", steps, "s0")}))
"""


@pytest.mark.parametrize(
    ("place", "how"), [(0, signal.SIGKILL), (1, signal.SIGTERM), (2, signal.SIGKILL)]
)
def test_a_cut_leaves_what_was_found_and_the_next_run_goes_on(tmp_path, place, how):
    """Nobody tells the run of its end; the step that ran is not left behind either."""
    mark, counter = tmp_path / "hangs", tmp_path / "counter"
    mark.touch()
    code = [f"open({str(counter)!r}, 'a').write('{i}')" for i in range(3)]
    waits = f"while os.path.exists({str(mark)!r}): time.sleep(.1)"
    tells = f"{WRITES} import os, time; print('told', os.getpid(), flush=True)"
    code[place] = f"{tells}\n{waits}\n{code[place]}"
    command = [sys.executable, "-c", CUT_RUN, str(tmp_path), *code]
    environment = os.environ | {"PYTHONPATH": str(ROOT / "benchmarks")}
    report, log = tmp_path / "out" / "gpu.json", tmp_path / "out" / "log.txt"

    def is_known():
        return log.is_file() and "told " in log.read_text() and "figure" in report.read_text()

    first = subprocess.Popen(command, env=environment)
    until(is_known)
    left_behind = int(log.read_text().rpartition("told ")[2].split()[0])
    first.send_signal(how)
    first.wait()
    steps = json.loads(report.read_text())["steps"]
    assert [of["verdict"] for of in steps.values()] == [PASSED] * place + [CUT]
    assert steps[f"s{place}"]["result"] == {"figure": 7}
    assert f"| s{place} | {CUT} |" in (tmp_path / "out" / "gpu.md").read_text()
    second = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
    until(lambda: not Path(f"/proc/{left_behind}").exists() or second.poll() is not None)
    mark.unlink()
    assert second.communicate()[0].splitlines()[-1] == "VERDICT: right"
    assert counter.read_text() == "012"


@pytest.mark.parametrize(
    ("place", "error"),
    [("write_whole", OSError("No space left on device")), ("said", KeyError("texts_per_second"))],
)
def test_a_report_that_cannot_be_written_stops_nothing(tmp_path, capsys, place, error):
    """The disk is full, or figures of a killed step are incomplete."""

    def fails(*_):
        raise error

    with mock.patch.object(runner if place == "write_whole" else report, place, fails):
        made = Runner(tmp_path / "out", tmp_path / "work", {"sources": "a"}, summarize)
        made.run(1, Stage("full", [step("one"), step("two")], "one"), os.environ, again=False)
    assert [of["verdict"] for of in made.state["steps"].values()] == [PASSED, PASSED]
    assert str(error) in capsys.readouterr().out


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


FIGURES = {"forward_ms": 1.0, "total_ms": 20.0, "forward_products": 0.6, "total_products": 3.0,
           "peak_mb": 500.0}  # fmt: skip
SIZE = {"rows": 65_536, "dim": 768, "product_ms": 2.0, "product_ms_by_dtype": {"float16": 2.0},
        "contenders": {"mirror_rt, core tma": FIGURES, "PyTorch": FIGURES | {"total_ms": 10.0}},
        "left_out": {"torch.compile": "52 GB"}}  # fmt: skip
RATE = {"texts_per_second": 9.0, "p50_ms": 1.0, "p95_ms": 2.0}
O4 = "sentence-transformers ONNX O4"
RESULTS = {
    "speed": {"machine": {}, "results": [SIZE, None]},  # the second size was cut short
    "rivals": {"machine": {}, "results": [SIZE]},
    "tests-mma": {"passed": 3, "failed": ["tests/test_x.py::test_y"], "skipped": {"no card": 1}},
    "encode-base": {
        "texts": 3, "versions": {}, "left_out": {}, "agreement": {
            "mirror-rt fp16-cuda": {"batch": 1.0, "alone": 1.0}},
        "batch": {"mirror-rt fp16-cuda": 32},
        "rounds": [{"mirror-rt fp16-cuda": RATE, O4: RATE | {"texts_per_second": 6.0}}]},
}  # fmt: skip
STATE = {"about": {}, "steps": {
    name: {"stage": 1, "verdict": FAILED if name == "tests-mma" else PASSED, "seconds": 1.0,
           "limit": 9.0, "result": result}
    for name, result in RESULTS.items()
}}  # fmt: skip


def test_goals_are_judged_by_the_figures():
    found = {text: (value, met) for text, _, value, met in goals(STATE, RESULTS)}
    assert found["forward, 65,536 rows, D = 768, in matrix products"] == ("0.60", True)
    assert found["forward + backward, 65,536 rows, D = 768, in matrix products"] == ("3.00", False)
    assert found["time of the loss / PyTorch, 65,536 rows, D = 768"] == ("2.00", False)
    assert found["tests of the kernels, core mma"] == ("3 passed, 1 failed, 1 skipped", False)
    assert found[f"base: texts/s: mirror-rt fp16-cuda / {O4}"] == ("1.50", False)
    assert not any("1,048,576" in text or "doctor" in text for text in found)  # not measured
    told = summarize(STATE)
    assert "| 65536 | 768 | mirror_rt, core tma | 1.00 | 20.00 |" in told
    assert "| mirror-rt fp16-cuda | 9 | 32 |" in told


def test_the_script_lists_its_steps_with_nothing_but_python(tmp_path):
    """Like on a bare machine: an interpreter without packages, isolated from this one."""
    bare = tmp_path / "python"
    bare.write_text(f'#!/bin/sh\nexec {sys._base_executable} -S "$@"\n')
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


def test_the_first_tile_that_differs_is_named():
    expected = torch.ones(300, 300, dtype=torch.float64)
    found = expected.clone()
    assert faults.differing(found, expected, "z1", 1e-2) == ""
    found[140, 260] = 9.0
    found[299, 299] = float("nan")
    told = faults.differing(found, expected, "z1", 1e-2)
    assert told.startswith("2 of 9 tiles of z1 differ, the first is tile 1 of the rows, 2 of the")


@pytest.mark.parametrize(("ends", "told"), [("hangs", "no end after 1 s"), ("crashes", "with -6")])
def test_the_problems_after_one_that_hangs_are_compared(tmp_path, monkeypatch, ends, told):
    script = tmp_path / "faults.py"
    bad = HANGS if ends == "hangs" else "import os; os.abort()"
    script.write_text(
        "import sys\nprint('ready', flush=True)\nfor i in range(int(sys.argv[-1]), 4):\n"
        f"    if i == 1: {bad}\n    print('{{}}', flush=True)\n"
    )
    monkeypatch.setattr(faults, "__file__", str(script))
    monkeypatch.setattr(faults, "problems", lambda device: range(4))
    first, second, *rest = faults.outcomes("cpu", 1.0 if ends == "hangs" else 60.0)
    assert (first, rest) == ({}, [{}, {}])
    assert told in second["process"]


def test_figures_are_kept_after_each_contender(tmp_path, monkeypatch):
    """So that one that hangs takes nothing of those before it."""
    from loss import compare, contenders

    class HangError(Exception):
        pass

    def hangs(z1, z2):
        raise HangError

    out = tmp_path / "found.json"
    chosen = dict(contenders.CONTENDERS) | {"torch.compile": hangs}
    monkeypatch.setattr(contenders, "disagreement", None)
    monkeypatch.setattr(compare, "CONTENDERS", chosen)
    monkeypatch.setattr(compare, "disagreement", lambda *_: None)
    size = ["--rows", "64", "--dims", "8", "--json", str(out), "--no-products", "--only"]
    names = ["mirror_rt", "PyTorch", "torch.compile"]
    monkeypatch.setattr(sys, "argv", ["compare.py", *size, *names])
    with pytest.raises(HangError):
        compare.main()
    (found,) = json.loads(out.read_text())["results"]
    assert list(found["contenders"]) == names[:2]
    assert all(of["total_ms"] > 0 for of in found["contenders"].values())
    assert all(of["total_products"] is None for of in found["contenders"].values())


def test_the_size_of_values_decides_what_fits():
    from loss.contenders import why_not

    room = 80 * 10**9
    assert why_not("PyTorch", "cuda", "bfloat16", 65_536, room) is None
    assert why_not("PyTorch", "cuda", "float32", 65_536, room) == "needs 86 GB"
