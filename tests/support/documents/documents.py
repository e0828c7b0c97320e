"""List the documents, and run their fenced bash and python blocks, a folder per document."""

import os
import re
import subprocess
import sys
from pathlib import Path

from paths import ROOT

DOCUMENTS = ["README.md", *sorted(str(path.relative_to(ROOT)) for path in
                                  (ROOT / "docs").rglob("*.md"))]  # fmt: skip
# These documents mostly tune models, so tests/documents/test_docs_tuning.py runs them in a process
# of its own.
TUNING = ["docs/reference/loss.md", *(f"docs/guides/{name}.md" for name in (
    "cross-encoders", "studies", "systems", "systems-flow", "systems-pairs",
    "tuning"))]  # fmt: skip
# Commands with which several documents begin run only once; later, their results are copied.
SHARED = {
    "mirror-rt export all-MiniLM-L6-v2 --out bundle\n": "bundle",
    "mirror-rt tune --recipe word --lang fr,en --model all-MiniLM-L6-v2 --top 250 --epochs 1 "
    "--out tuned\n": "tuned",
}
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)
WITH_BLOCKS = [name for name in DOCUMENTS if BLOCK.search((ROOT / name).read_text("utf-8"))]


def run(line, folder, first=None):
    """Run a command; programs are looked for in the folder `first`, then beside this Python."""
    folders = [first, Path(sys.executable).parent, os.environ["PATH"]]
    environment = os.environ | {"PATH": ":".join(str(one) for one in folders if one)}
    done = subprocess.run(line, cwd=folder, env=environment, capture_output=True, text=True,
                          check=False)  # fmt: skip
    assert done.returncode == 0, f"{line[-1]}\n{done.stdout}\n{done.stderr}"


def bash(block):
    return ["bash", "-euo", "pipefail", "-c", block]


def sharing(folder):
    """Return a function that replaces a block's shared commands by copies out of `folder`."""

    def replace(block):
        for command, made in SHARED.items():
            if command in block:
                if not (folder / made).exists():
                    run(bash(command), folder)
                block = block.replace(command, f"cp -r {folder / made} {made}\n")
        return block

    return replace


def run_blocks(document, folder, shared, first=None):
    for language, block in BLOCK.findall((ROOT / document).read_text(encoding="utf-8")):
        if language == "text":  # needs a file or a model that only the reader has
            continue
        if language == "bash":
            run(bash(shared(block)), folder, first)
        else:
            assert language == "python"
            run(["python", "-c", block], folder, first)
