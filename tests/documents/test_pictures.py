"""The pictures of the first page are those of the figures that are committed."""

import re
import runpy
from xml.etree import ElementTree

import pytest

from paths import ROOT

MADE = runpy.run_path(str(ROOT / "benchmarks" / "pictures.py"))


@pytest.mark.parametrize("name", ["speed", "words"])
def test_a_picture_is_what_its_script_draws(name):
    drawn = MADE[name]()
    assert (ROOT / "docs/pictures" / f"{name}.svg").read_text(encoding="utf-8") == drawn
    ElementTree.fromstring(drawn)
    for page in ("README.md", "docs/README.md"):
        assert re.search(rf"!\[.+\]\(.*pictures/{name}\.svg\)", (ROOT / page).read_text("utf-8"))
