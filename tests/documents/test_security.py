"""SECURITY.md: every line of its tables names tests, and every test that it names exists."""

import ast
import functools
import re

import pytest

from documents import ROOT

PARTS = re.split(r"^## ", (ROOT / "SECURITY.md").read_text(encoding="utf-8"), flags=re.MULTILINE)
ROWS = [
    line
    for part in PARTS
    for line in part.splitlines()
    if line.startswith("|") and not line.startswith(("|---", "| what comes "))
]


@functools.cache
def defined_in(file):
    """Names of the test functions of a file."""
    tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
    functions = ast.FunctionDef | ast.AsyncFunctionDef
    return {node.name for node in tree.body if isinstance(node, functions)}


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.split("|")[1].strip()[:60])
def test_every_line_names_tests_that_exist(row):
    *_, named, end = row.split("|")
    found = re.findall(r"`(tests/[\w/]+\.py)::(test_\w+)`", named)
    assert found, "it names no test"
    assert end == ""
    assert ", ".join(f"`{file}::{name}`" for file, name in found) == named.strip()
    for file, name in found:
        assert name in defined_in(file), f"{file} has no {name}"


def test_every_source_of_harm_has_lines():
    titles = [part.splitlines()[0] for part in PARTS[1:]]
    assert titles[:4] == ["Requests", "Bundles and packs", "Base models", "Bulk input"]
    for part in PARTS[1:]:
        assert len([line for line in part.splitlines() if line in ROWS]) >= 2
