"""What the documents link to and name is there, and the map is that of the code."""

import re
import subprocess
from pathlib import Path

import pytest

from documents import DOCUMENTS
from mirror_rt.cli.commands import installed_commands
from paths import ROOT

PAGES = [*sorted(path.name for path in ROOT.glob("*.md") if path.name != "README.md"), *DOCUMENTS]
LINK = re.compile(r"\[[^\]]*\]\(([^)#\s]*)#?([^)\s]*)\)")
# A path in the repository, as a document or a message names it: from one of its folders on.
TOP = "mirror_rt|train|export|csrc|tests|docs|benchmarks|deploy|examples|cmake|\\.ci"
PATH = re.compile(rf"(?<![\w/.-])(?:{TOP})/[\w./*-]*[\w*]")
PRODUCT = ["mirror_rt", "train/mirror_train", "export/mirror_export", "csrc"]


def read(name):
    return (ROOT / name).read_text(encoding="utf-8")


def anchors(page):
    """The anchors that GitHub gives the headings of a page."""
    text = re.sub(r"^```.*?^```", "", page.read_text("utf-8"), flags=re.MULTILINE | re.DOTALL)
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("document", PAGES)
def test_links_lead_somewhere(document):
    path = ROOT / document
    for target, anchor in LINK.findall(read(document)):
        if target.startswith("https://"):
            continue
        page = (path.parent / target).resolve() if target else path
        assert page.exists(), target
        assert not anchor or anchor in anchors(page), f"{target}#{anchor}"


@pytest.mark.parametrize("document", [name for name in PAGES if name != "CHANGELOG.md"])
def test_named_files_exist(document):
    for name in PATH.findall(read(document)):
        assert any(ROOT.glob(name)), name


def test_documents_that_the_code_names_exist():
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=False)
    files = [ROOT / name for name in listed.stdout.decode().split("\0") if name]
    if not files:
        pytest.skip("no git here to list the files with")
    for path in files:
        if path.suffix in {".py", ".sh", ".toml", ".yaml", ".cpu", ".cuda"} and path.exists():
            for name in re.findall(r"\bdocs/[\w/-]+\.md", path.read_text(encoding="utf-8")):
                assert (ROOT / name).exists(), f"{path}: {name}"


def test_the_page_of_commands_has_them_all():
    """Each in the row of its group; of the systems, the row names those who list them."""
    rows = dict(re.findall(r"^\| ([a-z ]+) \| (.*) \|$", read("docs/guides/command-line.md"), re.M))
    for command in installed_commands().values():
        named = "train --help" if command.name.startswith("train ") else command.name
        assert f"`{named}`" in rows[command.group], command.name


def test_every_document_is_listed():
    """The index names every document, and that of the decisions every decision."""
    for folder in ("docs", "docs/decisions"):
        index = ROOT / folder / "README.md"
        named = {(index.parent / target).resolve() for target, _ in LINK.findall(read(index))}
        found = set(index.parent.glob("*.md")) | set(index.parent.glob("[gr]*/*.md"))
        assert found - {index} <= named


def test_the_map_matches_the_code():
    """ARCHITECTURE.md has a line for every folder of modules, and names no other."""
    text = read("ARCHITECTURE.md")
    for top in PRODUCT:
        for path in (ROOT / top).rglob("*"):
            if path.suffix in (".py", ".cpp", ".cu") and "__pycache__" not in path.parts:
                folder = path.parent.relative_to(ROOT)
                names = {str(folder), "/".join(folder.parts[-2:])}
                assert folder == Path(top) or any(f"`{name}`" in text for name in names), folder
    for name in re.findall(r"`([\w/]+/[\w/]+)`", text):
        assert any((ROOT / base / name).exists() for base in ("", *PRODUCT, *TOPS)), name


# Names in ARCHITECTURE.md such as `server/http` are short: they begin in one of these.
TOPS = ["train/mirror_train", "export/mirror_export"]
