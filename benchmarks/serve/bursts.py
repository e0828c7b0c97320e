"""Send a server bursts that it cannot take: who is answered in time, and who is refused at once?

python benchmarks/serve/bursts.py BUNDLE [--command PATH] [--timeout 5] [--variant int8]

Bursts of 30 requests of 256 texts, 120 of 64 and 500 of one text come all at once, without and with
`X-Request-Timeout`. A line for each says how many were answered, refused and given up, when the
last of each had its answer, and for how long the processor was busy after all of them. At the end,
one text of 6.6 MB is encoded in chunks while small requests come. The last line is the most memory
that the server had.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import os
import random
import re
import statistics
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path

_WORDS = "river town old small glass music paper forest train letter garden winter bridge"
_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass
class Outcome:
    """The outcomes of the requests of one burst, in seconds since it began."""

    seconds: dict[int, list[float]] = field(default_factory=dict)
    retry_after: list[int] = field(default_factory=list)

    def line(self) -> str:
        parts = [
            f"{len(times)} x {status}, half after {statistics.median(times):.2f} s, the last "
            f"after {max(times):.2f} s"
            for status, times in sorted(self.seconds.items())
        ]
        if self.retry_after:
            parts.append(f"Retry-After {min(self.retry_after)} to {max(self.retry_after)} s")
        return "; ".join(parts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("bundle")
    parser.add_argument("--command", default="mirror-rt", help="the server's command")
    parser.add_argument("--timeout", type=float, default=5.0)
    parser.add_argument("--variant", default="fp32")
    arguments = parser.parse_args()
    log = Path(os.environ.get("TMPDIR", "/tmp")) / "serve_bursts.log"
    with log.open("w", encoding="utf-8") as errors:
        server = subprocess.Popen(
            [arguments.command, "serve", arguments.bundle, "--port", "0", "--variant",
             arguments.variant], stderr=errors,
        )  # fmt: skip
        try:
            port = _port(server, log)
            asyncio.run(_bursts(port, server.pid, arguments.timeout))
            status = Path(f"/proc/{server.pid}/status").read_text(encoding="utf-8")
            [kilobytes] = re.findall(r"VmHWM:\s+(\d+) kB", status)
            print(f"memory: {int(kilobytes) / 1000:.0f} MB at most")
        finally:
            server.terminate()
            server.wait()


def _port(server: subprocess.Popen[bytes], log: Path) -> int:
    while server.poll() is None:
        found = re.search(r"listening at http://[^:]+:(\d+)", log.read_text(encoding="utf-8"))
        if found and "ready:" in log.read_text(encoding="utf-8"):
            return int(found[1])
        time.sleep(0.1)
    raise SystemExit(log.read_text(encoding="utf-8"))


async def _bursts(port: int, pid: int, timeout: float) -> None:
    for requests, texts in ((30, 256), (120, 64), (500, 1)):
        for given in (None, timeout):
            outcome, began = Outcome(), time.monotonic()
            bodies = [_body(texts, seed) for seed in range(requests)]
            await asyncio.gather(*(_post(port, body, given, outcome, began) for body in bodies))
            busy = await _busy_seconds(pid)
            name = f"{requests} x {texts}, " + ("no deadline" if given is None else f"{given:g} s")
            print(f"{name}: {outcome.line()}; then busy for {busy:.2f} s", flush=True)
    await _beside_a_large_text(port, pid)


async def _beside_a_large_text(port: int, pid: int) -> None:
    large, small = Outcome(), Outcome()
    text = _text(random.Random(0), 1_000_000)[:6_600_000]
    body = json.dumps({"input": text, "on_too_long": "chunk"}).encode()
    began = time.monotonic()
    task = asyncio.create_task(_post(port, body, 20.0, large, began))
    await asyncio.sleep(2.0)
    for seed in itertools.count():
        await _post(port, _body(1, seed), None, small, time.monotonic())
        await asyncio.sleep(0.1)
        if task.done():  # later requests would meet an idle server
            break
    await task
    busy = await _busy_seconds(pid)
    print(f"6.6 MB in chunks, 20 s: {large.line()}; then busy for {busy:.2f} s")
    print(f"1 text beside it, one after the other: {small.line()}")


async def _post(
    port: int, body: bytes, timeout: float | None, outcome: Outcome, began: float
) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    given = "" if timeout is None else f"X-Request-Timeout: {timeout}\r\n"
    head = f"POST /v1/embeddings HTTP/1.1\r\nHost: a\r\nConnection: close\r\n{given}"
    writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
    answer = await reader.read()
    writer.close()
    status = int(answer[9:12])
    outcome.seconds.setdefault(status, []).append(time.monotonic() - began)
    if found := re.search(rb"\r\nretry-after: (\d+)", answer.split(b"\r\n\r\n")[0]):
        outcome.retry_after.append(int(found[1]))


async def _busy_seconds(pid: int) -> float:
    """Return the processor time of the server from now until it has been idle for half a second."""
    first = before = _used(pid)
    while True:
        await asyncio.sleep(0.5)
        now = _used(pid)
        if now - before < 0.05:
            return now - first
        before = now


def _used(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


def _body(texts: int, seed: int) -> bytes:
    rng = random.Random(seed)
    given = [_text(rng, rng.randrange(8, 28)) for _ in range(texts)]
    return json.dumps({"input": given, "encoding_format": "base64"}).encode()


def _text(rng: random.Random, words: int) -> str:
    return " ".join(rng.choices(_WORDS.split(), k=words))


if __name__ == "__main__":
    main()
