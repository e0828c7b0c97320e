"""The example of docs/languages.md, at a tiny size; minutes of exports, so only when asked for."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from conftest import ROOT
from mirror_rt import LanguagePack


@pytest.mark.skipif(
    "MIRROR_RT_EXAMPLES" not in os.environ,
    reason="five exports: MIRROR_RT_EXAMPLES=1 pytest tests/test_examples.py",
)
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
