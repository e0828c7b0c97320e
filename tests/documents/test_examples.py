"""The examples, at a tiny size."""

import os
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from mirror_rt import LanguagePack
from mirror_train import TorchEncoder
from paths import ROOT


@pytest.mark.full  # five exports
def test_five_languages_from_one_pack(tiny_bert, tmp_path):
    environment = os.environ | {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "LANGS": "en,fr,ru,zh,ar",
        "BASE": str(tiny_bert),
    }
    line = ["bash", ROOT / "examples/languages.sh", tmp_path, "--top", 100, "--batch-size", 20,
            "--epochs", 1, "--precision", "fp32"]  # fmt: skip
    for _ in range(2):  # the second run finds all of it done
        done = subprocess.run(list(map(str, line)), env=environment, capture_output=True, text=True,
                              check=False)  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        assert "5 texts in 5 languages: (5, 32) float32" in done.stdout
        assert "5 loads, 3 evictions" in done.stdout
    assert done.stderr.count("kept") == 10  # tuned folders and bundles
    assert LanguagePack.load(tmp_path / "pack").languages == ["ar", "en", "fr", "ru", "zh"]


@pytest.mark.full
def test_a_base_from_scratch(words, tmp_path, monkeypatch, capsys):
    """It learns to fill in masks, and what it leaves is a base to tune."""
    texts = [f"the {a} of the {b}" for a, b in zip(words[:150], words[150:300], strict=True)]
    (tmp_path / "texts.txt").write_text("\n".join(texts))
    line = ["--texts", tmp_path / "texts.txt", "--out", tmp_path / "base", "--vocabulary", 400,
            "--layers", 1, "--hidden", 32, "--heads", 2, "--max-length", 16, "--epochs", 20,
            "--batch-size", 30, "--learning-rate", 1e-2, "--device", "cpu"]  # fmt: skip
    script = ROOT / "examples/pretrain_base.py"
    monkeypatch.setattr(sys, "argv", [str(script), *map(str, line)])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(script), run_name="__main__")
    out = capsys.readouterr().out
    assert ended.value.code == 0, out
    losses = [float(loss) for loss in re.findall(r"held-out loss (?:before: )?(\d+\.\d+)", out)]
    assert losses[-1] < losses[0] - 1
    encoder = TorchEncoder.load(tmp_path / "base")
    assert encoder.encode(["the river"]).shape == (1, 32)
    assert encoder.mask_token == "[MASK]"


def test_a_failing_export_of_the_default_model_is_one_line(tmp_path):
    done = subprocess.run(
        [sys.executable, ROOT / "deploy/default_model.py", "--bundle", tmp_path, "--out", tmp_path],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert len(done.stderr.splitlines()) == 1
    assert done.stderr.startswith("default_model.py: error: ")


def test_the_example_of_the_default_model_is_never_silent_for_long(tmp_path):
    """Its function, around a command that ends once three lines have come; its status stays."""
    script = (ROOT / "examples/default_model.sh").read_text("utf-8")
    (function,) = re.findall(r"^telling\(\) \{.*?^\}$", script, re.DOTALL | re.MULTILINE)
    (tmp_path / "waits").write_text(
        "until [ $(grep -c 'still at it' said) -ge 3 ]; do sleep .05; done"
    )
    with (tmp_path / "said").open("w") as said:
        done = subprocess.run(
            ["bash", "-euc", f"{function}\ntelling bash waits\ntelling false"],
            env=os.environ | {"MIRROR_RT_SECONDS_BETWEEN_LINES": "0.2"},
            cwd=tmp_path, stderr=said, check=False,
        )  # fmt: skip
    assert done.returncode == 1
    slow = ["pip install", "default_model.py", "pip wheel"]
    assert all(re.search(rf"telling .*{name}", script) for name in slow)
