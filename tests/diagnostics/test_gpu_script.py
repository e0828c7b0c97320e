"""benchmarks/gpu.sh: what becomes of a step, of the next ones, of a second run; files in pieces."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tarfile
import time
from pathlib import Path

import pytest

from paths import ROOT

sys.path.append(str(ROOT / "benchmarks"))
from gpu import install as gpu_install
from gpu import parts as gpu_parts
from gpu.attention import printed
from gpu.report import attention_goal, goals, summarize
from gpu.run import FAILED, LEFT_OUT, OVERRAN, PASSED, Runner, Stage, Step
from gpu.steps import CARRYING, commit, make_stages

WRITES = "import sys, json; open(sys.argv[1], 'w').write(json.dumps({'figure': 7}))"


def python(code, *words):
    return [sys.executable, "-c", code, *words]


def stages(counter):
    """A step of each kind; `counter` grows by a line whenever the first one runs."""
    count = f"open({str(counter)!r}, 'a').write('once\\n'); print('done')"
    return {
        1: Stage("the first", 60, [
            Step("works", python(count), 30),
            Step("fails", python("print('why it failed'); raise SystemExit(3)"), 30),
            Step("hangs", python(f"{WRITES}; import time; time.sleep(60)", "{result}"), 1),
            Step("writes", python(WRITES, "{result}"), 30),
        ]),
        2: Stage("the second", 60, [
            Step("waits", python("print()"), 30, needs=["works", "fails"]),
            Step("absent", ["/no/such/program"], 30),
            Step("told", python("import os; assert os.environ['SAID'] == 'so'"), 30,
                 {"SAID": "so"}, needs=["works"]),
        ]),
    }  # fmt: skip


@pytest.fixture
def run(tmp_path):
    def run(sources="a", again=False, chosen=(1, 2), all_stages=None):
        about = {"sources": sources, "device": "cpu"}
        runner = Runner(tmp_path / "out", tmp_path / "work", about, summarize)
        runner.run(all_stages or stages(tmp_path / "counter"), chosen, again=again)
        kept = json.loads((tmp_path / "out" / "gpu.json").read_text())
        assert kept == runner.state
        return kept["steps"]

    return run


def test_no_step_stops_the_next(run, tmp_path):
    steps = run()
    verdicts = {name: step["verdict"] for name, step in steps.items()}
    assert verdicts == {
        "works": PASSED, "fails": FAILED, "hangs": OVERRAN, "writes": PASSED,
        "waits": LEFT_OUT, "absent": LEFT_OUT, "told": PASSED,
    }  # fmt: skip
    assert steps["fails"]["why"] == "exit status 3"
    assert steps["fails"]["tail"] == ["why it failed"]
    assert steps["waits"]["why"] == "needs fails"
    assert steps["absent"]["why"] == "/no/such/program is not on this machine"
    # What a killed step had measured is kept.
    assert steps["hangs"]["result"] == steps["writes"]["result"] == {"figure": 7}
    assert 1 <= steps["hangs"]["seconds"] < 30
    log = (tmp_path / "out" / "log.txt").read_text()
    assert "== fails: failed" in log
    assert "why it failed" in log


def test_a_second_run_repeats_what_has_not_passed(run, tmp_path):
    counter = tmp_path / "counter"
    run(chosen=[1])
    assert run(chosen=[1])["works"]["verdict"] == PASSED
    assert counter.read_text() == "once\n"
    run(chosen=[1], again=True)
    assert counter.read_text() == "once\n" * 2
    assert "writes" not in run(sources="b", chosen=[2])  # other sources: begun anew
    assert run(sources="b", chosen=[1])["works"]["verdict"] == PASSED
    assert counter.read_text() == "once\n" * 3


def test_a_report_that_was_taken_away_changes_nothing(run, tmp_path):
    """Some machines empty the folder of results before each command."""
    run(chosen=[1])
    for path in (tmp_path / "out").iterdir():
        path.unlink()
    (tmp_path / "out").rmdir()
    steps = run(chosen=[2])
    assert (steps["works"]["verdict"], steps["told"]["verdict"]) == (PASSED, PASSED)
    assert (tmp_path / "counter").read_text() == "once\n"
    out = list((tmp_path / "out").iterdir())
    assert sorted(path.name for path in out) == ["gpu.json", "gpu.md", "log.txt"]
    assert "== fails: failed" in (tmp_path / "out" / "log.txt").read_text()


def test_the_report_comes_out_after_every_step(run, tmp_path):
    """So that a machine that is taken away leaves what it had found."""
    report = str(tmp_path / "out" / "gpu.json")
    look = f"import json; print(sorted(json.load(open({report!r}))['steps']))"
    stage = Stage("two", 60, [Step("one", python("print()"), 30), Step("two", python(look), 30)])
    run(chosen=[1], all_stages={1: stage})
    assert "['one']" in (tmp_path / "out" / "log.txt").read_text()


def test_a_machine_without_git(monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    assert commit() == "unknown"


def test_a_stage_ends_when_its_time_is_spent(run, monkeypatch):
    monkeypatch.setattr("gpu.run._LEAST_SECONDS", 0.5)
    hangs = Step("hangs", python("import time; time.sleep(60)"), 60)
    late = Step("late", python("print()"), 60)
    steps = run(chosen=[1], all_stages={1: Stage("short", 1, [hangs, late])})
    assert steps["hangs"]["verdict"] == OVERRAN
    assert steps["late"]["verdict"] == LEFT_OUT
    assert steps["late"]["why"] == "the time of its stage is spent"


@pytest.mark.parametrize("group", [None, 0], ids=["its group", "a group of its own"])
def test_children_of_a_step_are_ended_with_it(run, tmp_path, group):
    """Ninja, too, starts compilers in groups of their own."""
    mark = tmp_path / "mark"
    child = f"import time; time.sleep(2); open({str(mark)!r}, 'w').close()"
    start = f"subprocess.Popen([sys.executable, '-c', {child!r}], process_group={group})"
    leaves = python(f"import subprocess, sys; {start}")
    run(chosen=[1], all_stages={1: Stage("leaves a child", 60, [Step("leaves", leaves, 30)])})
    time.sleep(2.5)
    assert not mark.exists()


def test_figures_that_cannot_be_summed_up_stop_nothing(tmp_path, capsys):
    def summarize(state):
        raise KeyError("texts_per_second")

    runner = Runner(tmp_path / "out", tmp_path / "work", {}, summarize)
    two = [Step(name, python("print()"), 30) for name in ("one", "two")]
    runner.run({1: Stage("both", 60, two)}, [1], again=False)
    assert [step["verdict"] for step in runner.state["steps"].values()] == [PASSED, PASSED]
    assert "gpu.md cannot be written: KeyError" in capsys.readouterr().out


def test_the_report_is_complete(run, tmp_path):
    steps = run()
    report = (tmp_path / "out" / "gpu.md").read_text()
    for name, step in steps.items():
        assert f"| {step['stage']} | {name} | {step['verdict']} |" in report
    assert "| 1 | all: the first |" in report
    # Nothing was measured, and every goal says so.
    state = {"about": {}, "stages": {}, "steps": steps}
    asked = list(goals(state, {}))
    assert len(asked) > 30
    assert all(f"| {text} | {target} |  | not measured |" in report for text, target, _ in asked)


def test_goals_are_judged_by_the_figures():
    size = {"rows": 65_536, "dim": 768, "contenders": {
        "mirror_rt": {"forward_products": 0.6, "total_products": 3.0, "total_ms": 20.0,
                      "peak_mb": 500.0},
        "PyTorch": {"total_ms": 10.0},
    }}  # fmt: skip
    rounds = [
        {"mirror-rt fp16-cuda": {"texts_per_second": 300.0},
         "sentence-transformers ONNX O4": {"texts_per_second": 100.0}},
    ]  # fmt: skip
    results = {
        "speed": {"results": [size]},
        "rivals": {"results": [size]},
        "tests-mma": {"passed": 3, "failed": ["tests/test_x.py::test_y"], "skipped": {}},
        "tests-tma": {"passed": 3, "failed": [], "skipped": {"no second card": 1}},
        "encode-base": {"rounds": rounds, "left_out": {}, "agreement": {"mirror-rt fp16-cuda": 1}},
    }
    found = {text: measured for text, _, measured in goals({"steps": {}}, results)}
    assert found["forward, 65,536 rows, D = 768, in matrix products"] == ("0.60 ()", True)
    assert found["forward + backward, 65,536 rows, D = 768, in matrix products"][1] is False
    assert found["time of mirror_rt / PyTorch, 65,536 rows, D = 768"] == ("2.00", False)
    assert found["tests of the kernels, core mma"] == ("3 passed, 1 failed, 0 skipped", False)
    assert found["tests of the kernels, core tma"] == ("3 passed, 0 failed, 1 skipped", True)
    rate = "base: texts/s: mirror-rt fp16-cuda / sentence-transformers ONNX O4"
    assert found[rate] == ("3.00", True)
    assert found["`mirror-rt doctor`"] is None


def test_the_attention_kernels_must_be_fast_ones():
    lines = ["Operator=PackedMultiHeadAttention DataType=fp16 SdpaKernel=FLASH_ATTENTION",
             "16 tokens, on ['cuda:0']", "\x1b[36mOperator=A Node=x SdpaKernel=MATH\x1b[0m",
             "128 tokens, on ['cuda:0']"]  # fmt: skip
    found = printed(lines)
    assert found == {"captured": ["FLASH_ATTENTION"], "16": ["MATH"]}
    result = {"printed": found}
    assert attention_goal("fp16-cuda-captured", result)[2] == ("FLASH_ATTENTION", True)
    assert attention_goal("fp16-cuda", result)[2] == ("FLASH_ATTENTION, MATH", False)
    assert attention_goal("fp16", result)[2] == ("FLASH_ATTENTION, MATH", True)
    assert attention_goal("fp16", {"printed": {}})[2] is None


def test_the_script_lists_its_steps_with_nothing_but_python(tmp_path):
    """Like on a bare machine: an interpreter without packages, isolated from this one."""
    command = ["bash", str(ROOT / "benchmarks" / "gpu.sh"), str(tmp_path), "--list"]
    bare = tmp_path / "python"
    bare.write_text(f'#!/bin/sh\nexec {sys._base_executable} -S "$@"\n')
    bare.chmod(0o755)
    done = subprocess.run(
        command, capture_output=True, text=True, env={"PATH": "/usr/bin:/bin", "PYTHON": str(bare)}
    )
    assert done.returncode == 0, done.stderr
    for stage in ("stage 1", "stage 2", "stage 3", "stage 4"):
        assert stage in done.stdout


def test_the_report_is_made_with_nothing_but_python(tmp_path):
    """The machine's Python sums up what the environment with this project has measured."""
    figures = {"forward_ms": 1.0, "total_ms": 3.0, "forward_products": 0.5, "total_products": 1.5,
               "peak_mb": 7.0}  # fmt: skip
    size = {"rows": 65_536, "dim": 768, "product_ms": 2.0, "product_ms_by_dtype": {"float16": 2.0},
            "contenders": {"mirror_rt": figures}, "left_out": {"PyTorch": "52 GB"}}  # fmt: skip
    rate = {"texts_per_second": 9.0, "p50_ms": 1.0, "p95_ms": 2.0}
    encode = {"texts": 3, "versions": {}, "rounds": [{"mirror-rt fp16": rate}], "left_out": {},
              "agreement": {"mirror-rt fp16": {"batch": 1.0, "alone": 1.0}},
              "batch": {"mirror-rt fp16": 32}}  # fmt: skip
    results = {"speed": {"machine": {}, "results": [size]}, "encode-base": encode}
    steps = {
        name: {"stage": 1, "verdict": PASSED, "seconds": 1.0, "limit": 9.0, "result": result}
        for name, result in results.items()
    }
    state = tmp_path / "state.json"
    state.write_text(json.dumps({"about": {}, "stages": {}, "steps": steps}))
    code = "import json, sys; from gpu.report import summarize\n"
    code += "print(summarize(json.load(open(sys.argv[1]))))"
    command = [sys._base_executable, "-S", "-c", code, str(state)]
    environment = {"PYTHONPATH": str(ROOT / "benchmarks"), "PATH": "/usr/bin:/bin"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "| 65536 | 768 | mirror_rt | 1.00 | 3.00 |" in done.stdout
    assert "| mirror-rt fp16 | 9 | 32 |" in done.stdout


@pytest.mark.parametrize("device", ["cuda", "cpu"])
def test_every_step_is_there_once_and_in_order(device, tmp_path):
    arguments = argparse.Namespace(device=device, parts=tmp_path, work=tmp_path, patience=1)
    before: list[str] = []
    stages = make_stages(arguments)
    for stage in stages.values():
        assert stage.budget <= 540
        for step in stage.steps:
            assert step.name not in before
            assert set(step.needs) <= set(before)
            assert step.limit <= stage.budget
            scripts = [word for word in step.command if word.endswith(".py") and "/" in word]
            assert all((ROOT / script).is_file() for script in scripts)
            if step.command[1].startswith("benchmarks/"):  # it imports from its own folder
                assert "PYTHONSAFEPATH" not in step.environment
            before.append(step.name)
    assert CARRYING + sum(stage.budget for stage in stages.values()) <= 28 * 60


def test_the_model_of_base_size_computes_the_same_twice(tiny_bert, tmp_path):
    import torch
    from gpu.model import make_base
    from transformers import AutoModel

    make_base(tiny_bert, tmp_path / "base")
    model, wide = (AutoModel.from_pretrained(path) for path in (tiny_bert, tmp_path / "base"))
    layers = [layer for layer in model.encoder.layer for _ in range(2)]
    model.encoder.layer = torch.nn.ModuleList(layers)
    ids = torch.tensor([[2, 7, 11, 13, 3], [2, 5, 3, 0, 0]])
    with torch.no_grad():
        expected, found = (
            of.eval()(ids, attention_mask=(ids > 0).long()).last_hidden_state
            for of in (model, wide)
        )
    assert wide.config.num_hidden_layers == 2 * len(set(map(id, layers)))
    torch.testing.assert_close(found, torch.cat([expected, expected], -1), rtol=1e-4, atol=1e-5)


def test_an_interpreter_that_does_not_run_is_passed_over(tmp_path):
    """A shim of pyenv is on the path for versions that it does not run."""
    script = (ROOT / "benchmarks" / "gpu" / "parts.sh").read_text()
    function = (
        "interpreter() {" + script.partition("interpreter() {")[2].partition("\n}\n")[0] + "\n}"
    )
    for name, text in [
        ("bin/python9.9", "exit 127"),
        ("pyenv/versions/9.9.1/bin/python", "echo 9.9"),
    ]:
        path = tmp_path / name
        path.parent.mkdir(parents=True)
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)
    environment = {"PATH": f"{tmp_path}/bin:/usr/bin:/bin", "PYENV_ROOT": f"{tmp_path}/pyenv"}
    for version, found in [("9.9", f"{tmp_path}/pyenv/versions/9.9.1/bin/python\n"), ("8.8", "")]:
        ask = f"set -euo pipefail; python=/no/python; {function}; interpreter {version} || true"
        done = subprocess.run(
            ["bash", "-c", ask], env=environment, capture_output=True, text=True, check=True
        )
        assert done.stdout == found


def test_rounded_weights_are_half_as_many_bytes_to_pack(tmp_path):
    import torch
    from gpu.model import round_weights
    from safetensors.torch import load_file, save_file

    weights = {"a": torch.randn(7, 5), "ids": torch.arange(3)}
    save_file(weights, tmp_path / "model.safetensors")
    round_weights(tmp_path)
    found = load_file(tmp_path / "model.safetensors")
    assert torch.equal(found["a"], weights["a"].half().float())
    assert torch.equal(found["ids"], weights["ids"])
    assert [path.name for path in tmp_path.iterdir()] == ["model.safetensors"]


@pytest.fixture
def cut(tmp_path):
    """Files of several sizes, in boxes of 0.1 MB."""
    source, parts = tmp_path / "source", tmp_path / "parts"
    for name, size in {"models/m": 250_000, "tools/t": 10, "gpu/g": 99_000, "gpu/empty": 0}.items():
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_bytes(bytes(i % 251 for i in range(size)))
    assert gpu_parts.cut(source, parts, 0.1) == 4
    return source, parts


def test_files_arrive_in_pieces(cut, tmp_path):
    source, parts = cut
    for box in parts.iterdir():
        held = [path for path in box.rglob("*") if path.name != gpu_parts.MANIFEST]
        assert sum(path.stat().st_size for path in held if path.is_file()) <= 100_000
    (parts / "3").rename(tmp_path / "on its way")
    whole = tmp_path / "whole"
    assert list(gpu_parts.join(parts, whole)) == ["models/m"]
    assert (whole / "tools" / "t").read_bytes() == (source / "tools" / "t").read_bytes()
    (tmp_path / "on its way").rename(parts / "3")
    assert list(gpu_parts.join(parts, whole)) == []
    for path in filter(Path.is_file, source.rglob("*")):
        assert (whole / path.relative_to(source)).read_bytes() == path.read_bytes()


def test_a_damaged_piece_is_an_error(cut, tmp_path):
    _, parts = cut
    piece = next((parts / "2").rglob("m.*"))
    piece.write_bytes(bytes(piece.stat().st_size))
    with pytest.raises(ValueError, match="models/m: its SHA-256 is another one"):
        list(gpu_parts.join(parts, tmp_path / "whole"))
    assert not (tmp_path / "whole" / "models" / "m").exists()


def test_an_environment_has_the_built_packages_and_those_of_the_machine(tmp_path, monkeypatch):
    """Even where the machine's Python has an editable install, whose finder would come first."""
    machine, work = tmp_path / "site-packages", tmp_path / "work"
    product = work / "site-product"
    for folder in (machine / "torch", machine / "mirror_rt", product / "mirror_rt"):
        folder.mkdir(parents=True)
    for name in ("_editable_skbc_mirror_rt.pth", "_editable_skbc_mirror_rt.py"):
        (machine / name).touch()
    monkeypatch.setattr(sys, "path", [str(machine)])
    gpu_install.environment_of("env", tmp_path / "parts", work, "cpu")
    (site,) = work.glob("env/lib/python*/site-packages")
    assert {path.name: path.resolve() for path in site.iterdir()} == {
        "torch": machine / "torch", "mirror_rt": product / "mirror_rt",
    }  # fmt: skip


def test_what_was_packed_anew_is_unpacked(tmp_path):
    """Onnxruntime comes without its provider for TensorRT, as an archive of its folder."""
    group = tmp_path / "files" / "gpu"
    (tmp_path / "x" / "onnxruntime").mkdir(parents=True)
    group.mkdir(parents=True)
    with tarfile.open(group / "x.tar.xz", "w:xz") as archive:
        archive.add(tmp_path / "x", ".")
    assert (gpu_install.unpack(tmp_path / "files", "gpu", tmp_path) / "onnxruntime").is_dir()


def test_a_rehearsal_needs_no_card(monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    assert gpu_install.architecture("cpu") == "90"
    with pytest.raises(SystemExit, match="nvidia-smi does not answer"):
        gpu_install.architecture("cuda")
