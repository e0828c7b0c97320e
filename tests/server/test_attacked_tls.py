"""Clients of HTTPS that break the handshake, the protocol or off, or do not read."""

import contextlib
import http.client
import json
import socket
import ssl
import subprocess

import pytest

from server_process import ServerProcess, until

pytestmark = [pytest.mark.full, pytest.mark.needs("openssl")]


class TlsServer(ServerProcess):
    def connect(self):
        context = ssl._create_unverified_context()
        return http.client.HTTPSConnection("127.0.0.1", self.port, timeout=30, context=context)


@pytest.fixture(scope="module")
def server(bundle, tmp_path_factory):
    folder = tmp_path_factory.mktemp("tls")
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256",
         "-nodes", "-keyout", "key.pem", "-out", "certificate.pem", "-days", "2", "-subj",
         "/CN=localhost"], cwd=folder, check=True, capture_output=True,
    )  # fmt: skip
    server = TlsServer(bundle, "--tls-certificate", folder / "certificate.pem", "--tls-key",
                       folder / "key.pem", "--answer-timeout", 1, "--keep-alive", 2)  # fmt: skip
    server.wait_until_ready()
    yield server
    assert server.stop() == 0


def answers(server):
    assert server.get("/health")[0] == 200
    assert server.post("/embed", {"inputs": ["a", "the river"]})[0] == 200


HELLO = bytes.fromhex("16030100c8010000c40303") + bytes(64)


@pytest.mark.parametrize("sent", [
    b"", b"GET /health HTTP/1.1\r\nHost: a\r\n\r\n", HELLO, HELLO[:5], b"\x16\x03\x01\xff\xff",
    b"\x80\x2e\x01\x00\x02" + bytes(40), b"\x15\x03\x01\x00\x02\x02\x28", b"\0" * 70_000,
])  # fmt: skip
def test_what_is_no_handshake(sent, server):
    """While such connections are open, others are answered."""
    with contextlib.ExitStack() as stack:
        for _ in range(20):
            client = stack.enter_context(server.socket())
            with contextlib.suppress(OSError):  # it has hung up
                client.sendall(sent)
        answers(server)
    answers(server)


def test_a_client_that_ends_in_the_middle(server):
    context = ssl._create_unverified_context()
    body = json.dumps({"inputs": ["river"] * 500}).encode()
    head = f"POST /embed HTTP/1.1\r\nHost: a\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    for part in (head, head + body[:100], head + body):
        raw = server.socket()
        with contextlib.closing(context.wrap_socket(raw)) as client:
            client.sendall(part)
        raw.close()
    until(lambda: server.get("/status")[1]["open_requests"] == 0)
    answers(server)


def test_a_client_that_does_not_read(server):
    context = ssl._create_unverified_context()
    body = json.dumps({"inputs": [" ".join(["river"] * 100)] * 2000}).encode()
    head = f"POST /tokenize HTTP/1.1\r\nHost: a\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    with contextlib.ExitStack() as stack:
        for _ in range(4):
            raw = socket.socket()
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            raw.connect(("127.0.0.1", server.port))
            stack.enter_context(context.wrap_socket(raw)).sendall(head + body)
        until(lambda: server.get("/status")[1]["open_requests"] > 0)
        answers(server)
        until(lambda: server.get("/status")[1]["open_requests"] == 0)
    answers(server)
