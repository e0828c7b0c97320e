"""The page /docs: it is whole, a browser shows it, and what it says of the server is true."""

import contextlib
import gzip
import hashlib
import itertools
import json
import os
import re
import subprocess
from importlib import resources
from pathlib import Path

import jsonschema_rs
import pytest

from mirror_rt.server.http.openapi import ADDRESS, openapi_document
from paths import ROOT

OPERATIONS = {
    f"{method.upper()} {path}": operation
    for path, methods in openapi_document()["paths"].items()
    for method, operation in methods.items()
}
PACKED = (resources.files("mirror_rt") / "server" / "http" / "scalar.js.gz").read_bytes()


@pytest.mark.needs("curl")
@pytest.mark.parametrize("name", OPERATIONS)
def test_the_sample_runs(open_server, name):
    operation = OPERATIONS[name]
    (sample,) = operation["x-codeSamples"]
    line = sample["source"].replace(ADDRESS, f"http://127.0.0.1:{open_server.port}") + " -fsS"
    done = subprocess.run(["sh", "-c", line], capture_output=True, check=True)
    media, found = next(iter(operation["responses"]["200"]["content"].items()))
    if media == "application/json":
        components = {"components": openapi_document()["components"]}
        jsonschema_rs.validate(found["schema"] | components, json.loads(done.stdout))
    else:
        assert done.stdout


def test_every_entry_has_a_name_of_its_own_with_its_path():
    names = {name: operation["summary"] for name, operation in OPERATIONS.items()}
    assert len(set(names.values())) == len(names)
    assert all(said.startswith(f"{name.split()[1]}: ") for name, said in names.items())


@pytest.mark.parametrize("name", OPERATIONS)
def test_examples_are_what_the_schemas_allow(name):
    operation, components = OPERATIONS[name], openapi_document()["components"]
    found = [operation["responses"]["200"]["content"]]
    if "requestBody" in operation:
        found.append(operation["requestBody"]["content"])
    for value in (content for one in found for content in one.values()):
        schema = value["schema"]
        assert "example" in value or schema["type"] == "string"
        if "example" in value:
            jsonschema_rs.validate(schema | {"components": components}, value["example"])


@pytest.mark.parametrize("name", openapi_document()["components"]["schemas"])
def test_every_field_has_a_sentence(name):
    components = openapi_document()["components"]["schemas"]
    for field, schema in components[name]["properties"].items():
        named = json.dumps(schema).partition("#/components/schemas/")[2].partition('"')[0]
        text = schema.get("description") or components[named]["description"]
        assert re.fullmatch(r"[A-Z].*\.", text, re.DOTALL), (field, text)


def test_the_renderer_is_the_pinned_one(open_server):
    script = (ROOT / ".ci" / "renderer").read_text()
    (pinned,) = re.findall(r"^program=(\w+)$", script, re.MULTILINE)
    assert hashlib.sha256(gzip.decompress(PACKED)).hexdigest() == pinned
    with contextlib.closing(open_server.connect()) as connection:
        connection.request("GET", "/docs/scalar.js")
        response = connection.getresponse()
        assert response.getheader("content-encoding") == "gzip"
        assert response.getheader("content-type") == "text/javascript"
        assert response.read() == PACKED


def test_the_page_is_open_and_runs_nothing_from_elsewhere(keyed_server):
    server = keyed_server
    assert [server.get(path)[0] for path in ("/docs/scalar.js", "/status")] == [200, 401]
    with contextlib.closing(server.connect()) as connection:
        connection.request("GET", "/docs")
        response = connection.getresponse()
        page = response.read().decode()
        policy = response.getheader("content-security-policy")
    assert re.findall(r'src="(.*?)"', page) == ["docs/scalar.js"]
    assert re.findall(r"https?://[\w.:]+", page) == [ADDRESS]
    assert policy.startswith("default-src 'none'; ")
    assert "connect-src 'self';" in policy
    (script,) = re.findall(r"script-src (.*?);", policy)
    assert re.fullmatch(r"'self' 'sha256-[\w+/=]+'", script)


@pytest.mark.full
@pytest.mark.browser
def test_in_a_browser(open_server, browser):
    """It shows each path, with the server's own address, and asks nothing of anybody else."""
    address = f"http://127.0.0.1:{open_server.port}"
    folder = Path(os.environ.get("MIRROR_RT_ARTEFACTS", ROOT / "build"))
    for width, scheme in itertools.product((1280, 390), ("light", "dark")):
        browser.show_as(width, scheme)
        browser.call("Page.navigate", url="about:blank")
        browser.call("Page.navigate", url=f"{address}/docs#tag/openai/POST/v1/embeddings")
        browser.wait_for(f"document.body?.innerText.includes('curl {address}/v1/embeddings')")
        browser.wait_for("document.body.innerText.includes('Keep this number of the first')")
        browser.check_readable()
        browser.screenshot(folder / f"docs-{width}-{scheme}.png")
    shown = browser.evaluate("document.body.textContent")
    assert [one["summary"] for one in OPERATIONS.values() if one["summary"] not in shown] == []
    assert {url.partition("#")[0] for url in browser.requested} <= {
        "about:blank", f"{address}/docs", f"{address}/docs/scalar.js",
        f"{address}/openapi.json", f"{address}/favicon.ico",
    }  # fmt: skip
    assert [text for text in browser.complaints if "favicon" not in text] == []
