"""Build variants of the native sources for tests, with only a compiler."""

from __future__ import annotations

import fcntl
import hashlib
import importlib.util
import os
import platform
import subprocess
import sysconfig
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType

import pybind11

from paths import ROOT

# Instruction sets whose vectors a narrower processor can stand in for.
EMULATED = ("avx_vnni", "avx512", "avx512_bf16")
CACHE = ROOT / "build" / "tests"
FLAGS = ["-std=c++17", "-O2", "-fPIC", "-fvisibility=hidden", "-ffp-contract=fast", "-pthread"]
_AVX512 = ["-mfma", "-mpopcnt", "-mavx512f", "-mavx512dq", "-mavx512bw", "-mavx512vl"]
# As in CMakeLists.txt, of the files whose names end so.
ISA_FLAGS = {
    "avx2": ["-mavx2", "-mfma", "-mpopcnt"],
    "avx_vnni": ["-mavx2", "-mfma", "-mavxvnni"],
    "avx512": _AVX512,
    "avx512_vnni": [*_AVX512, "-mavx512vnni"],
    "avx512_bf16": [*_AVX512, "-mavx512vnni", "-mavx512bf16"],
}
# Checks of every pointer for null or alignment, and checks of memory that are written out instead
# of called, would take most of the compiler's time; so would all checks of what pybind11 makes.
_BINDINGS = ["-O0", "-fno-sanitize=undefined"]
SANITIZED = [
    "-O1", "-g1", "-fsanitize=address,undefined,float-cast-overflow",
    "-fno-sanitize=null,alignment,object-size,pointer-overflow,vptr", "-fno-sanitize-recover=all",
    "--param=asan-instrumentation-with-call-threshold=0",
]  # fmt: skip


def build_core(name: str, defines: list[str], flags: list[str]) -> ModuleType:
    """Compile csrc/ (without CUDA) as a module of its own, and import it."""
    return load_core(build_library(name, defines, flags))


def build_sanitized() -> Path:
    """Compile csrc/ with checks of addresses and undefined behaviour; return the library.

    Each file is compiled for its own instruction set, as in a release.
    """
    x86 = platform.machine() == "x86_64"
    return build_library(
        "sanitized", ["MIRROR_RT_X86"] if x86 else [], SANITIZED, ISA_FLAGS if x86 else {}
    )


def build_library(
    name: str,
    defines: list[str],
    flags: list[str],
    isa_flags: Mapping[str, list[str]] | None = None,
) -> Path:
    """Compile csrc/ (without CUDA) as a library, once for each state of the sources."""
    sources = sorted((ROOT / "csrc").rglob("*.cpp"))
    sources = [
        path for path in sources
        if path.name != "cuda.cpp" and path.parent.name != "gpu" and "_neon" not in path.name
    ]  # fmt: skip
    headers = sorted((ROOT / "csrc").rglob("*.h"))
    content = b"".join(path.read_bytes() for path in [*sources, *headers, Path(__file__)])
    key = hashlib.sha256(content + repr((defines, flags, isa_flags)).encode()).hexdigest()[:16]
    folder = CACHE / f"{name}-{key}"
    library = folder / f"_core{sysconfig.get_config_var('EXT_SUFFIX')}"
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:  # another process may be building the same
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not library.exists():
            every = [*FLAGS, *flags, *(f"-D{define}" for define in defines)]
            _compile(sources, library, every, isa_flags or {})
    return library


def load_core(library: Path) -> ModuleType:
    """Import a library as a module `_core`."""
    spec = importlib.util.spec_from_file_location("_core", library)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _compile(
    sources: list[Path], library: Path, flags: list[str], isa_flags: Mapping[str, list[str]]
) -> None:
    headers = (ROOT / "csrc", pybind11.get_include(), sysconfig.get_path("include"))
    includes = [f"-I{folder}" for folder in headers]
    compiler = os.environ.get("CXX", "g++")
    objects = [library.parent / f"{i}-{source.stem}.o" for i, source in enumerate(sources)]
    own = [
        _BINDINGS if isa_flags and source.parent.name == "bindings"
        else isa_flags.get(source.stem.partition("_")[2], [])
        for source in sources
    ]  # fmt: skip
    commands = [
        [compiler, *flags, *more, *includes, "-c", str(source), "-o", str(target)]
        for source, target, more in zip(sources, objects, own, strict=True)
    ]
    with ThreadPoolExecutor(os.cpu_count()) as threads:
        codes = list(threads.map(subprocess.call, commands))
    assert not any(codes), "the native sources do not compile"
    partial = library.with_suffix(".partial")
    sanitizers = [flag for flag in flags if flag.startswith("-fsanitize")]
    command = [compiler, "-shared", "-pthread", *sanitizers, *objects, "-o", str(partial)]
    subprocess.run(command, check=True)
    partial.rename(library)
