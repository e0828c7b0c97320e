"""Measure load, latency and memory of models of several sizes, each in a process of its own.

    python benchmarks/encode/sizes.py MODEL... [--variants fp32 int8] [--seconds 20]

Prints a table in Markdown. A model is whatever `mirror-rt benchmark` takes: a name or a folder.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

from mirror_rt.io.tables import markdown_table

ONE, LENGTH, MANY = 1, 32, 32  # texts of a call, their tokens, and texts of a call for the rate


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("models", nargs="+")
    parser.add_argument("--variants", nargs="+", default=["fp32", "int8"])
    parser.add_argument("--seconds", default="20")
    arguments = parser.parse_args()
    found = {
        (model, variant): measure(model, variant, arguments.seconds)
        for model in arguments.models
        for variant in arguments.variants
    }
    one = next(iter(found.values()))
    print(f"{one['machine']}, {one['threads']} threads, {one['date']}; texts of {LENGTH} tokens\n")
    header = ["model", "load, s", "one text, ms", f"texts a second, {MANY} a call", "peak, MB"]
    print(markdown_table(header, (row(*key, of) for key, of in found.items()), numbers=True))


def measure(model: str, variant: str, seconds: str):
    """Return the JSON of `mirror-rt benchmark`."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder, "out.json")
        line = [sys.executable, "-P", "-m", "mirror_rt.cli", "benchmark", model, "--json", out]
        line += ["--variant", variant, "--seconds", seconds, "--lengths", LENGTH]
        subprocess.run(
            [*map(str, line), "--batches", str(ONE), str(MANY)],
            check=True, stdout=subprocess.DEVNULL,
        )  # fmt: skip
        return json.loads(out.read_text(encoding="utf-8"))


def row(model: str, variant: str, found):
    one, many = ({cell["texts"]: cell for cell in found["cells"]}[n] for n in (ONE, MANY))
    peak = found["peak_memory_mb"]
    return [
        f"{Path(model).name}, {variant}",
        f"{found['load_seconds']:.2f}",
        f"{one['p50_ms']:.1f}",
        f"{many['texts_per_second']:.0f}",
        "-" if peak is None else f"{peak:.0f}",
    ]


if __name__ == "__main__":
    main()
