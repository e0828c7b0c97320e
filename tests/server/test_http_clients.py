"""The clients that languages and systems come with, as they are by default."""

import json
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from mirror_rt import Encoder
from server_process import ServerProcess

PROGRAMS = Path(__file__).parent / "http_clients"
LONG = "some words of a text " * 30_000  # sent in many packets


@pytest.fixture(scope="module")
def bodies(tmp_path_factory) -> list[Path]:
    """A small request, a large one, and the small one again."""
    folder = tmp_path_factory.mktemp("bodies")
    small, large = folder / "small.json", folder / "large.json"
    small.write_text(json.dumps({"inputs": "word"}))
    large.write_text(json.dumps({"inputs": LONG, "truncate": True}))
    return [small, large, small]


@pytest.fixture(scope="module")
def expected(bundle):
    with Encoder.load(bundle, threads=1) as encoder:
        return [encoder.encode(text) for text in ("word", LONG, "word")]


@pytest.fixture(scope="module")
def server(bundle):
    server = ServerProcess(bundle)
    server.wait_until_ready()
    yield server
    assert server.stop() == 0
    assert not [line for line in server.lines if "Traceback" in line]


def run(*line: object, **options) -> list[str]:
    done = subprocess.run(
        [str(word) for word in line],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        **options,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def check(answers: list[str], expected) -> None:
    """Each line is a status and a vector."""
    assert [line.split(" ", 1)[0] for line in answers] == ["200"] * len(expected)
    for line, vector in zip(answers, expected, strict=True):
        np.testing.assert_allclose(json.loads(line.split(" ", 1)[1])[0], vector, atol=1e-5)


def need(program: str) -> str:
    found = shutil.which(program)
    if found is None:
        pytest.skip(f"{program} is not installed")
    return found


@pytest.mark.parametrize("path", ["embed", "embed?x=1", ""])
def test_curl_offers_http2(server, bodies, expected, path):
    curl = need("curl")
    if (
        "HTTP2"
        not in subprocess.run([curl, "-V"], capture_output=True, text=True, check=True).stdout
    ):
        pytest.skip("this curl was built without HTTP/2")
    url = f"http://127.0.0.1:{server.port}/{path}"
    told = [
        word
        for body in bodies
        for word in (
            "--next",
            "--silent",
            "--http2",
            url,
            "--data-binary",
            f"@{body}",
            "--write-out",
            "\n%{http_code}\n",
        )
    ]
    lines = run(curl, *told[1:])
    check([f"{code} {body}" for body, code in zip(lines[::2], lines[1::2], strict=True)], expected)


def test_curl_waits_for_leave(server, bodies, expected):
    lines = run(
        need("curl"),
        "--silent",
        "--header",
        "Expect: 100-continue",
        "--data-binary",
        f"@{bodies[1]}",
        f"http://127.0.0.1:{server.port}/embed",
        "--write-out",
        "\n%{http_code}\n",
    )
    check([f"{lines[1]} {lines[0]}"], expected[1:2])


def test_the_client_of_java(server, bodies, expected):
    """java.net.http offers h2c with every request in the clear."""
    need("javac")  # which runs the source
    check(
        run(
            need("java"), PROGRAMS / "Client.java", f"http://127.0.0.1:{server.port}/embed", *bodies
        ),
        expected,
    )


def test_the_client_of_go(server, bodies, expected, tmp_path):
    go = need("go")
    program = tmp_path / "client"
    run(go, "build", "-o", program, PROGRAMS / "client.go")
    check(run(program, f"http://127.0.0.1:{server.port}/embed", *bodies), expected)


def test_the_clients_of_node(server, bodies, expected):
    """fetch, http.request, and http.request that offers h2c: three answers a body."""
    node = need("node")
    if int(run(node, "--version")[0].lstrip("v").split(".")[0]) < 18:
        pytest.skip("node has fetch from 18 on")
    lines = run(node, PROGRAMS / "client.mjs", f"http://127.0.0.1:{server.port}/embed", *bodies)
    check(lines, [vector for vector in expected for _ in range(3)])
