"""Describe this machine: its NVIDIA GPU, driver, compiler, packages, and how fast it is at best.

    python benchmarks/gpu/machine.py [--device cpu] [--json FILE]

The exit status is 1 if there is no GPU that torch can use.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.metadata
import json
import os
import platform
import shutil
import subprocess
import sys
import sysconfig
import time
from pathlib import Path

TOOLS = ("nvcc", "cmake", "ninja", "g++", "compute-sanitizer", "ncu")
QUERY = ("name", "memory.total", "compute_cap", "driver_version", "clocks.max.sm")
TURNS = 10


def output(*command: str) -> str:
    with contextlib.suppress(OSError):
        done = subprocess.run(command, capture_output=True, encoding="utf-8", check=False)
        return (done.stdout + done.stderr).strip()
    return f"{command[0]}: not found"


def torch_sees(device: str) -> str:
    import torch

    if device == "cpu":
        return "not asked for"
    if not torch.cuda.is_available():
        return "none"
    properties = torch.cuda.get_device_properties(0)
    return f"{properties.name}, {properties.multi_processor_count} multiprocessors"


def rates(device: str) -> dict[str, float]:
    """Return the bytes a second that a copy reads and writes, and the FLOP/s of a product."""
    import torch

    side, size = (8192, 1 << 30) if device == "cuda" else (256, 1 << 20)

    def seconds(function) -> float:
        function()
        sync = torch.cuda.synchronize if device == "cuda" else (lambda: None)
        sync()
        began = time.perf_counter()
        for _ in range(TURNS):
            function()
        sync()
        return (time.perf_counter() - began) / TURNS

    source = torch.zeros(size, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    found = {"copy_bytes_per_second": 2 * size / seconds(lambda: target.copy_(source))}
    for dtype in (torch.bfloat16, torch.float16):
        a = torch.randn(side, side, device=device).to(dtype)
        flops = 2 * side**3 / seconds(lambda a=a: a @ a)
        found[f"product_flops_{str(dtype).removeprefix('torch.')}"] = flops
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--json", type=Path, metavar="FILE")
    arguments = parser.parse_args()
    versions = {d.name: d.version for d in importlib.metadata.distributions()}
    found = {
        "card": output("nvidia-smi", f"--query-gpu={','.join(QUERY)}", "--format=csv,noheader"),
        "processors": os.cpu_count(),
        "system": f"{platform.platform()}, {' '.join(platform.libc_ver())}",
        "python": f"{platform.python_version()}, {sys.executable}",
        "python_header": (Path(sysconfig.get_paths()["include"]) / "Python.h").is_file(),
        "nvcc": output("nvcc", "--version").splitlines()[-1],
        "tools": {name: shutil.which(name) for name in TOOLS},
        "packages": dict(sorted(versions.items(), key=lambda item: item[0].lower())),
    }

    def write() -> None:
        if arguments.json is not None:
            arguments.json.write_text(json.dumps(found), encoding="utf-8")

    write()
    try:
        found["torch_sees"] = torch_sees(arguments.device)
    except ImportError as error:
        found["torch_sees"] = f"none: {error}"
    write()
    there = not found["torch_sees"].startswith("none")
    if there:
        found["rates"] = rates(arguments.device)
        write()
    for name, value in found.items():
        print(f"{name}: {value}")
    if not there:
        print("torch finds no NVIDIA card")
    return int(not there)


if __name__ == "__main__":
    sys.exit(main())
