"""Clients of HTTPS that break the handshake, the protocol or off, or do not read."""

import contextlib
import http.client
import json
import signal
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


def certify(folder):
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256",
         "-nodes", "-keyout", "key.pem", "-out", "certificate.pem", "-days", "2", "-subj",
         "/CN=localhost"], cwd=folder, check=True, capture_output=True,
    )  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("tls")


@pytest.fixture(scope="module")
def server(bundle, folder):
    certify(folder)
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


def test_a_certificate_is_exchanged(server, folder, tmp_path):
    """Without the key that fits, the old one stays; SIGHUP and a change let both be read."""

    def served():
        with server.socket() as raw, ssl._create_unverified_context().wrap_socket(raw) as client:
            return client.getpeercert(binary_form=True)

    def said(words):
        return sum(words in line for line in server.lines)

    old = served()
    certify(tmp_path)
    (tmp_path / "certificate.pem").replace(folder / "certificate.pem")
    until(lambda: said("the certificate stays as it was: TLS: "))
    assert served() == old
    (tmp_path / "key.pem").replace(folder / "key.pem")
    until(lambda: said("the certificate was read again") == 1)
    new = ssl.PEM_cert_to_DER_cert((folder / "certificate.pem").read_text())
    assert served() == new != old
    server.process.send_signal(signal.SIGHUP)
    until(lambda: said("the certificate was read again") == 2)
    answers(server)
