"""Compare this version with another one: encoding, one text at a time, and the server.

    python benchmarks/encode/versions.py OTHER FOLDER --texts FILE [--variants fp32 bf16 int8]

OTHER is a checkout of the other version, installed in its .venv, as this one is in its own. FOLDER
is whatever both can load: a bundle, a static encoder, a folder of weights. FILE holds a text a
line. The versions take turns in processes of their own, variant by variant: all texts at once, then
200 of them one by one, then the server under 1 and under 64 connections, which send these 200.
Medians over the rounds are printed, and the median of the ratios in each round; of the vectors, the
mean and the least cosine with those of this version's first variant. What HTTP adds is the
difference of one connection to one text in the same round.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from mirror_rt.io.tables import markdown_table

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # for the other folders

from encode.setup import ROOT, processor_class
from helpers import free_port
from serve.ratios import closed_loop

SINGLE = 200
_WORKER = """
import json, statistics, sys, time
import numpy as np
from mirror_rt import Encoder
folder, variant, threads, texts, out = sys.argv[1:]
texts = json.loads(open(texts, encoding="utf-8").read())
encoder = Encoder.load(folder, variant=variant, threads=int(threads))
np.save(out, encoder.encode(texts))
print("ready", flush=True)
for _ in sys.stdin:
    began = time.perf_counter()
    encoder.encode(texts)
    rate, times = len(texts) / (time.perf_counter() - began), []
    for text in texts[:200]:
        began = time.perf_counter()
        encoder.encode(text)
        times.append(time.perf_counter() - began)
    print(json.dumps({"texts/s": rate, "one text, ms": 1e3 * statistics.median(times)}), flush=True)
"""


class Version:
    """One version with one variant: a process that encodes, and a server."""

    def __init__(
        self, checkout: Path, variant: str, options: argparse.Namespace, work: Path
    ) -> None:
        programs, self.port = checkout / ".venv" / "bin", free_port()
        shown = [str(options.folder), variant, str(options.threads)]
        vectors = work / "vectors.npy"
        self.worker = subprocess.Popen(
            [programs / "python", "-c", _WORKER, *shown, work / "texts.json", vectors],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=work,
        )  # fmt: skip
        if self._read() != "ready\n":
            raise SystemExit(f"{checkout} does not encode {options.folder} in {variant}")
        self.vectors = np.load(vectors)
        self.server = subprocess.Popen(
            [programs / "mirror-rt", "serve", options.folder, "--variant", variant, "--threads",
             str(options.threads), "--port", str(self.port)],
            stderr=subprocess.DEVNULL, cwd=work,
        )  # fmt: skip
        self._wait()

    def _read(self) -> str:
        assert self.worker.stdout is not None
        return self.worker.stdout.readline()

    def _wait(self) -> None:
        for _ in range(600):
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port)):
                return
            if self.server.poll() is not None:
                break
            time.sleep(0.2)
        raise SystemExit("a server did not start")

    def measure(self, texts: list[str], seconds: float) -> dict[str, float]:
        """Encode all texts and some one by one, and send these to the server."""
        assert self.worker.stdin is not None
        self.worker.stdin.write("\n")
        self.worker.stdin.flush()
        found = json.loads(self._read())
        one, many = (
            asyncio.run(closed_loop(self.port, texts[:SINGLE], connections, seconds)).figures()
            for connections in (1, 64)
        )
        found["1 connection, ms"] = one["p50_ms"]
        found["HTTP adds, ms"] = one["p50_ms"] - found["one text, ms"]
        return found | {"64 connections, 1/s": many["rate"], "their p99, ms": many["p99_ms"]}

    def stop(self) -> None:
        """End both processes."""
        for process in (self.server, self.worker):
            process.terminate()
            process.wait()


@contextlib.contextmanager
def both(variant: str, options: argparse.Namespace, work: Path) -> Iterator[dict[str, Version]]:
    """Run this version and the other one."""
    with contextlib.ExitStack() as running:
        versions = {}
        for name, checkout in (("this", ROOT), ("other", options.other.resolve())):
            versions[name] = Version(checkout, variant, options, work)
            running.callback(versions[name].stop)
        yield versions


def compare(variant: str, options: argparse.Namespace, texts: list[str], work: Path) -> Any:
    """Return the rows of a variant, and the vectors of this version."""
    with both(variant, options, work) as versions:
        rounds = []
        for number in range(options.rounds + 1):  # the first is not counted
            order = list(versions.items())[:: 1 if number % 2 else -1]
            rounds.append({name: one.measure(texts, options.seconds) for name, one in order})
        vectors = {name: one.vectors for name, one in versions.items()}
    rows = []
    for figure in rounds[0]["this"]:
        ours, theirs = ([one[name][figure] for one in rounds[1:]] for name in ("this", "other"))
        ratio = statistics.median(a / b for a, b in zip(ours, theirs, strict=True))
        medians = [f"{statistics.median(values):,.3f}" for values in (ours, theirs)]
        rows.append([variant, figure, *medians, f"{ratio:.3f}"])
    return rows, vectors


def cosines(vectors: np.ndarray, reference: np.ndarray) -> np.ndarray:
    """Return the cosine of each row with that of the reference."""
    norms = np.linalg.norm(vectors, axis=1) * np.linalg.norm(reference, axis=1)
    return (vectors * reference).sum(axis=1) / norms


def main() -> None:
    """Run the parts that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("other", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--texts", type=Path, required=True)
    parser.add_argument("--variants", nargs="+", default=["fp32", "int8"])
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=5.0, help="of each load of a server")
    options = parser.parse_args()
    options.folder = options.folder.resolve()
    texts = [line for line in options.texts.read_text(encoding="utf-8").splitlines() if line]
    rows, reference = [], None
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        (work / "texts.json").write_text(json.dumps(texts), encoding="utf-8")
        for variant in options.variants:
            found, vectors = compare(variant, options, texts, work)
            reference = vectors["this"] if reference is None else reference
            rows += found
            both_of = [cosines(vectors[name], reference) for name in ("this", "other")]
            for name, of in (("mean cosine", np.mean), ("least cosine", np.min)):
                rows.append([variant, name, *(f"{of(one):.5f}" for one in both_of), ""])
    print(f"{processor_class()}, {options.threads} threads, {len(texts)} texts\n")
    print(markdown_table(["variant", "figure", "this", "other", "ratio"], rows))


if __name__ == "__main__":
    main()
