"""The guide to work beyond one machine: its job of Kubernetes, and the figures of its plan.

What it shows of Ray, Spark and Daft is run by tests/adapters, in environments that have them.
"""

import shlex
import subprocess
import sys
from pathlib import Path

import yaml

from documents import BLOCK
from mirror_rt.cli import main
from paths import ROOT

GUIDE = (ROOT / "docs/guides/scale.md").read_text(encoding="utf-8")


def block_with(words):
    """The one block of text with these words."""
    (block,) = [each for _, each in BLOCK.findall(GUIDE) if words in each]
    return block


def test_the_kubernetes_job(bundle, tmp_path, monkeypatch):
    """Its pods, of which there are fewer here, together encode what they are asked to."""
    job = yaml.safe_load(block_with("kind: Job"))
    (container,) = job["spec"]["template"]["spec"]["containers"]
    shell, option, line = container["command"]
    texts, vectors = tmp_path / "texts", tmp_path / "vectors"
    texts.mkdir()
    for name in "abc":
        (texts / f"{name}.txt").write_text(f"town {name}\nriver {name}\n")
    assert f"/{job['spec']['completions']}" in line
    for there, here in (("/models/bundle", bundle), ("s3://texts/2026", texts),
                        ("s3://vectors/2026", vectors), ("/16", "/2")):  # fmt: skip
        assert there in line
        line = line.replace(there, shlex.quote(str(here)))
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent), prepend=":")
    for index in "01":
        monkeypatch.setenv("JOB_COMPLETION_INDEX", index)
        subprocess.run([shell, option, line], check=True, capture_output=True)
    assert main(["encode", str(bundle), "--input", str(texts), "--output", str(vectors),
                 "--errors", "nan", "--merge-manifest"]) == 0  # fmt: skip
    assert len(list(vectors.rglob("[!_]*.parquet"))) == 3
