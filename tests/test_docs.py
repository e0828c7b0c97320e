"""Every command in the documents is run: fenced bash and python blocks, a folder a document."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
DOCUMENTS = ["README.md", *sorted(f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md"))]
# What several documents begin with runs once, and what it makes is copied after that.
SHARED = {
    "mirror-rt export all-MiniLM-L6-v2 --out bundle\n": "bundle",
    "mirror-rt tune --recipe word --langs fr,en --base all-MiniLM-L6-v2 --top 250 --epochs 1 "
    "--out tuned\n": "tuned",
}
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)


def run(line, folder):
    environment = os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    done = subprocess.run(line, cwd=folder, env=environment, capture_output=True, text=True,
                          check=False)  # fmt: skip
    assert done.returncode == 0, f"{line[-1]}\n{done.stdout}\n{done.stderr}"


def bash(block):
    return ["bash", "-euo", "pipefail", "-c", block]


@pytest.fixture(scope="module")
def shared(tmp_path_factory, default_model):
    """From a block to the same with copies in the place of what was made before."""
    folder = tmp_path_factory.mktemp("shared")

    def replace(block):
        for command, made in SHARED.items():
            if command in block:
                if not (folder / made).exists():
                    run(bash(command), folder)
                block = block.replace(command, f"cp -r {folder / made} {made}\n")
        return block

    return replace


@pytest.mark.parametrize("document", DOCUMENTS)
def test_blocks_run(document, tmp_path, shared):
    for language, block in BLOCK.findall((ROOT / document).read_text(encoding="utf-8")):
        if language == "text":  # needs a file or a model that only the reader has
            continue
        if language == "bash":
            run(bash(shared(block)), tmp_path)
        else:
            assert language == "python"
            run([sys.executable, "-c", block], tmp_path)


def test_links_lead_somewhere():
    for document in [*DOCUMENTS, "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md"]:
        path = ROOT / document
        for target in re.findall(r"\]\(([^)#]+)\)", path.read_text(encoding="utf-8")):
            assert target.startswith("https://") or (path.parent / target).exists(), target


def test_the_map_matches_the_code():
    """Every module has its place in ARCHITECTURE.md, and every module named there exists."""
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`(?:\w+/)?(\w+)\.py`", text))
    folders = [
        "mirror_rt",
        "mirror_rt/adapters",
        "mirror_rt/scheduling",
        "mirror_rt/evaluation",
        "mirror_rt/evaluation/readers",
        "mirror_rt/evaluation/suites",
        "mirror_rt/server",
        "mirror_rt/client",
        "train/mirror_train",
        "train/mirror_train/loss",
        "train/mirror_train/flow",
        "train/mirror_train/pairs",
        "train/mirror_train/systems",
        "export/mirror_export",
    ]
    modules = {path.stem for folder in folders for path in (ROOT / folder).glob("*.py")} - {
        "__init__"
    }
    assert modules <= named
    assert named - modules <= {"main"}
