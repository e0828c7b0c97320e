"""Everything at a time: who is answered at all is answered rightly, in bounded memory.

MIRROR_RT_CHAOS_SECONDS sets how long (15 seconds unless set); tests/run.sh does it for 60 seconds
beside lint and types, and leaves it out (0) of the tests.
"""

import asyncio
import json
import os
import random
import re
import signal
import sys
import time
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from mirror_rt import Encoder
from mirror_rt.vectors.search import cosine_similarity
from rounding import ANY_BATCH
from server_process import ServerProcess

SECONDS = float(os.environ.get("MIRROR_RT_CHAOS_SECONDS", "15"))
DRAIN = 3
GROWTH_MB = 150
REFUSALS = {408, 413, 429, 503}


class Requests:
    """Requests of every path, small and large, with what must come back."""

    def __init__(self, encoder):
        self._encoder = encoder
        self._rng = random.Random(0)
        kinds = (self._embed, self._openai, self._embed_all, self._similarity, self._tokenize)
        self._small = [kind(False) for kind in (*kinds, self._get)]
        self._large = [kind(True) for kind in (*kinds, self._get)]

    def draw(self):
        """A path, a body, and a check of the answer."""
        return self._rng.choice(self._rng.choice([self._small, self._small, self._large]))

    def _texts(self, many):
        words = ["river", "town", "doctor", "слово", "人人生而自由"]
        return [f"{' '.join(self._rng.choices(words, k=k % 40 + 1))} {k}"
                for k in range(900 if many else 3)]  # fmt: skip

    def _embed(self, large):
        texts = self._texts(large)
        vectors = self._encoder.encode(texts)
        return "/embed", {"inputs": texts}, lambda found: near(found, vectors)

    def _openai(self, large):
        texts = self._texts(large)
        vectors = self._encoder.encode(texts)

        def check(found):
            near([row["embedding"] for row in found["data"]], vectors)

        return "/v1/embeddings", {"input": texts}, check

    def _embed_all(self, large):
        texts = self._texts(large)[:300]
        vectors = self._encoder.encode_tokens(texts)

        def check(found):
            for rows, expected in zip(found, vectors, strict=True):
                near(rows, expected)

        return "/embed_all", {"inputs": texts}, check

    def _similarity(self, large):
        texts = self._texts(large)
        vectors = self._encoder.encode(texts)
        expected = cosine_similarity(vectors[:1], vectors[1:])[0]
        inputs = {"source_sentence": texts[0], "sentences": texts[1:]}
        return "/similarity", {"inputs": inputs}, lambda found: near(found, expected)

    def _tokenize(self, large):
        texts = self._texts(large)
        expected = [[p._asdict() for p in pieces] for pieces in self._encoder.token_pieces(texts)]

        def check(found):
            assert found == expected

        return "/tokenize", {"inputs": texts}, check

    def _get(self, large):
        path = "/v1/models" if large else "/info"
        return path, None, lambda found: None if isinstance(found, dict) else pytest.fail(path)


def near(found, expected):
    np.testing.assert_allclose(np.array(found), expected, atol=ANY_BATCH)


class Connection:
    """One that is there for one request, or goes away before its end."""

    def __init__(self, port):
        self._port = port

    async def __aenter__(self):
        self.reader, self.writer = await asyncio.open_connection("127.0.0.1", self._port)
        return self

    async def __aexit__(self, *_):
        self.writer.transport.abort()

    def send(self, path, body):
        data = b"" if body is None else json.dumps(body).encode()
        method = "GET" if body is None else "POST"
        self.writer.write(
            f"{method} {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n"
            f"Content-Length: {len(data)}\r\n\r\n".encode()
            + data
        )

    async def answer(self):
        """Status and body; IncompleteReadError where it has no end."""
        head = await self.reader.readuntil(b"\r\n\r\n")
        status = int(head.split()[1])
        if b"transfer-encoding: chunked" not in head.lower():
            length = int(re.search(rb"(?i)content-length: (\d+)", head)[1])
            return status, await self.reader.readexactly(length)
        parts = []
        try:
            while size := int(await self.reader.readuntil(b"\r\n"), 16):
                parts.append((await self.reader.readexactly(size + 2))[:-2])
        except asyncio.IncompleteReadError as error:
            raise CutOffError from error
        return status, b"".join(parts)


class CutOffError(Exception):
    """An answer has begun, and has no end."""


class Chaos:
    """Clients of all kinds, until it is told to stop."""

    def __init__(self, port, requests):
        self._port, self._requests = port, requests
        self._rng = random.Random(1)
        self.counts, self.wrong = Counter(), []
        self.killed_at = -1.0
        self.stopping = False

    async def run(self, seconds, events):
        """Let clients come; `events` are (share of the time, what happens then)."""
        self._until = time.monotonic() + seconds
        clients = [self._asks() for _ in range(6)] + [self._hangs_up() for _ in range(4)]
        clients += [self._does_not_read() for _ in range(2)] + [self._floods(), self._large()]
        tasks = [asyncio.create_task(client) for client in clients]
        began = time.monotonic()
        for share, event in events:
            await asyncio.sleep(max(0, began + share * seconds - time.monotonic()))
            event()
        await asyncio.gather(*tasks)

    def _goes_on(self):
        return time.monotonic() < self._until

    async def ask(self):
        """One request, whose answer is right or a refusal."""
        path, body, check = self._requests.draw()
        began = time.monotonic()
        try:
            async with Connection(self._port) as connection:
                connection.send(path, body)
                async with asyncio.timeout(90):
                    status, content = await connection.answer()
        except (OSError, asyncio.IncompleteReadError, CutOffError) as error:
            # Those of a worker that was killed, and of nobody else.
            lost = began - 1 <= self.killed_at or time.monotonic() - self.killed_at < 2
            if lost or self.stopping:
                self.counts["lost with a worker"] += 1
            elif isinstance(error, CutOffError):
                self.counts["cut off"] += 1  # this process was too busy to read it
            else:
                self.wrong.append((path, repr(error)))
            return
        self.counts[status] += 1
        try:
            if status == 200:
                check(json.loads(content))
            elif status not in REFUSALS:
                self.wrong.append((path, status, content[:200]))
        except Exception as error:  # noqa: BLE001 - shown at the end
            self.wrong.append((path, repr(error)[:500]))

    async def _asks(self):
        while self._goes_on():
            await self.ask()

    async def _hangs_up(self):
        """Sends a request, or a part of it, and is gone some time later."""
        while self._goes_on():
            path, body, _ = self._requests.draw()
            try:
                async with Connection(self._port) as connection:
                    connection.send(path, body)
                    await asyncio.sleep(self._rng.choice([0, 0.001, 0.01, 0.1, 0.5]))
            except OSError:
                pass
            self.counts["hung up"] += 1
            await asyncio.sleep(0.01)

    async def _does_not_read(self):
        body = {"inputs": ["river " * 60] * 1000}
        while self._goes_on():
            try:
                async with Connection(self._port) as connection:
                    connection.send(self._rng.choice(["/embed_all", "/tokenize", "/embed"]), body)
                    await asyncio.sleep(min(3.0, max(0.1, self._until - time.monotonic())))
            except OSError:
                pass
            self.counts["did not read"] += 1

    async def _floods(self):
        """Many small ones at the same moment."""
        while self._goes_on():
            await asyncio.gather(*(self.ask() for _ in range(40)))
            await asyncio.sleep(1)

    async def _large(self):
        """Bodies of the largest size, which are refused, or are as much work as one can send."""
        bodies = [
            ("/tokenize", b'{"inputs": "%s"}' % (b"a " * 8_000_000)),
            ("/embed", b'{"inputs": [%s5]}' % (b"5," * 8_000_000)),
            ("/embed_all", json.dumps({"inputs": ["river " * 90] * 2000}).encode()),
            ("/v1/embeddings", b'{"input": "%s", "on_too_long": "chunk"}' % (b"river " * 400_000)),
        ]
        while self._goes_on():
            for path, data in bodies:
                try:
                    async with Connection(self._port) as connection:
                        connection.writer.write(
                            f"POST {path} HTTP/1.1\r\nHost: a\r\n"
                            f"Content-Length: {len(data)}\r\n\r\n".encode()
                            + data
                        )
                        async with asyncio.timeout(2):
                            status, _ = await connection.answer()
                            self.counts[status, "large"] += 1
                except (OSError, asyncio.IncompleteReadError, CutOffError):
                    self.counts["large, given up"] += 1
                await asyncio.sleep(0.2)


def resident_mb(pids):
    sizes = [
        re.search(r"RssAnon:\s+(\d+)", Path(f"/proc/{pid}/status").read_text()) for pid in pids
    ]
    return [int(size[1]) / 1024 for size in sizes]


def workers(server):
    """Processes of workers that live, the newest of each number."""
    found = dict(re.findall(r"worker (\d) listens, process (\d+)", "".join(server.lines)))
    return [int(pid) for pid in found.values()]


def settled(server, limits):
    """Wait until all is done, and the memory within its limits again; return it."""
    until = time.monotonic() + 60
    while True:
        sizes = resident_mb(workers(server))
        if all(size < limit for size, limit in zip(sizes, limits, strict=True)):
            return sizes
        if time.monotonic() > until:
            return sizes
        time.sleep(0.5)


@pytest.mark.full
@pytest.mark.skipif(sys.platform != "linux", reason="memory is read from /proc")
def test_chaos(bundle):
    if SECONDS <= 0:
        pytest.skip("MIRROR_RT_CHAOS_SECONDS=0: tests/run.sh does it beside lint and types")
    server = ServerProcess(bundle, "--workers", 2, "--drain", DRAIN, "--max-wait", 10)
    try:
        server.wait_until_ready()
        with Encoder.load(bundle, threads=1) as encoder:
            chaos = Chaos(server.port, Requests(encoder))
            asyncio.run(chaos.run(2, []))  # what is taken once, and stays
            began = resident_mb(workers(server))

            def kill():
                chaos.killed_at = time.monotonic()
                os.kill(workers(server)[0], signal.SIGKILL)

            def reload():
                server.process.send_signal(signal.SIGHUP)

            events = [(0.2, reload), (0.4, kill), (0.6, reload), (0.8, reload)]
            asyncio.run(chaos.run(SECONDS, events))
            after = settled(server, [size + GROWTH_MB for size in began])
        assert chaos.wrong == [], "".join(server.lines)
        assert chaos.counts["cut off"] <= sum("cut off: TimeoutError" in x for x in server.lines)
        assert chaos.counts[200] > 20, chaos.counts
        assert all(b - a < GROWTH_MB for a, b in zip(began, after, strict=True)), (began, after)
        stop_under_load(server, chaos)
    finally:
        server.stop(signal.SIGKILL)
    print(dict(chaos.counts), began, after)  # noqa: T201 - with pytest -s
    assert not [line for line in server.lines if "Traceback" in line or "unforeseen" in line]


def stop_under_load(server, chaos):
    """SIGTERM, with requests under way that would take longer than they have."""

    async def main():
        chaos.stopping = True
        clients = asyncio.create_task(chaos.run(2, []))
        await asyncio.sleep(1)
        server.process.send_signal(signal.SIGTERM)
        await asyncio.to_thread(server.process.wait, 60)
        await clients

    asyncio.run(main())
    assert server.process.returncode == 0
    assert chaos.wrong == []
