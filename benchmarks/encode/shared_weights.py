"""Measure how much memory several processes with one bundle share.

    python benchmarks/encode/shared_weights.py BUNDLE [--processes 4]

Each process loads the bundle and encodes a few texts, once with the mapped graph and once with the
graph that holds its weights. RSS counts shared pages in full, whereas PSS divides them among the
processes (both are read from /proc/PID/smaps_rollup), so the sum of PSS is the machine's memory.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

LOAD = """
import sys
from mirror_rt import Encoder
encoder = Encoder.load(sys.argv[1], verify=False, threads=1, providers="cpu")
encoder.encode(["one string", "another " * 30])
print("ready", flush=True)
sys.stdin.read()
"""


def memory_mb(pid: int) -> dict[str, float]:
    """Return RSS, PSS and private memory of a process."""
    rollup = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="utf-8")
    kilobytes = {name: int(kb) for name, kb in re.findall(r"(\w+):\s+(\d+) kB", rollup)}
    private = kilobytes["Private_Clean"] + kilobytes["Private_Dirty"]
    return {"rss": kilobytes["Rss"] / 1024, "pss": kilobytes["Pss"] / 1024, "own": private / 1024}


def measure(bundle: Path, processes: int) -> dict[str, float]:
    """Return the means over the processes, in megabytes."""
    children = [
        subprocess.Popen(
            [sys.executable, "-c", LOAD, str(bundle)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        for _ in range(processes)
    ]
    try:
        for child in children:
            assert child.stdout.readline() == b"ready\n"
        found = [memory_mb(child.pid) for child in children]
    finally:
        for child in children:
            child.communicate()
    return {name: statistics.mean(mb[name] for mb in found) for name in found[0]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--processes", type=int, default=4)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        copied = Path(shutil.copytree(arguments.bundle, Path(folder) / "bundle"))
        (copied / "onnx" / "model_mapped.onnx").unlink()
        found = {
            "mapped": measure(arguments.bundle, arguments.processes),
            "copied": measure(copied, arguments.processes),
        }
    if arguments.json:
        print(json.dumps(found))
        return
    for how, mb in found.items():
        print(
            f"weights {how}: RSS {mb['rss']:.0f} MB, PSS {mb['pss']:.0f} MB, private "
            f"{mb['own']:.0f} MB a process, of {arguments.processes}"
        )


if __name__ == "__main__":
    main()
