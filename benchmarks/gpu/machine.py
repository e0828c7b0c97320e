"""Describe this machine: its NVIDIA GPU, driver, compiler and packages.

    python benchmarks/gpu/machine.py [--json FILE]

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
from pathlib import Path

TOOLS = ("nvcc", "cmake", "ninja", "g++", "compute-sanitizer", "ncu")
QUERY = ("name", "memory.total", "compute_cap", "driver_version", "clocks.max.sm")


def output(*command: str) -> str:
    with contextlib.suppress(OSError):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        return (done.stdout + done.stderr).strip()
    return f"{command[0]}: not found"


def torch_sees() -> str:
    import torch

    if not torch.cuda.is_available():
        return "none"
    properties = torch.cuda.get_device_properties(0)
    return f"{properties.name}, {properties.multi_processor_count} multiprocessors"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, metavar="FILE")
    arguments = parser.parse_args()
    versions = {d.name: d.version for d in importlib.metadata.distributions()}
    found = {
        "card": output("nvidia-smi", f"--query-gpu={','.join(QUERY)}", "--format=csv,noheader"),
        "torch_sees": "",
        "processors": os.cpu_count(),
        "system": f"{platform.platform()}, {' '.join(platform.libc_ver())}",
        "python": f"{platform.python_version()}, {sys.executable}",
        "python_header": (Path(sysconfig.get_paths()["include"]) / "Python.h").is_file(),
        "nvcc": output("nvcc", "--version").splitlines()[-1],
        "tools": {name: shutil.which(name) for name in TOOLS},
        "packages": dict(sorted(versions.items(), key=lambda item: item[0].lower())),
    }
    try:
        found["torch_sees"] = torch_sees()
    except ImportError as error:
        found["torch_sees"] = f"none: {error}"
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(found))
    for name, value in found.items():
        print(f"{name}: {value}")
    if found["torch_sees"].startswith("none"):
        print("torch finds no NVIDIA card")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
