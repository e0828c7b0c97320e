"""Name what the full tier needs besides Python packages, and the command that ends each lack.

As a script (`python -m needs`) it lists what this machine lacks.
"""

from __future__ import annotations

import functools
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from browser import find_browser
from interop.environments import ADAPTERS, CLIENTS, TOOLS
from paths import ROOT


@dataclass(frozen=True)
class Need:
    """Something that tests need: a noun for it, how to get it, and whether it is here."""

    noun: str
    command: str
    here: Callable[[], bool]


def find_haproxy() -> str | None:
    """Return the path of haproxy, which Debian puts where only root looks."""
    return shutil.which("haproxy") or shutil.which("haproxy", path="/usr/sbin")


def find_wine() -> str | None:
    """Return the path of wine, which Debian puts where nobody looks."""
    return shutil.which("wine64") or shutil.which("wine64", path="/usr/lib/wine")


def data_folder() -> Path:
    """Return the folder of real evaluation data: MIRROR_RT_DATA, or one beside the clone."""
    return Path(os.environ.get("MIRROR_RT_DATA", ROOT.parent / "shared" / "data"))


def _say(*line: str) -> str:
    """Return what a program says; nothing where it is not here or fails."""
    if shutil.which(line[0]) is None:
        return ""
    done = subprocess.run(line, capture_output=True, text=True, check=False)
    return "" if done.returncode else done.stdout


def _node() -> bool:
    found = re.match(r"v(\d+)", _say("node", "--version"))
    return found is not None and int(found[1]) >= 18


def _cards() -> int:
    return _say("nvidia-smi", "--list-gpus").count("GPU ")


def _programs(*names: str) -> Callable[[], bool]:
    return lambda: all(map(shutil.which, names))


def _interop() -> bool:
    asked = os.environ.get("MIRROR_RT_INTEROP") == "1"
    return asked or all(
        tool.made for tool in (*TOOLS.values(), *ADAPTERS.values(), *CLIENTS.values())
    )


def _fetched(package: str) -> Need:
    folder = ROOT / "build" / package
    return Need(f"{package} in build/", "bash tests/run.sh --all", folder.is_dir)


ZIG = ROOT / "build" / "zig" / "ziglang" / "zig"
_CARD = "bash benchmarks/gpu.sh build/report, on a machine with it"
NEEDS = {
    "chromium": Need("a Chromium", "apt-get install chromium", lambda: find_browser() is not None),
    "haproxy": Need("haproxy", "apt-get install haproxy", lambda: find_haproxy() is not None),
    "curl": Need(
        "a curl with HTTP/2", "apt-get install curl", lambda: "HTTP2" in _say("curl", "-V")
    ),
    "java": Need("Java", "apt-get install default-jdk-headless", _programs("javac", "java")),
    "go": Need("Go", "apt-get install golang-go", _programs("go")),
    "node": Need("Node from 18 on", "apt-get install nodejs", _node),
    "openssl": Need("the command openssl", "apt-get install openssl", _programs("openssl")),
    "compiler": Need("a C++ compiler", "apt-get install g++", _programs("g++")),
    "kubectl": Need("kubectl", "apt-get install kubectl (pkgs.k8s.io)", _programs("kubectl")),
    "prometheus": Need("Prometheus and promtool", "apt-get install prometheus",
                       _programs("prometheus", "promtool")),
    "docker": Need(
        "a Docker daemon with buildx", "apt-get install docker.io docker-buildx",
        lambda: bool(_say("docker", "info") and _say("docker", "buildx", "version")),
    ),
    "namespaces": Need(
        "namespaces without a network", "sysctl -w kernel.unprivileged_userns_clone=1, or root",
        lambda: bool(_say("unshare", "--map-root-user", "--net", "--mount", "echo", "here")),
    ),
    "systemd": Need("systemd-analyze", "apt-get install systemd", _programs("systemd-analyze")),
    "zig": Need("a compiler for all systems", "bash tests/run.sh --all", ZIG.exists),
    "qemu": Need("the same, and an emulator for ARM", "apt-get install qemu-user",
                 lambda: ZIG.exists() and _programs("qemu-aarch64")()),
    "wine": Need("the same, and a stand-in for Windows", "apt-get install wine64",
                 lambda: ZIG.exists() and find_wine() is not None),
    "interop": Need(
        "environments of other tools (13 GB)", "MIRROR_RT_INTEROP=1 bash tests/run.sh --all",
        _interop,
    ),
    "data": Need(
        "real evaluation data", "MIRROR_RT_DATA=FOLDER bash tests/run.sh --all",
        lambda: (data_folder() / "multisimlex").is_dir(),
    ),
    "card": Need("an NVIDIA card", _CARD, lambda: _cards() > 0),
    "two cards": Need("two NVIDIA cards", _CARD, lambda: _cards() > 1),
    "clean python": Need(
        "an environment with the wheel alone", "bash tests/run.sh",
        lambda: "MIRROR_RT_CLEAN_PYTHON" in os.environ,
    ),
    **{
        name: _fetched(name)
        for name in ("tritonclient", "helm", "cohere", "model2vec", "fastembed")
    },
}  # fmt: skip


@functools.cache
def is_here(name: str) -> bool:
    """Tell whether this machine has what tests need, by its key in `NEEDS`."""
    return NEEDS[name].here()


if __name__ == "__main__":
    lacking = [need for name, need in NEEDS.items() if not is_here(name)]
    sys.stdout.writelines(f"   {need.noun}: {need.command}\n" for need in lacking)
    sys.stdout.write(f"   {len(NEEDS) - len(lacking)} of {len(NEEDS)} are here\n")
