"""Build variants of the native sources for tests, with only a compiler."""

from __future__ import annotations

import fcntl
import hashlib
import importlib.util
import os
import subprocess
import sysconfig
from pathlib import Path
from types import ModuleType

import pybind11

from paths import ROOT

# Instruction sets whose vectors a narrower processor can stand in for.
EMULATED = ("avx512", "avx512_bf16")
CACHE = ROOT / "build" / "tests"
FLAGS = ["-std=c++17", "-O2", "-fPIC", "-fvisibility=hidden", "-ffp-contract=fast", "-pthread"]


def build_core(name: str, defines: list[str], flags: list[str]) -> ModuleType:
    """Compile csrc/ (without CUDA) as a module of its own, once for each state of the sources."""
    sources = sorted((ROOT / "csrc").rglob("*.cpp"))
    sources = [path for path in sources if path.name != "cuda.cpp" and path.parent.name != "gpu"]
    headers = sorted((ROOT / "csrc").rglob("*.h"))
    content = b"".join(path.read_bytes() for path in [*sources, *headers, Path(__file__)])
    key = hashlib.sha256(content + repr((defines, flags)).encode()).hexdigest()[:16]
    folder = CACHE / f"{name}-{key}"
    library = folder / f"_core{sysconfig.get_config_var('EXT_SUFFIX')}"
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:  # another process may be building the same
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not library.exists():
            _compile(sources, library, [*FLAGS, *flags, *(f"-D{define}" for define in defines)])
    spec = importlib.util.spec_from_file_location("_core", library)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _compile(sources: list[Path], library: Path, flags: list[str]) -> None:
    headers = (ROOT / "csrc", pybind11.get_include(), sysconfig.get_path("include"))
    includes = [f"-I{folder}" for folder in headers]
    compiler = os.environ.get("CXX", "g++")
    objects = [library.parent / f"{i}-{source.stem}.o" for i, source in enumerate(sources)]
    jobs = [
        subprocess.Popen([compiler, *flags, *includes, "-c", str(source), "-o", str(target)])
        for source, target in zip(sources, objects, strict=True)
    ]
    codes = [job.wait() for job in jobs]
    assert not any(codes), "the native sources do not compile"
    partial = library.with_suffix(".partial")
    subprocess.run([compiler, "-shared", "-pthread", *objects, "-o", str(partial)], check=True)
    partial.rename(library)
