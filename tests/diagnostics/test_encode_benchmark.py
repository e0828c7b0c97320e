"""benchmarks/encode/compare.py: contenders, environments, what it leaves out, and its table."""

import operator
import sys

import pytest

from paths import ROOT

sys.path.append(str(ROOT / "benchmarks"))
from encode import report as encode_report
from encode import setup as encode_setup
from encode import worker as encode_worker
from helpers import median_ratio, write_whole


def test_every_contender_has_an_environment_and_a_class():
    for name, contender in encode_setup.CONTENDERS.items():
        assert name in encode_worker.CONTENDERS
        assert contender.environment in encode_setup.ENVIRONMENTS
        assert contender.exact == (not name.endswith(("int8", "bf16", "bfloat16", "openvino")))
    below = {one.below for one in encode_setup.ENVIRONMENTS.values()} - {None}
    assert below <= set(encode_setup.ENVIRONMENTS)


def test_an_extra_that_is_absent_is_a_reason_to_leave_out(tmp_path, monkeypatch):
    (tmp_path / "pyproject.toml").write_text('[project.optional-dependencies]\nfast = ["a>=1"]\n')
    (tmp_path / "CMakeLists.txt").touch()
    monkeypatch.setattr(encode_setup, "ROOT", tmp_path)
    assert encode_setup.built_from("numpy==1") == "numpy==1"
    assert encode_setup.built_from("PROJECT[fast]").endswith("['a>=1']")
    environment = encode_setup.Environment(("PROJECT[slow]",))
    with pytest.raises(encode_setup.LeftOutError, match="has no extra 'slow'"):
        encode_setup.python_of(tmp_path, "any", {"any": environment})
    assert sorted(path.name for path in tmp_path.iterdir()) == ["CMakeLists.txt", "pyproject.toml"]


def test_the_script_continues_in_its_own_environment(tmp_path, monkeypatch):
    own, started = tmp_path / "own", []
    monkeypatch.setattr(encode_setup, "python_of", lambda cache, name: own / "bin" / "python")
    monkeypatch.setattr(encode_setup.os, "execve", lambda *words: started.append(words))
    monkeypatch.setattr(sys, "argv", ["benchmarks/encode/compare.py", "--quick"])
    encode_setup.continue_in(tmp_path, "driver")
    ((python, line, variables),) = started
    assert python == own / "bin" / "python"
    assert line[1:] == ["benchmarks/encode/compare.py", "--quick"]
    assert variables["PYTHONPATH"] == ""  # the clone cannot hide what is installed there
    monkeypatch.setattr(sys, "prefix", str(own))
    encode_setup.continue_in(tmp_path, "driver")
    assert len(started) == 1


def test_the_table_has_accuracy_beside_speed_and_the_class_of_the_processor():
    ours, torch = "mirror-rt fp32", "sentence-transformers torch"
    turn = {"mixed": 10.0, "short": 20.0, "p50_ms": 1.0, "p95_ms": 2.0}
    state = {
        "plan": {"contenders": [ours, torch, "mirror-rt native bf16"]},
        "reference": torch,
        "left_out": {"mirror-rt native bf16": "not installed"},
        "rounds": [{ours: turn, torch: turn | {"mixed": 5.0}}],
        "agreement": {ours: {"mean_cosine": 0.99999, "least_cosine": 0.99998}},
        "batch": {}, "cold": {}, "memory": {}, "callers": {},
    }  # fmt: skip
    about = {"machine": "2 x A", "class": "AVX2", "threads": 2, "date": "today",
             "texts": {"mixed": 3}, "command": "c"}  # fmt: skip
    figures = encode_report.medians(state)
    lines = encode_report.table(about, state, figures)
    assert lines[0].startswith("2 x A (AVX2), 2 threads")
    assert "mean cosine | least cosine" in lines[2]
    assert any(line.startswith(f"| {ours} | 10 | 20 | 0.99999 | 0.99998 |") for line in lines)
    assert "| mirror-rt native bf16 | left out: not installed |" in lines
    goals = encode_report.goals(state, figures)
    assert f"| mixed texts: {ours} / {torch} | at least 1.45 | 2.00 |" in goals


def test_ratios_and_whole_files(tmp_path):
    rounds = [{"a": 2, "b": 1, "c": 4}, {"a": 9, "b": 3}, {"a": 8, "b": 2, "c": 1}]
    assert median_ratio(rounds, operator.pos, "a", "b") == 3
    assert median_ratio(rounds, operator.pos, "a", "b", "c") == 5  # of 2 and 8
    assert median_ratio(rounds, operator.pos, "a", "d") is None
    write_whole(tmp_path / "file", "é")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    assert (tmp_path / "file").read_text("utf-8") == "é"
