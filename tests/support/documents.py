"""The documents, and how their fenced bash and python blocks are run, a folder a document."""

import os
import re
import subprocess
import sys
from pathlib import Path

from paths import ROOT

DOCUMENTS = ["README.md", *sorted(f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md"))]
# These tune more than they run: tests/documents/test_docs_tuning.py has them, for a process of
# its own.
TUNING = [f"docs/{name}.md" for name in ("loss", "studies", "systems", "systems-flow",
                                         "systems-pairs", "tuning")]  # fmt: skip
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


def sharing(folder):
    """From a block to the same with copies in the place of what was made before, in `folder`."""

    def replace(block):
        for command, made in SHARED.items():
            if command in block:
                if not (folder / made).exists():
                    run(bash(command), folder)
                block = block.replace(command, f"cp -r {folder / made} {made}\n")
        return block

    return replace


def run_blocks(document, folder, shared):
    for language, block in BLOCK.findall((ROOT / document).read_text(encoding="utf-8")):
        if language == "text":  # needs a file or a model that only the reader has
            continue
        if language == "bash":
            run(bash(shared(block)), folder)
        else:
            assert language == "python"
            run([sys.executable, "-c", block], folder)
