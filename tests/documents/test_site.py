"""The documentation builds as a site, strictly, and its reference has every public name."""

import itertools
import os
import re
import subprocess
import sys

import pytest

import mirror_export
import mirror_rt
import mirror_train
from browser import Browser, find_browser
from mirror_rt.cli.commands import installed_commands
from paths import ROOT

pytestmark = pytest.mark.full


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    built = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", folder],
        cwd=ROOT, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"}, capture_output=True, text=True,
    )  # fmt: skip
    assert built.returncode == 0, built.stdout + built.stderr
    return folder


@pytest.mark.parametrize(
    ("package", "page"),
    [(mirror_rt, "python"), (mirror_train, "python-train"), (mirror_export, "python-train")],
)
def test_the_reference_has_every_public_name(site, package, page):
    found = (site / "reference" / page / "index.html").read_text("utf-8")
    names = {name for name in package.__all__ if not name.startswith("_")}
    anchors = {match.split(".")[-1] for match in re.findall(r'<h[2-4] id="([\w.]+)"', found)}
    assert names <= anchors


@pytest.mark.browser
def test_the_first_page_in_a_browser(site, tmp_path):
    """It says what this is and how to get it, and no list has run together into a paragraph."""
    executable = find_browser()
    for width, scheme in itertools.product((1280, 390), ("light", "dark")):
        browser = Browser(executable, tmp_path / f"{width}-{scheme}")
        browser.show_as(width, scheme)
        browser.call("Page.navigate", url=(site / "index.html").as_uri())
        browser.wait_for("document.querySelector('article ul li') !== null")
        expected = {"light": "default", "dark": "slate"}[scheme]
        browser.wait_for(f"document.body.dataset.mdColorScheme === '{expected}'")
        text = browser.evaluate("document.querySelector('article').innerText")
        assert "pip install mirror-rt" in text
        assert not re.search(r"\S - \S", text)
        assert browser.evaluate("document.querySelectorAll('article a[href*=guides]').length") >= 19
        assert browser.evaluate("document.documentElement.scrollWidth <= innerWidth")
        browser.close()


def test_nothing_is_loaded_from_elsewhere(site):
    for page in site.rglob("*.html"):
        loaded = re.findall(
            r'<(?:script|link|img)[^>]+(?:src|href)="(https?://[^"]+)"', page.read_text("utf-8")
        )
        assert not loaded, page


def test_the_commands_have_a_section_each_with_their_options(site):
    found = (site / "reference" / "commands" / "index.html").read_text("utf-8")
    for command in installed_commands().values():
        assert f"mirror-rt {command.name}</h2>" in re.sub(r"<a .*?</a>", "", found)
    assert "--batch-size" in found
    assert "--max-wait" in found


@pytest.mark.browser
@pytest.mark.parametrize("width", [1280, 390])
def test_no_page_is_wider_than_the_window(site, tmp_path, width):
    """Wide blocks scroll in themselves; the help of the commands has to fit at full width."""
    browser, wide = Browser(find_browser(), tmp_path), []
    browser.show_as(width, "light")
    for page in sorted(site.rglob("index.html")):
        browser.call("Page.navigate", url=page.as_uri())
        browser.wait_for(
            f"document.readyState === 'complete' && location.href === '{page.as_uri()}'"
        )
        if not browser.evaluate("document.documentElement.scrollWidth <= innerWidth"):
            wide.append(page.relative_to(site))
    browser.call("Page.navigate", url=(site / "reference/commands/index.html").as_uri())
    browser.wait_for("document.querySelectorAll('pre code').length > 20")
    cut = "[...document.querySelectorAll('pre code')].filter(e => e.scrollWidth > e.clientWidth)"
    assert wide == []
    assert width < 1280 or browser.evaluate(f"{cut}.length") == 0
    browser.close()
