"""Every command in the documents is run, links lead somewhere, and the map is that of the code."""

import re

import pytest

from documents import DOCUMENTS, ROOT, TUNING, run_blocks, sharing


@pytest.fixture(scope="module")
def shared(tmp_path_factory, default_model):
    return sharing(tmp_path_factory.mktemp("shared"))


@pytest.mark.parametrize("document", [d for d in DOCUMENTS if d not in TUNING])
def test_blocks_run(document, tmp_path, shared):
    run_blocks(document, tmp_path, shared)


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
