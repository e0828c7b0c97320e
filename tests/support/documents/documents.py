"""List the documents, read their fenced bash and python blocks, and run them, each in a folder."""

import os
import re
import shlex
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
# The fast tier runs what a newcomer reads first, and only parses the others (test_blocks.py).
FIRST_READ = ("README.md", "docs/quickstart.md")


def commands_of(script):
    """Split a shell script into its commands, lists of words without quotes and redirections."""
    joined = re.sub(r"\d?(>>?|<) *\S+", "", script.replace("\\\n", " "))
    words = shlex.shlex(joined, posix=True, punctuation_chars=";&|()\n")
    words.whitespace, words.whitespace_split = " \t", True
    commands = [[]]
    for word in words:
        if set(word) <= set(words.punctuation_chars):
            commands.append([])
        else:
            commands[-1].append(word)
    return [command for command in commands if command]


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
