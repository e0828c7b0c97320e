"""Answers that nobody reads: they take no room of the model, and end in time, on every route."""

import asyncio
import contextlib
import json
import socket

import pytest

from asgi_calls import Call, run
from mirror_rt.server.http.ending import LingeringTransport
from server_process import until

TEXTS = ["river " * 20] * 600
# Requests whose answers have several parts: computed as they are sent, and written before.
ROUTES = [
    ("/tokenize", {"inputs": TEXTS}),
    ("/embed_all", {"inputs": TEXTS}),
    ("/decode", {"ids": [[7] * 100] * 600}),
    ("/embed", {"inputs": TEXTS}),
    ("/v1/embeddings", {"input": TEXTS}),
    ("/similarity", {"inputs": {"source_sentence": "a", "sentences": TEXTS * 3}}),
]


@pytest.fixture
def app(make):
    return make(max_wait=60.0, max_waiting_texts=2048)


async def unread(app, path, body, n):
    """Begin requests whose clients read a part of the answer, and no more."""
    calls = []
    for _ in range(n):
        calls.append(Call(app, path, body, takes=1))
        while calls[-1].task not in app.state.registry.unread._waiting:
            assert not calls[-1].task.done(), calls[-1].status
            await asyncio.sleep(0)
    return calls


@pytest.mark.parametrize(("path", "body"), ROUTES[:5], ids=[path for path, _ in ROUTES[:5]])
def test_they_shut_nobody_out(path, body, app):
    """Four of them have more texts than may wait, and nothing of them waits."""
    registry = app.state.registry

    async def main():
        calls = await unread(app, path, body, 4)
        counts = registry.services["tiny"].scheduler.statistics()
        assert counts.waiting_texts == counts.waiting_tokens == 0
        assert registry.bodies._held == 0
        for other, given in (("/embed", {"inputs": ["a"] * 2048}), ("/tokenize", {"inputs": "a"}),
                             ("/embed_all", {"inputs": "a"})):  # fmt: skip
            assert (await Call(app, other, given).answer())[0] == 200
        for call in calls:
            call.reads.set()
            assert (await call.answer())[0] == 200
        assert registry.unread._held == 0

    run(main())


def test_a_model_is_free_when_its_answer_is_written(app):
    registry = app.state.registry
    cache, model = registry._cache, registry.models.default

    async def main():
        for path, body, users in ((*ROUTES[3], 0), (*ROUTES[0], 1)):
            [call] = await unread(app, path, body, 1)
            assert cache._entries[model].users == users
            call.reads.set()
            await call.answer()
            assert cache._entries[model].users == 0

    run(main())


@pytest.mark.parametrize(("path", "body"), ROUTES, ids=[path for path, _ in ROUTES])
def test_every_answer_is_sent_in_parts(path, body, app):
    """What a connection holds for a client that does not read has a bound."""

    async def main():
        call = Call(app, path, body)
        assert (await call.answer())[0] == 200
        assert max(map(len, call._parts)) <= 64 << 10

    run(main())


def test_bytes_that_are_written_whole_count_too(app, monkeypatch):
    """An answer of one piece of many bytes counts with them until it is read."""
    monkeypatch.setattr("mirror_rt.server.exchange._PART_BYTES", 1 << 10)
    held = app.state.registry.unread

    async def main():
        [call] = await unread(app, *ROUTES[5], 1)
        size = int(call.headers[b"content-length"])
        assert held._held == size > 10 << 10
        call.reads.set()
        status, cosines = await call.answer()
        assert (status, len(cosines)) == (200, 1800)
        assert sum(map(len, call._parts)) == size
        assert held._held == 0

    run(main())


class Peer:
    """A client that reads nothing before it is told to, and the transport of its server."""

    async def __aenter__(self):
        ours, self.client = socket.socketpair()
        self.client.setblocking(False)
        self.lost = asyncio.Event()
        lost = self.lost

        class Protocol(asyncio.Protocol):
            def connection_lost(self, error):
                lost.set()

        loop = asyncio.get_running_loop()
        transport, _ = await loop.connect_accepted_socket(Protocol, ours)
        self.within = transport
        self.transport = LingeringTransport(transport, loop, self.patience)
        return self

    async def __aexit__(self, *_):
        self.transport.lost()
        self.within.abort()
        await self.lost.wait()
        self.client.close()

    def __init__(self, patience):
        self.patience = patience

    async def read(self, size):
        loop, found = asyncio.get_running_loop(), 0
        while found < size and (part := await loop.sock_recv(self.client, 1 << 16)):
            found += len(part)
        return found


SIZE = 8 << 20  # more than any socket holds


@pytest.mark.parametrize("end", ["open", "closed", "lingering"])
def test_a_client_that_does_not_read_loses_the_connection(end):
    """Whether the connection waits for a request, is closed, or lingers."""

    async def main():
        async with Peer(0.05) as peer:
            peer.transport.write(bytes(SIZE))
            peer.transport.sending = end == "lingering"
            if end != "open":
                peer.transport.close()
            await peer.lost.wait()
            assert await peer.read(SIZE) < SIZE

    run(main())


def test_a_client_that_reads_keeps_the_connection():
    async def main():
        async with Peer(60.0) as peer:
            for _ in range(3):
                peer.transport.write(bytes(SIZE))
                assert await peer.read(SIZE) == SIZE
            peer.transport._look()
            assert not peer.transport.is_closing()

    run(main())


def test_the_least_that_a_client_has_to_take():
    """64 KiB are enough, a byte less is not; what was written just now has its time before it."""

    async def main():
        for taken, kept in ((64 << 10, True), ((64 << 10) - 1, False)):
            async with Peer(60.0) as peer:
                peer.transport.write(bytes(SIZE))
                peer.transport._look()
                assert not peer.within.is_closing()  # its time is not over
                waiting = peer.within.get_write_buffer_size()
                peer.transport._taken = peer.transport._written - waiting - taken
                peer.transport._since -= 60.0
                peer.transport._look()
                assert peer.within.is_closing() is not kept

    run(main())


@pytest.mark.full
@pytest.mark.parametrize(("path", "body"), ROUTES[:2], ids=[path for path, _ in ROUTES[:2]])
def test_over_sockets(path, body, bundle, start_server):
    """Clients of real connections that read nothing: others are answered, and theirs end."""
    server = start_server(bundle, "--answer-timeout", 2, "--max-waiting-texts", 2048)
    given = {"inputs": [" ".join(["river"] * 100)] * 2000}
    data = json.dumps(given).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: a\r\nContent-Length: {len(data)}\r\n\r\n".encode()
    with contextlib.ExitStack() as stack:
        for _ in range(4):
            client = stack.enter_context(socket.socket())
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.connect(("127.0.0.1", server.port))
            client.sendall(head + data)
        until(lambda: server.get("/status")[1]["open_requests"] == 4)
        for _ in range(10):
            assert server.post("/embed", {"inputs": ["a"] * 10})[0] == 200
        until(lambda: server.get("/status")[1]["open_requests"] == 0)
    assert server.get("/ready")[0] == 200
    assert server.stop() == 0
