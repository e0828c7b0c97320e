"""What users may rely on changes only on purpose: the lists in tests/documents/public."""

import os
import subprocess
import sys

import pytest
from starlette.routing import Route

from mirror_rt.server.http import app
from public_names import LISTS, SURFACES, TABLES
from server_process import running

SCRIPT = "tests/support/documents/public_names.py"
WRITE = f"where the change is meant, say so in CHANGELOG.md and run {SCRIPT}"


@pytest.mark.parametrize("surface", SURFACES)
def test_public_names(surface):
    """Names, options and fields are those of the list, in a process that imports nothing else."""
    code = f"import public_names as p; print(*p.SURFACES[{surface!r}](), sep=chr(10))"
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=LISTS.parents[1] / "support" / "documents", env=os.environ | {"COLUMNS": "200"},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    expected = set((LISTS / f"{surface}.txt").read_text(encoding="utf-8").splitlines())
    found = set(done.stdout.splitlines())
    gone, new = expected - found, found - expected
    assert not gone, f"gone or changed: {WRITE}"
    assert not new, f"new or changed: {WRITE}"


def test_a_route_that_no_document_describes_is_public(monkeypatch):
    """A list made from the document alone would pass over it."""
    found = app.routes_of

    def with_another(*given):
        return [*found(*given), Route("/version", print, methods=["GET"])]

    monkeypatch.setattr(app, "routes_of", with_another)
    assert "GET /version" in list(SURFACES["http"]())


def test_metrics(bundle):
    """Dashboards and alarms are made of these names."""
    with running(bundle, "--model-name", "tiny", "--workers", 2) as server:
        server.post("/embed", {"inputs": ["a text"]})
        text = server.get("/metrics")[1].decode()
    names = {line.split()[2] for line in text.splitlines() if line.startswith("# TYPE mirror_rt")}
    found = {name for name in names if not name.endswith("_created")}
    expected = (LISTS / "metrics.txt").read_text(encoding="utf-8").splitlines()
    assert found == set(expected), WRITE


@pytest.mark.parametrize(("page", "first", "table"), TABLES)
def test_a_table_is_that_of_the_code(page, first, table):
    """Of the metrics, with their meaning, and of what clients of other servers send."""
    assert table() in page.read_text(encoding="utf-8"), WRITE
