"""Compare the server with what most people write, FastAPI around a library, by ratios.

    python benchmarks/serve/rivals.py --texts FILE [--cache FOLDER] [--bundle BUNDLE]

The contenders are `mirror-rt serve` in fp32, bf16 and int8, and in fp32 on onnxruntime; FastAPI
with sentence-transformers and with fastembed (sentence_transformers_app.py, fastembed_app.py: a
model, a `def` endpoint, uvicorn with httptools and uvloop); and infinity, whose ONNX engine takes
no model from a folder, with torch. Each is a process in an environment of its own, which the script
makes in --cache and keeps. All have the model all-MiniLM-L6-v2 with its limit of 512 tokens, the
default settings of their libraries, and their logs in a file. The answers are numbers in JSON.

FILE holds one text per line (the first 512 are used). First the vectors are compared; a contender
whose vectors disagree is left out, with the reason. Then they take turns under the same load
generator: 1 and 64 connections, one text per request, each for --seconds. Ratios are medians of the
ratios in each round. The results are written to
benchmarks/results/serve-rivals-DATE-MACHINE .json and .md.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import http.client
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from mirror_rt.io.tables import markdown_table

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # for the other folders

from encode.setup import ENVIRONMENTS as BELOW
from encode.setup import LeftOutError
from helpers import free_port, median_ratio
from serve.ratios import closed_loop
from serve.report import Goal, add_output_options, goals, write_report
from serve.setup import BF16, CONTENDERS, ENVIRONMENTS, FASTEMBED, INT8, ORT, OURS, ST

CONNECTIONS = (1, 64)
START_SECONDS = 120
LEAST_COSINES = {INT8: 0.98, BF16: 0.999}
FIGURES = [("rate", "requests/s", "{:.0f}"), ("p50_ms", "p50", "{:.1f} ms"),
           ("p99_ms", "p99", "{:.1f} ms")]  # fmt: skip


class RivalServer:
    """A contender's process, until `stop`."""

    def __init__(self, name: str, cache: Path, bundle: Path | None) -> None:
        self.port, self.contender = free_port(), CONTENDERS[name]
        line, model = self.contender.line(cache, bundle, self.port)
        variables = {"MODEL": str(model), "HF_HUB_OFFLINE": "1", "PYTHONPATH": ""}
        slug = "".join(c if c.isalnum() else "-" for c in name)
        self.log = (cache / f"server-{slug}.log").open("w+", encoding="utf-8")
        self.process = subprocess.Popen(
            line, stdin=subprocess.DEVNULL, stdout=self.log, stderr=self.log,
            env=os.environ | variables, cwd=cache,
        )  # fmt: skip
        try:
            self._wait()
        except BaseException:
            self.stop()
            raise

    def _wait(self) -> None:
        until = time.monotonic() + START_SECONDS
        while time.monotonic() < until:
            if self.process.poll() is not None:
                self.log.seek(0)
                last = [line for line in self.log.read().splitlines() if line.strip()][-1:]
                raise LeftOutError(f"it ended with {self.process.returncode}: {last}")
            try:
                self.embed(["ready"])
                return
            except (OSError, LeftOutError) as error:  # not ready yet
                why = error
            time.sleep(0.2)
        raise LeftOutError(f"it did not answer within {START_SECONDS} s: {why}")

    def embed(self, texts: list[str]) -> np.ndarray:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        with contextlib.closing(connection):
            connection.request("POST", self.contender.path,
                               json.dumps({self.contender.key: texts}),
                               {"Content-Type": "application/json"})  # fmt: skip
            response = connection.getresponse()
            content = response.read()
        if response.status != 200:
            raise LeftOutError(f"it answers {response.status}: {content[:200]!r}")
        found = json.loads(content)
        if isinstance(found, dict):  # OpenAI's form
            found = [row["embedding"] for row in found["data"]]
        return np.array(found, dtype=np.float32)

    def load(self, texts: list[str], connections: int, seconds: float) -> dict[str, float]:
        load = asyncio.run(closed_loop(self.port, texts, connections, seconds, self.request))
        return load.figures()

    def request(self, text: str) -> bytes:
        body = json.dumps({self.contender.key: [text]}).encode()
        return (
            b"POST %b HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n"
            b"Content-Length: %d\r\n\r\n%b" % (self.contender.path.encode(), len(body), body)
        )

    def stop(self) -> None:
        self.process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(30)
        self.process.kill()
        self.process.wait()
        self.log.close()


@contextlib.contextmanager
def servers(arguments: argparse.Namespace, left_out: dict[str, str]) -> Iterator[dict[str, Any]]:
    """Return the servers that start and give correct vectors."""
    running: dict[str, RivalServer] = {}
    with contextlib.ExitStack() as stack:
        for name in arguments.only or CONTENDERS:
            print(f"starting {name}", flush=True)
            try:
                running[name] = RivalServer(name, arguments.cache, arguments.bundle)
                stack.callback(running[name].stop)
            except LeftOutError as error:
                left_out[name] = str(error)
        yield running


def compare_vectors(
    running: dict[str, RivalServer], texts: list[str], left_out: dict[str, str]
) -> dict[str, float]:
    """Return mean cosines to the reference: sentence-transformers, else fastembed, else ours."""
    reference = next(name for name in (ST, FASTEMBED, OURS, INT8) if name in running)
    expected = running[reference].embed(texts[:64])
    means = {}
    for name, server in list(running.items()):
        means[name] = float((server.embed(texts[:64]) * expected).sum(axis=1).mean())
        print(f"  {name:<34} mean cosine {means[name]:.5f}", flush=True)
        if not means[name] >= LEAST_COSINES.get(name, 0.9999):
            left_out[name] = f"its vectors are others: mean cosine {means.pop(name):.5f}"
            running.pop(name)
    return means


def take_turns(
    running: dict[str, RivalServer], texts: list[str], arguments: argparse.Namespace
) -> list[dict[str, dict[str, dict[str, float]]]]:
    """Return for each round: name -> connections -> figures."""
    for server in running.values():
        server.load(texts, 8, 2.0)
    rounds: list[dict[str, dict[str, dict[str, float]]]] = []
    for turn in range(arguments.rounds):
        print(f"round {turn + 1} of {arguments.rounds}", flush=True)
        names = list(running)
        shift = turn % len(names)
        found: dict[str, dict[str, dict[str, float]]] = {name: {} for name in names}
        for connections in CONNECTIONS:
            for name in names[shift:] + names[:shift]:
                load = running[name].load(texts, connections, arguments.seconds)
                found[name][str(connections)] = load
                print(f"  {name:<34}{connections:>3} connections{load['rate']:>8.1f} requests/s, "
                      f"p50 {load['p50_ms']:.1f} ms, p99 {load['p99_ms']:.1f} ms, "
                      f"{load['refused'] + load['failed']} not answered", flush=True)  # fmt: skip
        rounds.append(found)
    return rounds


def ratio(
    rounds: list[dict[str, Any]], figure: str, connections: int, ours: str, *theirs: str
) -> float | None:
    """Return the median ratio over the rounds, to the least of `theirs`; None if one is absent."""
    return median_ratio(rounds, lambda found: found[str(connections)][figure], ours, *theirs)


def tables(found: dict[str, Any]) -> list[str]:
    """Return the tables: the figures, and their ratios beside the goals."""
    rounds = found["rounds"]
    head = ["", *(f"{n} conn.: {label}" for n in CONNECTIONS for _, label, _ in FIGURES)]
    cells = [
        [name, *(
            form.format(statistics.median(r[name][str(n)][key] for r in rounds))
            for n in CONNECTIONS
            for key, _, form in FIGURES
        )]
        for name in rounds[0]
    ]  # fmt: skip
    cells += [[name, f"left out: {why}"] for name, why in found["left_out"].items()]
    lines = markdown_table(head, cells, numbers=True).splitlines()
    rows = [
        Goal(f"64 connections, requests/s: {OURS} / {ST}", 6.0,
             ratio(rounds, "rate", 64, OURS, ST)),
        Goal(f"64 connections, requests/s: {OURS} / {FASTEMBED}", 2.2,
             ratio(rounds, "rate", 64, OURS, FASTEMBED)),
        *(Goal(f"64 connections, requests/s: {name} / {FASTEMBED}", 4.5,
               ratio(rounds, "rate", 64, name, FASTEMBED)) for name in (BF16, INT8)),
        Goal(f"64 connections, requests/s: {OURS} / {ORT}", 1.0,
             ratio(rounds, "rate", 64, OURS, ORT)),
        *(Goal(f"64 connections, p99: {name} / the better of the two", 0.5,
               ratio(rounds, "p99_ms", 64, name, ST, FASTEMBED), most=True)
          for name in (OURS, BF16, INT8)),
        Goal(f"one connection, requests/s: {OURS} / {FASTEMBED}", 1.5,
             ratio(rounds, "rate", 1, OURS, FASTEMBED)),
        *(Goal(f"one connection, requests/s: {name} / {FASTEMBED}", 3.0,
               ratio(rounds, "rate", 1, name, FASTEMBED)) for name in (BF16, INT8)),
    ]  # fmt: skip
    cosines = ", ".join(f"{name} {mean:.5f}" for name, mean in found["cosines"].items())
    installed = {name: (*(BELOW[below].packages if below else ()), *more)
                 for name, (more, below) in ENVIRONMENTS.items()}  # fmt: skip
    packages = "; ".join(
        f"{name}: {', '.join(package for package in packages if package != 'PROJECT')}"
        for name, packages in installed.items()
    )
    texts = f"{len(rounds)} rounds of {found['seconds']:g} s each; medians."
    return [texts, "", *lines, "", *goals(rows), "",
            f"Mean cosines with the reference: {cosines}. Environments: {packages}."]  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--texts", type=Path, required=True)
    parser.add_argument("--bundle", type=Path, help="with fp32 and int8; default: exported here")
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", nargs="+", choices=list(CONTENDERS), metavar="NAME")
    default = Path.home() / ".cache" / "mirror_rt" / "benchmarks"
    parser.add_argument("--cache", type=Path, default=default, help=f"default: {default}")
    add_output_options(parser)
    arguments = parser.parse_args()
    arguments.cache = arguments.cache.resolve()
    arguments.cache.mkdir(parents=True, exist_ok=True)
    arguments.bundle = arguments.bundle and arguments.bundle.resolve()
    texts = arguments.texts.read_text(encoding="utf-8").splitlines()[:512]
    left_out: dict[str, str] = {}
    with servers(arguments, left_out) as running:
        if not running:
            print(f"nothing to measure: {left_out}", file=sys.stderr)
            return 1
        cosines = compare_vectors(running, texts, left_out)
        rounds = take_turns(running, texts, arguments)
    found = {"seconds": arguments.seconds, "texts": len(texts), "left_out": left_out,
             "cosines": cosines, "rounds": rounds}  # fmt: skip
    write_report("serve-rivals", found, tables(found), arguments)
    return 0


if __name__ == "__main__":
    sys.exit(main())
