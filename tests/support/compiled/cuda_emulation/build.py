"""Compile the CUDA kernels for the host, with the interface of mirror_train._cuda."""

import fcntl
import hashlib
import importlib.util
import subprocess
import sysconfig
from pathlib import Path
from types import ModuleType

from paths import ROOT

_GPU = ROOT / "csrc" / "infonce" / "gpu"
_HOST = [ROOT / "csrc" / "bindings" / "cuda.cpp", _GPU / "batch.cpp", _GPU / "taught.cpp"]
_KERNELS = _GPU / "loss.cu"
_TMA = _GPU / "tma.cu"
_FLAGS = [
    "-std=c++17", "-O2", "-fPIC", "-fvisibility=hidden", "-DMIRROR_CUDA_EMULATION",
    "-Wall", "-Wextra", "-Werror", "-Wno-unknown-pragmas",  # '#pragma unroll' is for nvcc
]  # fmt: skip


def build(compiler: str, folder: Path, *, architecture: int) -> ModuleType:
    """Return the kernels as an extension that takes host addresses; built once per content."""
    folder = folder / _digest(compiler)
    path = folder / str(architecture) / f"_cuda{sysconfig.get_config_var('EXT_SUFFIX')}"
    path.parent.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:  # another process may be building the same
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not path.exists():
            _compile(compiler, folder, path, architecture)
    # Each architecture gets a name of its own, since pybind11 returns the same module for a name.
    spec = importlib.util.spec_from_file_location(f"emulated_sm_{architecture // 10}._cuda", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _digest(compiler: str) -> str:
    digest = hashlib.sha256(repr((compiler, _FLAGS, sysconfig.get_config_var("SOABI"))).encode())
    sources = [_HOST[0], ROOT / "csrc" / "bindings" / "addresses.h", *_GPU.iterdir()]
    for path in sorted([*sources, *Path(__file__).parent.glob("*.h")]):
        digest.update(path.name.encode() + path.read_bytes())
    return digest.hexdigest()[:16]


def _compile(compiler: str, folder: Path, out: Path, architecture: int) -> None:
    import pybind11

    includes = [
        f"-I{Path(__file__).parent}",
        f"-I{ROOT / 'csrc'}",
        f"-isystem{pybind11.get_include()}",
        f"-isystem{sysconfig.get_paths()['include']}",
    ]
    host = [(source, folder / f"{source.stem}.o", ["-O0"]) for source in _HOST]
    kernels = out.with_name("kernels.o")
    flags = [f"-D__CUDA_ARCH__={architecture}"]
    jobs = [(_KERNELS, kernels, flags)]
    if architecture == 900:
        flags.append("-DMIRROR_TRAIN_TMA")
        jobs.append((_TMA, out.with_name("tma.o"), flags))
    objects = [target for _, target, _ in [*host, *jobs]]
    # The bindings are slow to compile, but the same for all architectures.
    jobs = [job for job in host if not job[1].exists()] + jobs
    running = [
        subprocess.Popen([compiler, *_FLAGS, *more, *includes, "-xc++", "-c", source, "-o", target])
        for source, target, more in jobs
    ]
    codes = [process.wait() for process in running]
    if any(codes):
        raise RuntimeError("the emulation of the CUDA kernels does not compile")
    unfinished = out.with_suffix(".tmp")
    subprocess.run([compiler, "-shared", *objects, "-o", unfinished], check=True)
    unfinished.rename(out)
