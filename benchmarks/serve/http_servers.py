"""Compare HTTP servers: their correctness on the tests' corpus, and their time per request.

    pip install uvicorn httptools zttp hypercorn granian
    python benchmarks/serve/http_servers.py BUNDLE

The same application runs under every server that is installed, in a process of its own;
`mirror-rt` is uvicorn with the connection of mirror_rt/server/http/connection.py, as in `mirror-rt
serve`. Each server is played the cases of tests/support/servers/http_corpus; the script counts
connections with other answers than the corpus demands, and among these the ones with another number
of answers. Then 32 connections ask for GET /health, the servers taking turns; the figure is the
server's processor time per request, the least of --rounds. The results are printed in Markdown.
"""

from __future__ import annotations

import argparse
import asyncio
import concurrent.futures
import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mirror_rt.io.tables import markdown_table

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests" / "support" / "servers"))

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # for the other folders

from helpers import free_port

from http_corpus import Case, all_cases
from http_corpus.messages import AUTHORIZED, KEY, get
from http_corpus.wire import play

CONNECTIONS, SECONDS = 32, 2.0
_UVICORN = {
    "uvicorn, httptools": "httptools",
    "uvicorn, h11": "h11",
    "uvicorn, zttp": "uvicorn.protocols.http.zttp_impl:ZttpProtocol",
}
KINDS = ("mirror-rt", *_UVICORN, "hypercorn", "granian")


def serve(kind: str, bundle: str, port: int) -> None:
    """Serve until killed, with the limits that the corpus expects if the server has them."""
    from mirror_rt.inference.load_options import LoadOptions
    from mirror_rt.server import ServerConfig, create_app

    config = ServerConfig(api_keys=(KEY,), body_timeout=1, max_body_bytes=1_000_000,
                          load=LoadOptions(threads=1))  # fmt: skip
    app = create_app(bundle, config)
    if kind == "hypercorn":
        _serve_hypercorn(app, port)
    elif kind == "granian":
        _serve_granian(app, port)
    else:
        _serve_uvicorn(kind, app, port)


def _serve_uvicorn(kind: str, app: Any, port: int) -> None:
    import uvicorn

    from mirror_rt.server.config import ListenConfig
    from mirror_rt.server.http.connection import limited_protocol
    from mirror_rt.server.monitoring.metrics import Metrics
    from mirror_rt.server.monitoring.recent import Recent
    from mirror_rt.server.monitoring.request_log import RequestLog

    listen = ListenConfig(header_timeout=1, keep_alive=5)
    requests = RequestLog(Metrics(), Recent())
    http: Any = _UVICORN.get(kind) or limited_protocol(listen, requests, 1000)
    uvicorn.run(app, port=port, http=http, ws="none", log_level="critical", access_log=False,
                server_header=False, timeout_keep_alive=5)  # fmt: skip


def _serve_hypercorn(app: Any, port: int) -> None:
    from hypercorn.asyncio import serve
    from hypercorn.config import Config

    config = Config()
    config.bind, config.loglevel = [f"127.0.0.1:{port}"], "CRITICAL"
    config.keep_alive_timeout, config.read_timeout = 5, 1
    asyncio.run(serve(app, config))


def _serve_granian(app: Any, port: int) -> None:
    from granian.http import HTTP1Settings
    from granian.server.embed import Server

    settings = HTTP1Settings(header_read_timeout=1000, max_buffer_size=65536)
    server = Server(app, address="127.0.0.1", port=port, interface="asgi",
                    http1_settings=settings, log_enabled=False)  # fmt: skip
    asyncio.run(server.serve())


@contextlib.contextmanager
def running(kind: str, bundle: str) -> Iterator[tuple[int, int]]:
    """Yield the port and the process id of a server that is ready."""
    port = free_port()
    line = [sys.executable, __file__, bundle, "--serve", kind, "--port", str(port)]
    process = subprocess.Popen(line, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        ready, until = Case("ready", (get(path=b"/ready"),), (200,)), time.monotonic() + 60
        while process.poll() is None and time.monotonic() < until:
            with contextlib.suppress(OSError):
                if play(ready, port)[0].status == 200:
                    break
            time.sleep(0.2)
        yield port, process.pid
    finally:
        process.kill()
        process.wait()


def differences(port: int, cases: list[Case]) -> tuple[int, int]:
    """Count the cases with wrong answers, and those with a wrong number of answers."""

    def outcome(case: Case) -> tuple[bool, bool]:
        expected = case.statuses if case.closes else (*case.statuses, 200)
        try:
            found = tuple(answer.status for answer in play(case, port))
        except Exception:  # noqa: BLE001  # closed, reset, silent, or no HTTP
            return True, True
        return found != expected, len(found) != len(expected)

    with concurrent.futures.ThreadPoolExecutor(12) as pool:
        outcomes = list(pool.map(outcome, cases))
    return sum(other for other, _ in outcomes), sum(number for _, number in outcomes)


async def ask(port: int) -> int:
    """Request GET /health on all connections for a while; return the number of answers."""
    until, count = time.monotonic() + SECONDS, 0

    async def one() -> None:
        nonlocal count
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        while time.monotonic() < until:
            writer.write(b"GET /health HTTP/1.1\r\nHost: a\r\n" + AUTHORIZED + b"\r\n\r\n")
            await reader.readuntil(b"}")
            count += 1
        writer.close()

    await asyncio.gather(*(one() for _ in range(CONNECTIONS)))
    return count


def microseconds(port: int, process: int) -> float:
    """Return the processor time of a server for one request, in microseconds."""

    def spent() -> float:
        fields = (
            Path(f"/proc/{process}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
        )
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    before = spent()
    count = asyncio.run(ask(port))
    return 1e6 * (spent() - before) / count


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("bundle")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--serve", choices=KINDS, help=argparse.SUPPRESS)
    parser.add_argument("--port", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve:
        serve(arguments.serve, arguments.bundle, arguments.port)
        return
    cases = all_cases()
    with contextlib.ExitStack() as stack:
        servers = {kind: stack.enter_context(running(kind, arguments.bundle)) for kind in KINDS}
        wrong = {kind: differences(port, cases) for kind, (port, _) in servers.items()}
        costs: dict[str, list[float]] = {kind: [] for kind in KINDS}
        for _ in range(arguments.rounds):
            for kind, (port, process) in servers.items():
                costs[kind].append(microseconds(port, process))
    header = ["server", f"other answers, of {len(cases)}", "another number of them", "us a request"]
    rows = [[kind, *map(str, wrong[kind][:2]), f"{min(costs[kind]):.0f}"] for kind in KINDS]
    print(markdown_table(header, rows))


if __name__ == "__main__":
    main()
