"""Every block of the documents is one that Python, the shell and the command line can read.

`test_docs.py` and `test_docs_tuning.py` also run them: the first documents in every tier, all of
them in the full one.
"""

import ast
import importlib
import re
import shlex
import subprocess

import pytest

from documents import BLOCK, WITH_BLOCKS, commands_of
from mirror_rt.cli.commands import find_command
from mirror_rt.cli.main import parse_words
from paths import ROOT

OURS = ("mirror_rt", "mirror_train", "mirror_export")
LINE = re.compile(r"^(?:\$ )?(mirror-rt (?:\\\n|.)*)\n(mirror-rt: error: .*)?", re.MULTILINE)


def blocks(document):
    return BLOCK.findall((ROOT / document).read_text(encoding="utf-8"))


def check_python(code):
    """Compile code, and find what it imports of our packages."""
    tree = compile(code, "block", "exec", ast.PyCF_ONLY_AST)
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(OURS):
            module = importlib.import_module(node.module)
            for alias in node.names:
                assert hasattr(module, alias.name), f"{node.module} has no {alias.name}"


def check_command(words):
    match words:
        case ["mirror-rt", *arguments] if "--help" not in arguments:
            command = find_command(arguments)
            assert command is not None, arguments
            parse_words(command, arguments)
        case ["python", "-c", code]:
            check_python(code)


def check_shown(block, capsys):
    """Parse the commands that a block of text shows; one with an error below it is refused so."""
    for line, error in LINE.findall(block):
        for words in commands_of(line):
            if "there is no option" not in error:
                check_command(words)
                continue
            with pytest.raises(SystemExit):
                check_command(words)
            assert capsys.readouterr().err.startswith(f"{error}\n")


@pytest.mark.parametrize("document", WITH_BLOCKS)
def test_blocks_can_be_read(document, capsys):
    for language, block in blocks(document):
        if language == "python":
            check_python(block)
        elif language == "bash":
            done = subprocess.run(["bash", "-n"], input=block, capture_output=True, text=True)
            assert done.returncode == 0, done.stderr
            for words in commands_of(block):
                check_command(words)
        else:
            check_shown(block, capsys)


@pytest.mark.parametrize(
    ("script", "commands"),
    [
        ("mirror-rt info a\n\nls", [["mirror-rt", "info", "a"], ["ls"]]),
        ("printf 'a\\n;b' | mirror-rt \\\n  x > y", [["printf", "a\\n;b"], ["mirror-rt", "x"]]),
        ("trap 'kill $!' EXIT # why", [["trap", "kill $!", "EXIT"]]),
        ("{\n    mirror-rt x 2> log &\n}", [["{"], ["mirror-rt", "x"], ["}"]]),
    ],
)
def test_commands_of_a_script(script, commands):
    assert commands_of(script) == commands


def test_the_commands_of_the_papers_tables_can_be_read():
    """Those of docs/guides/studies.md, in which `mirror-rt` and `--out` are left out."""
    page = (ROOT / "docs/guides/studies.md").read_text(encoding="utf-8")
    tables = page.partition("## Every table and figure")[2].partition("## What it writes")[0]
    found = re.findall(r"`((?:study|train|tune|evaluate|predict) [^`]*)`", tables)
    assert len(found) > 40
    for line in found:
        words = ["mirror-rt", *shlex.split(line)]
        with_out = words[1] != "predict" and words[1:3] != ["evaluate", "similarity"]
        check_command([*words, "--out", "OUT"] if with_out else words)
