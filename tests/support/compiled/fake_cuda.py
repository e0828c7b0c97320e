"""Fake an onnxruntime-gpu: its module, and a provider library that needs missing libraries."""

from __future__ import annotations

import subprocess
from pathlib import Path
from types import SimpleNamespace

CUDA, CPU = "CUDAExecutionProvider", "CPUExecutionProvider"


def make_onnxruntime(folder: Path, *, missing: list[str], session=None) -> SimpleNamespace:
    """Return a module with CUDA, whose provider library needs the libraries `missing`."""
    capi = folder / "onnxruntime" / "capi"
    capi.mkdir(parents=True)
    source = folder / "empty.c"
    source.write_text("int nothing;\n")
    for name in missing:
        _link(source, folder / name, "-Wl,-soname," + name)
    needed = [str(folder / name) for name in missing]
    _link(source, capi / "libonnxruntime_providers_cuda.so", "-Wl,--no-as-needed", *needed)
    for name in missing:
        (folder / name).unlink()
    return SimpleNamespace(
        __file__=str(folder / "onnxruntime" / "__init__.py"),
        __version__="1.99.0",
        get_available_providers=lambda: [CUDA, CPU],
        InferenceSession=session,
    )


def _link(source: Path, out: Path, *options: str) -> None:
    subprocess.run(["gcc", "-shared", "-fPIC", str(source), "-o", str(out), *options], check=True)
