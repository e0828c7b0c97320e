"""Attack a server with readers that do not read, with tokenising and with a heavy neighbour.

python benchmarks/serve/attacks.py --heavy BUNDLE --light BUNDLE --static BUNDLE --reranker BUNDLE
    [--command PATH] [--seconds 30] [--only unread]

The server is `mirror-rt serve` of the four bundles in a process of its own; `--command` names that
of another version, and the table of both has their lines side by side. A line for each attack says
what others saw meanwhile:

1. unread: four clients send /tokenize of 600 KB and read nothing of the answers; one-text requests.
2. tokenising: four clients send /v2/rerank of 2,048 documents (15 MB) with `max_tokens_per_doc`,
   and then /tokenize of as much; reranks of one document, and one-text requests.
3. neighbours: 16 connections keep the heavy model saturated, or one keeps a rerank of 1,000
   documents under way; the light model, a lookup and a rerank of two pairs are asked at random
   times, four times a second. The last column is the rate of the neighbour, in texts a second.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import random
import re
import socket
import statistics
import subprocess
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

_WORDS = "river town old small glass music paper forest train letter garden winter bridge water"
_PER_SECOND = 4.0  # requests of those who are observed
_RNG = random.Random(0)


@dataclass
class Seen:
    """The outcomes of the requests of those who are observed."""

    statuses: Counter[int] = field(default_factory=Counter)
    seconds: list[float] = field(default_factory=list)

    def cells(self) -> str:
        total = self.statuses.total()
        p50 = f"{1000 * statistics.median(self.seconds):.1f} ms" if self.seconds else "-"
        worst = f"{1000 * max(self.seconds):.0f} ms" if self.seconds else "-"
        return f"{self.statuses[200]} of {total} | {self.statuses[429]} | {p50} | {worst}"


def text(words: int) -> str:
    return " ".join(_RNG.choices(_WORDS.split(), k=words))


def rerank(documents: int, words: int, **more: Any) -> tuple[str, dict[str, Any]]:
    given = {"query": text(5), "documents": [text(words) for _ in range(documents)]}
    return "/v2/rerank", given | {"model": "reranker"} | more


def embed(model: str, texts: int = 1, words: int = 10) -> tuple[str, dict[str, Any]]:
    inputs = [text(words) for _ in range(texts)]
    return "/embed", {"inputs": inputs, "model": model, "truncate": True}


def tokenize(size: int) -> tuple[str, dict[str, Any]]:
    texts = [text(100) for _ in range(size // 600)]
    return "/tokenize", {"inputs": texts[:2048], "model": "light"}


async def post(port: int, path: str, body: dict[str, Any]) -> tuple[int, float]:
    """Send a request, read its answer; return its status and the seconds that it took."""
    data, began = json.dumps(body).encode(), time.monotonic()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    head = f"POST {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n"
    writer.write(f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data)
    answer = await reader.readuntil(b"\r\n")
    while await reader.read(1 << 20):
        pass
    writer.close()
    return int(answer[9:12]), time.monotonic() - began


async def observed(port: int, make: Callable[[], tuple[str, dict[str, Any]]], until: float) -> Seen:
    """Send requests at random times, as many a second on the average, until a time."""
    seen, tasks = Seen(), []

    async def one() -> None:
        status, seconds = await post(port, *make())
        seen.statuses[status] += 1
        if status == 200:
            seen.seconds.append(seconds)

    while time.monotonic() < until:
        tasks.append(asyncio.create_task(one()))
        await asyncio.sleep(_RNG.expovariate(_PER_SECOND))
    await asyncio.gather(*tasks)
    return seen


@contextlib.asynccontextmanager
async def unread(port: int, n: int) -> AsyncIterator[None]:
    """Keep clients that have sent a request, and read nothing of the answer."""
    loop = asyncio.get_running_loop()
    with contextlib.ExitStack() as stack:
        for _ in range(n):
            path, body = tokenize(600_000)
            data = json.dumps(body).encode()
            client = stack.enter_context(socket.socket())
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.setblocking(False)
            await loop.sock_connect(client, ("127.0.0.1", port))
            head = f"POST {path} HTTP/1.1\r\nHost: a\r\nContent-Length: {len(data)}\r\n\r\n"
            await loop.sock_sendall(client, head.encode() + data)
        yield


@contextlib.asynccontextmanager
async def repeated(
    port: int, n: int, make: Callable[[], tuple[str, dict[str, Any]]], texts: int
) -> AsyncIterator[Callable[[], float]]:
    """Let clients send one request after the other; give their rate so far, in texts a second."""
    done, began = 0, time.monotonic()

    async def client() -> None:
        nonlocal done
        while True:
            status, _ = await post(port, *make())
            done += texts if status == 200 else 0
            if status != 200:
                await asyncio.sleep(0.5)

    tasks = [asyncio.create_task(client()) for _ in range(n)]
    try:
        yield lambda: done / (time.monotonic() - began)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def line(attack: str, who: str, seen: Seen, rate: str = "-") -> None:
    print(f"| {attack} | {who} | {seen.cells()} | {rate} |", flush=True)


async def attack_unread(port: int, seconds: float) -> None:
    async with unread(port, 4):
        until = time.monotonic() + seconds
        line("unread", "one text", await observed(port, lambda: embed("light"), until))
        made = await observed(port, lambda: embed("light", 400), time.monotonic() + seconds / 2)
        line("unread", "400 texts", made)


async def attack_tokenising(port: int, seconds: float) -> None:
    large = rerank(2048, 1150, max_tokens_per_doc=64)
    shown = tokenize(15_000_000)
    for name, body in (("rerank of 15 MB", large), ("/tokenize of 15 MB", shown)):
        async with repeated(port, 4, lambda body=body: body, 1):  # type: ignore[misc]
            until = time.monotonic() + seconds
            one, ranked = await asyncio.gather(
                observed(port, lambda: embed("light"), until),
                observed(port, lambda: rerank(1, 20), until),
            )
            line(name, "one text", one)
            line(name, "one document", ranked)


async def attack_neighbours(port: int, seconds: float) -> None:
    kinds = {"light model": lambda: embed("light"), "lookup": lambda: embed("static")}
    async with repeated(port, 16, lambda: embed("heavy", 32, 40), 32) as rate:
        await asyncio.sleep(min(5.0, seconds / 4))
        for who, make in kinds.items():
            seen = await observed(port, make, time.monotonic() + seconds)
            line("heavy model", who, seen, f"{rate():.1f}")
    async with repeated(port, 1, lambda: rerank(1000, 40), 1000) as rate:
        await asyncio.sleep(min(5.0, seconds / 4))
        seen = await observed(port, lambda: rerank(2, 20), time.monotonic() + seconds)
        line("rerank of 1,000", "rerank of 2", seen, f"{rate():.1f}")


ATTACKS = {"unread": attack_unread, "tokenising": attack_tokenising,
           "neighbours": attack_neighbours}  # fmt: skip


def started(arguments: argparse.Namespace, log: Path) -> subprocess.Popen[bytes]:
    names = ("heavy", "light", "static", "reranker")
    sources = [getattr(arguments, name) for name in names]
    aliases = [f"{n}={s}" for n, s in zip(names, sources, strict=True)]
    options = [part for alias in aliases for part in ("--model-alias", alias)]
    with log.open("w", encoding="utf-8") as errors:
        return subprocess.Popen(
            [arguments.command, "serve", *sources, "--port", "0", *options], stderr=errors
        )


def port_of(server: subprocess.Popen[bytes], log: Path) -> int:
    while server.poll() is None:
        found = re.search(r"listening at http://[^:]+:(\d+)", log.read_text(encoding="utf-8"))
        if found and "ready:" in log.read_text(encoding="utf-8"):
            return int(found[1])
        time.sleep(0.1)
    raise SystemExit(log.read_text(encoding="utf-8"))


def main() -> None:
    assert __doc__ is not None
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name in ("heavy", "light", "static", "reranker"):
        parser.add_argument(f"--{name}", required=True, help="a bundle of this kind")
    parser.add_argument("--command", default="mirror-rt", help="the server's command")
    parser.add_argument("--seconds", type=float, default=30.0, help="of each line")
    parser.add_argument("--only", choices=ATTACKS, help="one of the attacks")
    arguments = parser.parse_args()
    log = Path(os.environ.get("TMPDIR", "/tmp")) / "serve_attacks.log"
    print("| attack | who asks | answered | refused | p50 | slowest | texts a second beside |")
    print("|---|---|---|---|---|---|---|")
    for name, attack in ATTACKS.items():
        if arguments.only in (None, name):
            server = started(arguments, log)
            try:
                asyncio.run(attack(port_of(server, log), arguments.seconds))
            finally:
                server.kill()
                server.wait()


if __name__ == "__main__":
    main()
