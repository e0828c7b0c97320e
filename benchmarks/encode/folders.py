"""Compare a model's folder with the bundle that an export makes of it: cold start and memory.

    mirror-rt export all-MiniLM-L6-v2 --out bundle
    python benchmarks/encode/folders.py all-MiniLM-L6-v2 bundle [--rounds 15]

Both take turns, each in a process of its own, on the native engine in fp32, and a ratio is the
median of the ratios of all rounds. A cold start lasts from the start of the process to its first
vector, with the files in memory; the memory is the peak of the process. The hashes of a ready model
and those of a bundle are compared while they are loaded; a folder that is given by its path has
none.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time

from mirror_rt.diagnostics.benchmarking import machine_name
from mirror_rt.io.tables import markdown_table

WORKER = """
import json, resource, sys
from mirror_rt import Encoder
vector = Encoder.load(sys.argv[1], providers="native").encode("the old town by the river")
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print(json.dumps([vector.tobytes().hex(), peak / 1024]))
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder")
    parser.add_argument("bundle")
    parser.add_argument("--rounds", type=int, default=15)
    arguments = parser.parse_args()
    models = (arguments.folder, arguments.bundle)
    for model in models:
        start(model)  # so that the files are in memory
    rounds = [[start(model) for model in models] for _ in range(arguments.rounds)]
    if len({vector for pair in rounds for vector, *_ in pair}) != 1:
        sys.exit("the vectors differ: these are not the same model")
    rows = []
    for name, place, digits in (("cold start, s", 1, 2), ("peak memory, MB", 2, 0)):
        folder, bundle = ([pair[i][place] for pair in rounds] for i in (0, 1))
        ratio = statistics.median(a / b for a, b in zip(folder, bundle, strict=True))
        both = (f"{statistics.median(of):.{digits}f}" for of in (folder, bundle))
        rows.append([name, *both, f"{ratio:.3f}"])
    print(f"{machine_name()}, {time.strftime('%Y-%m-%d')}, {arguments.rounds} rounds\n")
    print(markdown_table(["", "folder", "bundle", "folder / bundle"], rows, numbers=True))


def start(model: str) -> tuple[str, float, float]:
    """Return a vector, the seconds of a process to it, and its peak of memory in MB."""
    begin = time.perf_counter()
    line = [sys.executable, "-P", "-c", WORKER, model]
    said = subprocess.run(line, check=True, capture_output=True, text=True).stdout
    seconds = time.perf_counter() - begin
    vector, peak = json.loads(said)
    return vector, seconds, peak


if __name__ == "__main__":
    main()
