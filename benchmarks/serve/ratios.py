"""Compare the server with the encoder it serves: throughput, latency, overload, as ratios.

python benchmarks/serve/ratios.py BUNDLE --texts FILE [--variant int8] [--providers native]
    [--rounds 3]

FILE holds one text per line (the first 512 are used). The server is `mirror-rt serve BUNDLE` in a
process of its own, as a user runs it. The clients are connections that are kept alive, in another
process; they use plain sockets, to take as little processor time as possible. Their share of it is
contained in the figures, which counts on a machine with two processors.

1. offline: `Encoder.encode` of all texts in one call, and p50 of one short text alone.
2. one connection, one short text: p50 and p99, and what HTTP adds to the p50 of step 1.
3. 64 connections, one text each: requests a second against step 1.
4. open loop: 70 % of that rate (p99 against p50 of step 2), 4 times it (accepted, refused, p99).

The results are written to benchmarks/results/serve-VARIANT-DATE-MACHINE .json and .md.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # for the other folders

from serve.report import Goal, add_output_options, goals, write_report

SHORT = "a short text of a few words"


@dataclass
class Load:
    """The observations of the clients."""

    latencies: list[float] = field(default_factory=list)
    refused: int = 0
    failed: int = 0
    unsent: int = 0
    seconds: float = 0.0

    @property
    def rate(self) -> float:
        return len(self.latencies) / self.seconds

    def percentile(self, p: float) -> float:
        ordered = sorted(self.latencies)
        return ordered[min(len(ordered) - 1, int(p / 100 * len(ordered)))] * 1000

    def figures(self) -> dict[str, float]:
        """Return requests a second, milliseconds and the requests without a good answer."""
        return {
            "rate": round(self.rate, 2),
            "p50_ms": round(self.percentile(50), 3),
            "p99_ms": round(self.percentile(99), 3),
            "refused": self.refused,
            "failed": self.failed,
            "unsent": self.unsent,
        }


class Connection:
    """One connection that is kept alive."""

    async def open(self, port: int) -> Connection:
        self.port = port
        self.reader, self.writer = await asyncio.open_connection("127.0.0.1", port)
        return self

    async def post(self, request: bytes) -> int:
        if self.reader.at_eof():  # the server has closed it because it was idle
            await self.open(self.port)
        self.writer.write(request)
        head = await self.reader.readuntil(b"\r\n\r\n")
        found = re.search(rb"content-length: (\d+)", head)
        assert found is not None
        await self.reader.readexactly(int(found[1]))
        return int(head[9:12])


def request(text: str) -> bytes:
    body = json.dumps({"input": text, "encoding_format": "base64"}).encode()
    return b"POST /v1/embeddings HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n%b" % (
        len(body), body,
    )  # fmt: skip


async def closed_loop(
    port: int, texts: list[str], connections: int, seconds: float,
    make: Callable[[str], bytes] = request,
) -> Load:  # fmt: skip
    """Send requests; each connection sends the next when it has the answer to the last."""
    load = Load()
    requests = [make(text) for text in texts]
    until = time.perf_counter() + seconds

    async def client(start: int) -> None:
        connection, i = await Connection().open(port), start
        while (began := time.perf_counter()) < until:
            count(load, await connection.post(requests[i % len(requests)]), began)
            i += connections
        connection.writer.close()

    began = time.perf_counter()
    await asyncio.gather(*(client(i) for i in range(connections)))
    load.seconds = time.perf_counter() - began
    return load


async def open_loop(port: int, texts: list[str], rate: float, seconds: float) -> Load:
    """Send requests at a rate, regardless of answers to earlier ones; at most 512 are open."""
    load = Load()
    requests = [request(text) for text in texts]
    idle = [await Connection().open(port) for _ in range(512)]
    tasks: set[asyncio.Task[None]] = set()

    async def send(connection: Connection, data: bytes, due: float) -> None:
        count(load, await connection.post(data), due)
        idle.append(connection)

    began, sent = time.perf_counter(), 0
    while (now := time.perf_counter()) < began + seconds:
        while began + sent / rate <= now:
            if idle:
                task = asyncio.create_task(
                    send(idle.pop(), requests[sent % len(requests)], began + sent / rate)
                )
                tasks.add(task)
                task.add_done_callback(tasks.discard)
            else:
                load.unsent += 1  # the generator has no connection left
            sent += 1
        await asyncio.sleep(0.001)
    await asyncio.gather(*tasks)
    load.seconds = time.perf_counter() - began
    for connection in idle:
        connection.writer.close()
    return load


def count(load: Load, status: int, began: float) -> None:
    if status == 200:
        load.latencies.append(time.perf_counter() - began)
    elif status == 429:
        load.refused += 1
    else:
        load.failed += 1


def offline(arguments: argparse.Namespace, texts: list[str]) -> tuple[float, float]:
    """Return texts a second in one call, and p50 of one short text in milliseconds."""
    from mirror_rt import Encoder

    with Encoder.load(
        arguments.bundle, variant=arguments.variant, providers=arguments.providers
    ) as encoder:
        encoder.encode(texts)
        rates, short = [], []
        for _ in range(arguments.rounds):
            began = time.perf_counter()
            encoder.encode(texts)
            rates.append(len(texts) / (time.perf_counter() - began))
        for _ in range(300):
            began = time.perf_counter()
            encoder.encode(SHORT)
            short.append(time.perf_counter() - began)
    return statistics.median(rates), statistics.median(short) * 1000


class Server:
    """`mirror-rt serve` at a free port."""

    def __init__(self, bundle: str, variant: str, providers: str) -> None:
        line = [sys.executable, "-m", "mirror_rt.cli", "serve", bundle, "--port", "0"]
        line += ["--log-level", "info", "--variant", variant, "--providers", providers]
        self.process = subprocess.Popen(line, stderr=subprocess.PIPE, encoding="utf-8")
        assert self.process.stderr is not None
        self.port, ready = 0, False
        for text in self.process.stderr:
            if found := re.search(r"listening at http://[^ ]*:(\d+)", text):
                self.port = int(found[1])
            ready = ready or "ready:" in text
            if self.port and ready:
                break
        else:
            raise SystemExit("the server did not start")
        drain = threading.Thread(target=self.process.stderr.read, daemon=True)
        drain.start()

    def memory(self) -> float:
        """Return the resident memory in MB."""
        status = Path(f"/proc/{self.process.pid}/status").read_text(encoding="utf-8")
        return int(re.search(r"VmRSS:\s+(\d+)", status)[1]) / 1024  # type: ignore[index]

    def cpu_seconds(self) -> float:
        fields = (
            Path(f"/proc/{self.process.pid}/stat")
            .read_text(encoding="utf-8")
            .rpartition(")")[2]
            .split()
        )
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def stop(self) -> int:
        self.process.terminate()
        return self.process.wait(60)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("bundle")
    parser.add_argument("--texts", required=True)
    parser.add_argument("--variant", default="fp32")
    parser.add_argument("--providers", default="cpu")
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--connections", type=int, default=64)
    parser.add_argument("--overload-seconds", type=float, default=60.0)
    add_output_options(parser)
    arguments = parser.parse_args()
    texts = Path(arguments.texts).read_text(encoding="utf-8").splitlines()[:512]
    rate, alone = offline(arguments, texts)
    print(f"offline: {rate:.0f} texts/s; one short text {alone:.2f} ms (p50)", flush=True)
    found = {"offline": {"rate": rate, "p50_ms": alone}}
    server = Server(arguments.bundle, arguments.variant, arguments.providers)
    try:
        found |= measure(server, arguments, texts, rate, alone)
    finally:
        print(f"the server ended with {server.stop()}")
    engine = "" if arguments.providers == "cpu" else f"{arguments.providers}-"
    write_report(f"serve-{engine}{arguments.variant}", found, table(found), arguments)


def measure(
    server: Server, arguments: argparse.Namespace, texts: list[str], rate: float, alone: float
) -> dict[str, Any]:
    asyncio.run(closed_loop(server.port, texts, 8, 2))
    idle = asyncio.run(closed_loop(server.port, [SHORT], 1, arguments.seconds))
    print(
        f"1 connection, one short text: {idle.rate:.0f} requests/s, p50 {idle.percentile(50):.2f} "
        f"ms, p99 {idle.percentile(99):.2f} ms; {idle.percentile(50) - alone:+.2f} ms to encode",
        flush=True,
    )
    loads = [saturate(server, arguments, texts, rate) for _ in range(arguments.rounds)]
    saturation = statistics.median(load.rate for load in loads)
    at_70 = asyncio.run(open_loop(server.port, texts, 0.7 * saturation, arguments.seconds))
    print(
        f"70 % of that: p50 {at_70.percentile(50):.1f} ms, p99 {at_70.percentile(99):.1f} ms, "
        f"{at_70.percentile(99) / idle.percentile(50):.1f} x the idle p50",
        flush=True,
    )
    before = server.memory()
    flood = asyncio.run(open_loop(server.port, texts, 4 * saturation, arguments.overload_seconds))
    calm = statistics.median(load.percentile(99) for load in loads)
    memory = [round(before), round(server.memory())]
    print(
        f"4 x that for {arguments.overload_seconds:.0f} s: {flood.rate:.0f} accepted/s, "
        f"{flood.refused / flood.seconds:.0f} refused/s, {flood.failed} failed, {flood.unsent} not "
        f"sent, accepted p99 {flood.percentile(99):.0f} ms "
        f"({flood.percentile(99) / calm:.1f} x saturation's); memory {memory[0]} -> {memory[1]} MB"
    )
    return {
        "idle": idle.figures(),
        "saturated": [load.figures() for load in loads],
        "at_70": at_70.figures(),
        "overload": flood.figures() | {"memory_mb": memory},
    }


def saturate(server: Server, arguments: argparse.Namespace, texts: list[str], rate: float) -> Load:
    cpu = server.cpu_seconds()
    load = asyncio.run(closed_loop(server.port, texts, arguments.connections, arguments.seconds))
    cpu = (server.cpu_seconds() - cpu) / load.seconds
    print(
        f"{arguments.connections} connections: {load.rate:.0f} requests/s, "
        f"{load.rate / rate:.2f} of offline, p50 {load.percentile(50):.0f} ms, "
        f"p99 {load.percentile(99):.0f} ms; {cpu:.2f} processors, {load.refused} refused, "
        f"{load.failed} failed",
        flush=True,
    )
    return load


def table(found: dict[str, Any]) -> list[str]:
    """Return the table of findings beside their goals."""
    offline, idle, at_70, flood = (found[k] for k in ("offline", "idle", "at_70", "overload"))
    rate, p99 = (statistics.median(load[k] for load in found["saturated"]) for k in
                 ("rate", "p99_ms"))  # fmt: skip
    before, after = flood["memory_mb"]
    return goals(
        [
            Goal("64 connections, one text each: requests/s, of the offline texts/s", 0.80,
                 rate / offline["rate"], f"{rate:.0f} of {offline['rate']:.0f}"),
            Goal("one connection, one short text: ms that HTTP adds to p50 of `encode`", 0.6,
                 idle["p50_ms"] - offline["p50_ms"],
                 f"{idle['p50_ms']:.2f} ms, `encode` {offline['p50_ms']:.2f} ms", most=True),
            Goal("70 % of saturation: p99, of the p50 of an idle server", 4.0,
                 at_70["p99_ms"] / idle["p50_ms"],
                 f"{at_70['p99_ms']:.1f} ms, {idle['p50_ms']:.2f} ms", most=True),
            Goal("4 times saturation: p99 of what is accepted, of p99 at saturation", 2.0,
                 flood["p99_ms"] / p99, f"{flood['p99_ms']:.0f} ms, {p99:.0f} ms", most=True),
            Goal("4 times saturation: growth of memory, MB", 8.0, after - before,
                 f"{before} to {after} MB, {flood['refused']} refused, {flood['failed']} failed",
                 most=True),
        ]
    )  # fmt: skip


if __name__ == "__main__":
    main()
