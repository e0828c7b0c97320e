"""The status page: what it is made of, what it shows, and that a browser shows it."""

import base64
import hashlib
import itertools
import json
import os
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from mirror_rt.scheduling import BatchReport
from mirror_rt.server.monitoring.recent import Recent
from mirror_rt.vectors.search import cosine_similarity
from paths import ROOT


@pytest.fixture
def server(keyed_server):
    return keyed_server


@pytest.fixture(scope="session")
def with_key(key):
    return {"Authorization": f"Bearer {key}"}


class Elements(HTMLParser):
    """Names, attributes and ids of a page's elements."""

    def __init__(self, text):
        super().__init__()
        self.all, self.open = [], []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.all.append((tag, dict(attributes)))

    handle_startendtag = handle_starttag


def test_the_page_is_whole(server):
    """It needs no key, nothing from elsewhere, and its policy lets only its own script run."""
    connection = server.connect()
    connection.request("GET", "/")
    response = connection.getresponse()
    assert response.status == 200
    page, policy = response.read().decode(), response.getheader("content-security-policy")
    assert response.getheader("content-type") == "text/html; charset=utf-8"
    assert response.getheader("x-content-type-options") == "nosniff"
    connection.close()

    elements = Elements(page).all
    for name in ("src", "style", "onclick", "action", "srcset"):
        assert not [tag for tag, attributes in elements if name in attributes], name
    assert {tag for tag, _ in elements} & {"link", "img", "iframe", "object", "base"} == set()
    assert {a["href"] for _, a in elements if "href" in a} == {"docs", "openapi.json"}
    assert "http" not in page
    assert "innerHTML" not in page
    assert not re.search(r"localStorage|sessionStorage|cookie", page)
    for tag in ("style", "script"):
        content = re.search(f"<{tag}>(.*?)</{tag}>", page, re.DOTALL)[1]
        digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{digest}';" in policy
    assert policy.startswith("default-src 'none';")
    assert "unsafe" not in policy
    ids = [attributes["id"] for _, attributes in elements if "id" in attributes]
    assert len(ids) == len(set(ids))
    used = set(re.findall(r'(?:\$|show|say|tile)\("([\w-]+)"', page))
    used |= {f"{name}-line" for name in re.findall(r'tile\("([\w-]+)"', page)}
    assert used <= set(ids)


def test_only_the_page_is_open(server, with_key):
    assert server.get("/status")[0] == 401
    assert server.post("/", {"inputs": "a"})[0] == 401
    assert server.post("/", {"inputs": "a"}, with_key)[0] == 200
    assert server.get("/", {"Authorization": "Bearer wrong"})[0] == 200


def test_status(server, with_key):
    before = server.get("/status", with_key)[1]
    for _ in range(3):
        server.post("/embed", {"inputs": ["a", "the river and the road"]}, with_key)
    server.get("/health")
    server.get("/info", with_key)
    status, after = server.get("/status", with_key)
    assert status == 200
    assert (after["ready"], after["default"], after["open_requests"]) == (True, "tiny", 0)
    assert after["state"] == "ready"
    assert after["process"] == server.process.pid
    assert 10e6 < after["resident_bytes"] < 10e9
    model, recent = after["models"][0], after["last_minute"]
    assert (model["name"], model["dimension"], model["max_length"]) == ("tiny", 32, 128)
    assert model["provider"] in ("native", "CPU")  # the latter where the engine has no quick kernel
    assert model["precision"] == "fp32"
    taken = {"native": "the native engine", "CPU": "onnxruntime"}[model["provider"]]
    assert model["provider_reason"].startswith(f"auto takes {taken} where")
    assert model["texts"] - before["models"][0]["texts"] == 6
    assert model["tokens"] > before["models"][0]["tokens"]
    assert 0 < recent["latency_seconds"]["p50"] <= recent["latency_seconds"]["p99"] < 60
    assert recent["requests_per_second"] > before["last_minute"]["requests_per_second"]
    assert recent["failed_per_second"] == 0


def test_rates_are_of_the_last_minute():
    now = [100.0]
    recent = Recent(lambda: now[0])
    assert recent.summary() == {
        "requests_per_second": 0, "refused_per_second": 0, "failed_per_second": 0,
        "texts_per_second": 0, "tokens_per_second": 0, "texts_per_run": None, "padding": None,
        "latency_seconds": {"p50": None, "p90": None, "p99": None},
    }  # fmt: skip
    now[0] = 110.0
    for i in range(1, 101):
        recent.add_request(200, i / 1000)
    for status in (429, 429, 500, 424, 422):
        recent.add_request(status, 9.0)
    recent.add_run(BatchReport([3, 5], 10, [0.1, 0.1], 0.1, failed=False))
    recent.add_run(BatchReport([3, 5], 10, [0.1, 0.1], 0.1, failed=True))
    found = recent.summary()
    assert found["requests_per_second"] == 10.5
    assert (found["refused_per_second"], found["failed_per_second"]) == (0.2, 0.2)
    assert (found["texts_per_second"], found["tokens_per_second"]) == (0.2, 0.8)
    assert (found["texts_per_run"], found["padding"]) == (2, pytest.approx(0.2))
    assert found["latency_seconds"] == pytest.approx({"p50": 0.0505, "p90": 0.0901, "p99": 0.09901})
    now[0] = 165.0
    recent.add_request(200, 1.0)
    assert recent.summary()["requests_per_second"] == 106 / 60
    now[0] = 171.0
    assert recent.summary()["requests_per_second"] == 1 / 60
    assert recent.summary()["texts_per_second"] == 0
    # More than is kept: the window is as long as what is kept.
    for _ in range(3):
        for _ in range(4096):
            recent.add_request(200, 0.1)
        now[0] += 1.0
    assert recent.summary()["requests_per_second"] == 8192 / 2


@pytest.mark.full
@pytest.mark.browser
def test_in_a_browser(server, browser, encoder, key):
    """Asks for the key, shows the model, compares two texts, says what is wrong with one."""
    address = f"http://127.0.0.1:{server.port}/"
    browser.call("Page.navigate", url=address)
    browser.wait_for("document.getElementById('key-form')?.hidden === false")
    assert browser.evaluate("document.getElementById('content').hidden")
    browser.type("#key", "wrong")
    browser.click("#key-form button")
    browser.wait_for("document.getElementById('problem').textContent.includes('not accepted')")
    browser.type("#key", key)
    browser.click("#key-form button")
    browser.wait_for("!document.getElementById('content').hidden")
    assert browser.evaluate("document.getElementById('state').textContent") == "ready"
    assert browser.evaluate("document.querySelector('#models th').textContent") == "tiny"
    assert browser.evaluate("document.getElementById('memory').dataset.unit") == "MB"

    assert browser.evaluate("document.getElementById('meter').hidden"), "nothing is compared yet"

    browser.type("#one", "the river")
    browser.type("#other", "a road")
    browser.click("#go")
    browser.wait_for("/\\d/.test(document.getElementById('cosine').textContent)")
    a, b = encoder.encode(["the river", "a road"])
    expected = f"{cosine_similarity(a[None], b[None])[0, 0]:.3f}"
    assert browser.evaluate("document.getElementById('cosine').textContent") == expected
    browser.wait_for("document.getElementById('requests').textContent !== '0'")
    unit = browser.evaluate("document.getElementById('requests').dataset.unit")
    assert unit in ("a second", "in the last minute")
    assert not browser.evaluate("document.getElementById('meter').hidden")
    for tile, unit in {"requests": "second|minute", "latency": "s", "memory": "B"}.items():
        scale = browser.evaluate(f"document.getElementById('{tile}-scale').textContent")
        assert re.fullmatch(rf"at most [0-9.,]+ .*({unit})", scale), scale
    browser.wait_for("document.querySelector('#requests-line polyline').points.length > 1")
    folder = Path(os.environ.get("MIRROR_RT_ARTEFACTS", ROOT / "build"))
    for width, scheme in itertools.product((1280, 390), ("dark", "light")):
        browser.show_as(width, scheme)
        browser.check_readable()
        browser.screenshot(folder / f"status-page-{width}-{scheme}.png")
    assert (folder / "status-page-390-dark.png").stat().st_size > 10_000

    browser.type("#other", " ")
    browser.click("#go")
    browser.wait_for("document.getElementById('compare-error').textContent.includes('white space')")
    assert set(browser.requested) <= {address, f"{address}status", f"{address}similarity",
                                      "about:blank", f"{address}favicon.ico"}  # fmt: skip
    # The browser notes each refusal of ours; anything else would be a fault of the page.
    wrong = [text for text in browser.complaints if "the server responded with" not in text]
    assert wrong == []


@pytest.mark.full
@pytest.mark.browser
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize(
    ("state", "colour"), [("ready", "good"), ("warming up", "wait"), ("failed", "bad")]
)
def test_only_a_failure_is_red(server, browser, with_key, state, colour, scheme):
    browser.show_as(390, scheme)
    browser.call("Page.navigate", url=f"http://127.0.0.1:{server.port}/")
    browser.wait_for(
        "document.getElementById('state')?.textContent === 'locked'"
    )  # it asks no more
    status = server.get("/status", with_key)[1] | {"state": state}
    browser.evaluate(f"render({json.dumps(status)}); $('content').hidden = false")
    assert browser.evaluate("document.getElementById('state').className") == colour
    browser.check_readable()
    red, green, blue = browser.evaluate(
        "getComputedStyle(document.getElementById('state')).color.match(/\\d+/g).map(Number)"
    )
    amber = red > green > blue and red - green < green - blue
    assert amber == (state == "warming up")
