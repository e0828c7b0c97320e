"""Build variants of the native sources for tests, with only a compiler."""

from __future__ import annotations

import fcntl
import hashlib
import importlib.util
import os
import platform
import subprocess
import sysconfig
from collections.abc import Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType

import pybind11

from paths import ROOT

CACHE = ROOT / "build" / "tests"
FLAGS = ["-std=c++17", "-O2", "-fPIC", "-fvisibility=hidden", "-ffp-contract=fast", "-pthread"]
_AVX512 = ["-mfma", "-mpopcnt", "-mavx512f", "-mavx512dq", "-mavx512bw", "-mavx512vl"]
# No processor at hand has AMX: its kernels are compiled with its intrinsics in plain C++.
AMX_EMULATION = Path(__file__).with_name("amx_emulation.h")
# As in CMakeLists.txt, of the files whose names end so.
ISA_FLAGS = {
    "avx2": ["-mavx2", "-mfma", "-mf16c", "-mpopcnt"],
    "avx_vnni": ["-mavx2", "-mfma", "-mavxvnni"],
    "avx512": _AVX512,
    "avx512_vnni": [*_AVX512, "-mavx512vnni"],
    "avx512_bf16": [*_AVX512, "-mavx512vnni", "-mavx512bf16"],
    "avx512_amx": [*_AVX512, "-mavx512vnni", "-mavx512bf16"],
}
# Checks of every pointer for null or alignment, and checks of memory that are written out instead
# of called, would take most of the compiler's time; so would all checks of what pybind11 makes.
_BINDINGS = ["-O0", "-fno-sanitize=undefined"]
# No test runs these kernels here, which are needed to link alone.
_NEVER_RUN = ["-O0", "-g0", "-fno-sanitize=all"]
SANITIZED = [
    "-O1", "-g1", "-fsanitize=address,undefined,float-cast-overflow",
    "-fno-sanitize=null,alignment,object-size,pointer-overflow,vptr", "-fno-sanitize-recover=all",
    "--param=asan-instrumentation-with-call-threshold=0",
]  # fmt: skip


def instruction_sets() -> dict[str, list[str]]:
    """Return the instruction sets that this processor has, by the folder of their kernels."""
    from mirror_rt import _core

    return {
        "engine": _core.engine_instruction_sets(),
        "infonce/cpu": _core.instruction_sets(),
        "vector_ops": _core.vector_instruction_sets(),
    }


def emulated_sets() -> dict[str, list[str]]:
    """Return the instruction sets that this processor lacks and can stand in for, by the folder.

    What is tested is their tiling. In the engine, the kernels for AVX512-BF16 and AVX-VNNI differ
    from those for AVX-512 and AVX2 in instructions alone: without these, they are the same code.
    Those for AMX are run with its instructions emulated.
    AVX512-VNNI has the instructions of AVX-VNNI, which it stands in for in the long form.
    """
    here = instruction_sets()
    wanted = {"engine": ["avx512", "avx512_amx"], "infonce/cpu": ["avx512", "avx512_bf16"]}
    if "avx512_vnni" in here["engine"] and "MIRROR_RT_FULL" in os.environ:
        wanted["engine"].append("avx_vnni")
    return {part: [name for name in wanted[part] if name not in here[part]] for part in wanted}


def build_emulated() -> ModuleType:
    """Compile csrc/ with the kernels of other processors for this one, and import it."""
    emulated, here = emulated_sets(), instruction_sets()["engine"]
    flags = ["-O1"]  # of sixteen lanes on processors with eight, -O2 takes more than a minute
    if "avx2" in here:  # no more than this processor has
        flags += ["-mavx2", "-mfma"]
    if "avx_vnni" in emulated["engine"]:
        flags += ["-mavx512vl", "-mavx512vnni"]
    defines = ["MIRROR_RT_X86", "MIRROR_RT_EMULATE"]
    return load_core(build_library("emulated", defines, flags, emulated, {}))


def build_sanitized() -> Path:
    """Compile csrc/ with checks of addresses and undefined behaviour; return the library.

    Each file is compiled for its own instruction set, as in a release; tiles are emulated.
    """
    x86, here = platform.machine() == "x86_64", instruction_sets()
    defines, isa_flags = (
        (["MIRROR_RT_X86", "MIRROR_RT_EMULATE_TILES"], ISA_FLAGS) if x86 else ([], {})
    )
    if "avx512_bf16" in here["engine"]:
        here["engine"] = [*here["engine"], "avx512_amx"]
    return build_library("sanitized", defines, SANITIZED, here, isa_flags)


def build_library(
    name: str,
    defines: list[str],
    flags: list[str],
    run: Mapping[str, Collection[str]],
    isa_flags: Mapping[str, list[str]],
) -> Path:
    """Compile csrc/ (without CUDA) as a library, once for each state of the sources.

    `run` has the instruction sets that will be used, by the folder of their kernels.
    """
    sources = sorted((ROOT / "csrc").rglob("*.cpp"))
    sources = [
        path for path in sources
        if path.name != "cuda.cpp" and path.parent.name != "gpu" and "_neon" not in path.name
    ]  # fmt: skip
    headers = sorted((ROOT / "csrc").rglob("*.h"))
    read = [*sources, *headers, Path(__file__), AMX_EMULATION]
    content = b"".join(path.read_bytes() for path in read)
    key = hashlib.sha256(content + repr((defines, flags, run, isa_flags)).encode()).hexdigest()[:16]
    folder = CACHE / f"{name}-{key}"
    library = folder / f"_core{sysconfig.get_config_var('EXT_SUFFIX')}"
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:  # another process may be building the same
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not library.exists():
            every = [*FLAGS, *flags, *(f"-D{define}" for define in defines)]
            own = [_own_flags(path, run, isa_flags) for path in sources]
            _compile(sources, library, every, own)
    return library


def run_check(name: str, parts: Collection[str], flags: Collection[str], folder: Path) -> str:
    """Compile parts of csrc/ and a program of compiled/native that checks them; run it."""
    sources = [ROOT / "csrc" / f"{part}.cpp" for part in parts]
    check, binary = Path(__file__).parent / "native" / f"{name}.cpp", folder / "check"
    warnings = ["-Wall", "-Wextra", "-Wpedantic", "-Werror"]
    given = ["-std=c++17", "-g", "-pthread", *warnings, *flags, f"-I{ROOT / 'csrc'}"]
    subprocess.run(["g++", *given, *sources, check, "-o", binary], check=True)
    done = subprocess.run([binary], capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def load_core(library: Path) -> ModuleType:
    """Import a library as a module `_core`."""
    spec = importlib.util.spec_from_file_location("_core", library)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _own_flags(
    source: Path, run: Mapping[str, Collection[str]], isa_flags: Mapping[str, list[str]]
) -> list[str]:
    """Return what a source is compiled with beside the flags of all."""
    if source.parent.name == "bindings":
        return _BINDINGS
    kind, _, isa = source.stem.partition("_")
    if kind not in ("kernels", "tile"):
        return []
    folder = source.parent.relative_to(ROOT / "csrc").as_posix()
    own = isa_flags.get(isa, [])
    if isa == "avx512_amx":
        own = [*own, "-include", str(AMX_EMULATION)]
    return own if isa in run.get(folder, ()) else [*own, *_NEVER_RUN]


def _compile(
    sources: list[Path], library: Path, flags: list[str], own_flags: list[list[str]]
) -> None:
    headers = (ROOT / "csrc", pybind11.get_include(), sysconfig.get_path("include"))
    includes = [f"-I{folder}" for folder in headers]
    compiler = os.environ.get("CXX", "g++")
    objects = [library.parent / f"{i}-{source.stem}.o" for i, source in enumerate(sources)]
    commands = [
        [compiler, *flags, *more, *includes, "-c", str(source), "-o", str(target)]
        for source, target, more in zip(sources, objects, own_flags, strict=True)
    ]
    with ThreadPoolExecutor(os.cpu_count()) as threads:
        codes = list(threads.map(subprocess.call, commands))
    assert not any(codes), "the native sources do not compile"
    partial = library.with_suffix(".partial")
    sanitizers = [flag for flag in flags if flag.startswith("-fsanitize")]
    command = [compiler, "-shared", "-pthread", *sanitizers, *objects, "-o", str(partial)]
    subprocess.run(command, check=True)
    partial.rename(library)
