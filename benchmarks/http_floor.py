"""Measure what an HTTP server costs without any work: a floor for a native front end.

    pip install uvicorn httptools uvloop granian
    python benchmarks/http_floor.py [BUNDLE --variant int8 --providers native]

Three servers always give the same answer of 2 KB, each in a process of its own: a protocol of
uvloop that parses nothing, uvicorn, and granian. With a bundle, `mirror-rt serve` takes part, which
really encodes a short text for each request. The clients are those of benchmarks/serve.py, in this
process. The servers take turns; the medians of --rounds are printed in Markdown.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import socket
import statistics
import subprocess
import sys
import time
from importlib.util import find_spec
from typing import Any

from helpers import free_port
from serve import SHORT, Server, closed_loop

BODY = b"0" * 2048
KINDS = ("uvloop", "uvicorn", "granian")


async def app(scope: Any, receive: Any, send: Any) -> None:
    """Always give the same answer."""
    while (await receive()).get("more_body"):
        pass
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(BODY))]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": BODY})


class Deaf(asyncio.Protocol):
    """Answers each packet; a client sends a request in one, and waits for its answer."""

    answer = b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(BODY), BODY)

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.transport.write(self.answer)


def serve(kind: str, port: int) -> None:
    """Serve until killed."""
    if kind == "uvicorn":
        import uvicorn

        uvicorn.run(app, port=port, http="httptools", loop="uvloop", ws="none", lifespan="off",
                    log_level="critical", access_log=False)  # fmt: skip
    elif kind == "granian":
        from granian.server.embed import Server as Granian

        granian = Granian(app, port=port, interface="asginl", log_enabled=False)
        asyncio.run(granian.serve())
    else:
        import uvloop

        uvloop.run(listen(port))


async def listen(port: int) -> None:
    """Serve with `Deaf` until killed."""
    server = await asyncio.get_running_loop().create_server(Deaf, "127.0.0.1", port)
    await server.serve_forever()


def start(kind: str, stack: contextlib.ExitStack) -> int:
    """Start a server that runs until the stack is closed; return its port."""
    port = free_port()
    process = subprocess.Popen([sys.executable, __file__, "--serve", kind, "--port", str(port)])
    stack.callback(process.kill)
    for _ in range(200):
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)):
            return port
        time.sleep(0.05)
    raise SystemExit(f"{kind} did not start")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("bundle", nargs="?")
    parser.add_argument("--variant", default="int8")
    parser.add_argument("--providers", default="native")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--serve", choices=KINDS, help=argparse.SUPPRESS)
    parser.add_argument("--port", type=int, help=argparse.SUPPRESS)
    a = parser.parse_args()
    if a.serve:
        serve(a.serve, a.port)
        return
    with contextlib.ExitStack() as stack:
        ports = {kind: start(kind, stack) for kind in KINDS if find_spec(kind)}
        if a.bundle:
            ours = Server(a.bundle, a.variant, a.providers)
            stack.callback(ours.stop)
            ports[f"mirror-rt, {a.providers} {a.variant}"] = ours.port
        loads: dict[str, list[Any]] = {name: [] for name in ports}
        for _ in range(a.rounds):
            for name, port in ports.items():
                one, many = (asyncio.run(closed_loop(port, [SHORT], n, 3.0)) for n in (1, 64))
                loads[name].append((one.percentile(50), many.rate))
    print("| server | p50, one connection | requests/s, 64 connections |\n|---|--:|--:|")
    for name, found in loads.items():
        p50, rate = (statistics.median(figures) for figures in zip(*found, strict=True))
        print(f"| {name} | {p50:.3f} ms | {rate:,.0f} |")


if __name__ == "__main__":
    main()
