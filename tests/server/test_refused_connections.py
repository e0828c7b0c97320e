"""What is refused or cut off is answered, named, counted and logged as what it was."""

import asyncio
import json
import logging
import resource

import pytest

from mirror_rt.cli import main
from mirror_rt.cli.serve import Serve
from mirror_rt.errors import ConfigError
from mirror_rt.server.config import ListenConfig
from mirror_rt.server.process import listening
from server_process import read_all, running, until


def test_too_many_connections_and_requests_that_cannot_be_read(bundle):
    with running(bundle, "--max-connections", "3") as server:
        kept = []

        def keep():  # one that was closed before may count still
            connection = server.socket()
            connection.sendall(b"GET /health HTTP/1.1\r\nhost: a\r\n\r\n")
            answer = b""
            while not answer.endswith(b"}") and (some := connection.recv(4096)):
                answer += some
            taken = answer.startswith(b"HTTP/1.1 200")
            kept.append(connection) if taken else connection.close()
            return len(kept) == 3

        until(keep)
        with server.socket() as one_more:
            refused = read_all(one_more)
        assert refused.startswith(b"HTTP/1.1 503")
        kept[0].sendall(b"NO\r\n\r\n")
        unread = read_all(kept[0])
        assert unread.startswith(b"HTTP/1.1 400")
        for answer in (refused, unread):
            name = answer.lower().partition(b"x-request-id: ")[2].split(b"\r\n")[0].decode()
            until(lambda name=name: any(name in line for line in server.lines))
            line = next(json.loads(line) for line in server.lines if name in line)
            assert line["reason"]
            assert line["peer"] == "127.0.0.1"
        for connection in kept:
            connection.close()
        until(lambda: server.get("/health")[0] == 200)
        metrics = server.get("/metrics")[1].decode()
        for status in (400, 503):
            assert f'_count{{model="",route="unread",status="{status}"}}' in metrics
        server.get("/nowhere")
        until(lambda: any("not_found" in line for line in server.lines))
    probes = [line for line in server.lines if '"/health"' in line or '"/ready"' in line]
    assert not [line for line in probes if '"status":200' in line]


def test_descriptors_are_checked_at_the_start(monkeypatch, caplog):
    monkeypatch.setattr(resource, "getrlimit", lambda _: (64, 64))
    most = listening.most_connections(ListenConfig())
    assert 1 <= most < 32
    with caplog.at_level(logging.WARNING):
        listening.check_descriptors(ListenConfig())
    assert "64 files" in caplog.text
    with pytest.raises(ConfigError, match="ulimit -n"):
        listening.check_descriptors(ListenConfig(max_connections=64))


def test_an_answer_cut_off_by_the_drain(make, caplog):
    """It is counted and logged as 503, and is no exception."""
    app = make()
    registry = app.state.registry

    async def cut():
        sending = asyncio.Event()

        async def receive():
            await asyncio.Event().wait()

        async def send(message):
            if message["type"] == "http.response.body":
                sending.set()
                await asyncio.Event().wait()

        scope = {"type": "http", "method": "GET", "path": "/health", "headers": [],
                 "query_string": b"", "client": ("192.0.2.1", 1), "root_path": ""}  # fmt: skip
        task = asyncio.create_task(app(scope, receive, send))
        await sending.wait()
        registry.stopping = True
        task.cancel()
        await task

    with caplog.at_level(logging.INFO):
        asyncio.run(cut())
    line = next(one.fields for one in caplog.records if one.message == "request")
    assert (line["status"], line["reason"], line["peer"]) == (503, "stopping", "192.0.2.1")
    assert 'route="/health",status="503"' in registry.metrics.text().decode()


@pytest.mark.parametrize("error", [MemoryError(), RuntimeError("can't start new thread")])
def test_a_start_without_enough_memory_is_an_error_of_one_line(error, bundle, monkeypatch, capsys):
    def run(self):
        raise error

    monkeypatch.setattr(Serve, "run", run)
    assert main(["serve", str(bundle)]) == 1
    said = capsys.readouterr().err
    assert "not enough memory" in said
    assert said.count("\n") == 1
