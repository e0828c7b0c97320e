"""The clients that languages and systems come with, as they are by default."""

import json
import subprocess
from pathlib import Path

import numpy as np
import pytest

from rounding import ANY_BATCH

pytestmark = pytest.mark.full
PROGRAMS = Path(__file__).parent / "http_clients"
LONG = "some words of a text " * 30_000  # sent in many packets
STATUS = "\n%{http_code}\n"  # as curl writes it


@pytest.fixture(scope="module")
def bodies(tmp_path_factory) -> list[Path]:
    """A small request, a large one, and the small one again."""
    folder = tmp_path_factory.mktemp("bodies")
    small, large = folder / "small.json", folder / "large.json"
    small.write_text(json.dumps({"inputs": "word"}))
    large.write_text(json.dumps({"inputs": LONG, "truncate": True}))
    return [small, large, small]


@pytest.fixture(scope="module")
def expected(encoder):
    return [encoder.encode(text) for text in ("word", LONG, "word")]


@pytest.fixture(scope="module")
def address(open_server) -> str:
    return f"http://127.0.0.1:{open_server.port}/"


def run(*line: object) -> list[str]:
    words = [str(word) for word in line]
    done = subprocess.run(words, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def check(answers: list[str], expected) -> None:
    """Each line is a status and a vector."""
    assert [line.split(" ", 1)[0] for line in answers] == ["200"] * len(expected)
    for line, vector in zip(answers, expected, strict=True):
        np.testing.assert_allclose(json.loads(line.split(" ", 1)[1])[0], vector, atol=ANY_BATCH)


@pytest.mark.needs("curl")
@pytest.mark.parametrize("path", ["embed", "embed?x=1", ""])
def test_curl_offers_http2(address, bodies, expected, path):
    told = [word for body in bodies
            for word in ("--next", "--silent", "--http2", f"{address}{path}", "--data-binary",
                         f"@{body}", "--write-out", STATUS)]  # fmt: skip
    lines = run("curl", *told[1:])
    check([f"{code} {body}" for body, code in zip(lines[::2], lines[1::2], strict=True)], expected)


@pytest.mark.needs("curl")
def test_curl_waits_for_leave(address, bodies, expected):
    lines = run("curl", "--silent", "--header", "Expect: 100-continue", "--data-binary",
                f"@{bodies[1]}", f"{address}embed", "--write-out", STATUS)  # fmt: skip
    check([f"{lines[1]} {lines[0]}"], expected[1:2])


@pytest.mark.needs("java")
def test_the_client_of_java(address, bodies, expected):
    """java.net.http offers h2c with every request in the clear."""
    check(run("java", PROGRAMS / "Client.java", f"{address}embed", *bodies), expected)


@pytest.mark.needs("go")
def test_the_client_of_go(address, bodies, expected, tmp_path):
    program = tmp_path / "client"
    run("go", "build", "-o", program, PROGRAMS / "client.go")
    check(run(program, f"{address}embed", *bodies), expected)


@pytest.mark.needs("node")
def test_the_clients_of_node(address, bodies, expected):
    """fetch, http.request, and http.request that offers h2c: three answers a body."""
    lines = run("node", PROGRAMS / "client.mjs", f"{address}embed", *bodies)
    check(lines, [vector for vector in expected for _ in range(3)])
