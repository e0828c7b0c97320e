"""Check whether the installed packages fit together, and find commands that repair them."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Literal

import numpy as np

from mirror_rt import _core
from mirror_rt.bundle.hub import cache_folder
from mirror_rt.bundle.manifest import Precision
from mirror_rt.cpus import cpu_budget, processor_names
from mirror_rt.encoding.encoder import Encoder
from mirror_rt.errors import MirrorError, MissingDependencyError, ProviderError
from mirror_rt.inference.devices import cards
from mirror_rt.inference.load_options import LoadOptions
from mirror_rt.inference.native.kernel_choice import quickest, seconds_here
from mirror_rt.inference.openvino.compiling import choose_precision, import_openvino
from mirror_rt.inference.providers import CUDA, NATIVE, installed
from mirror_rt.inference.session import import_onnxruntime
from mirror_rt.inference.shared_libraries import (
    INSTALL_DRIVER,
    card_files,
    cuda_library,
    driver_fault,
    missing_libraries,
    nvidia_cards,
    preload,
    remedy,
)
from mirror_rt.io.atomic import os_reason

Status = Literal["ok", "warning", "fault"]

_WHEELS = ("onnxruntime", "onnxruntime-gpu", "onnxruntime-directml", "onnxruntime-openvino")
_OPTIONAL = ("huggingface_hub", "pyarrow", "torch", "transformers", "onnx")
# The classes of processors, by the most capable instruction set of the engine's kernels.
_CLASSES = {
    "avx512_amx": "AVX-512 with AMX", "avx512_bf16": "AVX-512 with bfloat16",
    "avx512_vnni": "AVX-512 with VNNI", "avx512": "AVX-512", "avx_vnni": "AVX2 with VNNI",
    "avx2": "AVX2", "neon_i8mm": "ARM with I8MM", "neon_dot": "ARM with dot products",
    "portable": "without instructions that the engine has kernels for",
}  # fmt: skip
# The cosine, about, of the vectors of each precision in the engine with those of fp32.
_COSINES = {"fp32": "1", "bf16": ".9999", "int8": ".99"}
_MEND_DRIVER = "restart, or install the NVIDIA driver again; nvidia-smi must list the card"
_MENDS_WHEELS = "pip uninstall -y {} && pip install 'mirror-rt[{}]'"
# The largest difference of a component between a text's vectors alone and in a batch. It is large
# for int8, which takes its scales from all texts of a batch.
_AGREE: dict[Precision, float] = {"fp32": 1e-5, "fp16": 5e-3, "bf16": 2e-2, "int8": 5e-2}
_REFERENCE = [
    "a",
    "The river runs slowly through the old town.",
    "Tous les êtres humains naissent libres et égaux.",
    "Её дом стоит на берегу реки.",
    "人人生而自由，在尊严和权利上一律平等。",
    "A longer text, for a batch in which the others are padded. " * 6,
]


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check."""

    name: str  # name of the check
    status: Status  # `ok`; `warning` for something that works, but not as well as it could; `fault`
    detail: str  # result in words
    remedy: str | None = None  # command or step that repairs it; None if there is none


def examine(model: str | Path | None = None, load: LoadOptions | None = None) -> list[Finding]:
    """Run all checks; with a `model`, load it and encode with it as well."""
    found = [*_versions(), *_onnxruntime(), *_openvino(), *_threads(), *_extension(), *_cache()]
    if model is not None:
        found += _self_test(model, load or LoadOptions())
    return found


def _versions() -> Iterator[Finding]:
    system = f"{platform.system()} {platform.machine()}"
    yield Finding("python", "ok", f"{platform.python_version()}, {system}, {sys.executable}")
    names = ("mirror-rt", "numpy", "tokenizers")
    yield Finding("versions", "ok", ", ".join(f"{name} {_version(name)}" for name in names))
    found = [f"{name} {_version(name)}" for name in _OPTIONAL if installed(name)]
    yield Finding("optional", "ok", ", ".join(found) or "none")


def _onnxruntime() -> Iterator[Finding]:
    wheels = [name for name in _WHEELS if installed(name)]
    named = ", ".join(f"{name} {_version(name)}" for name in wheels)
    if len(wheels) > 1:
        mend = _MENDS_WHEELS.format(" ".join(wheels), "gpu" if nvidia_cards() else "cpu")
        said = f"{named} are installed together, and overwrote each other's files"
        yield Finding("onnxruntime", "fault", said, mend)
    try:
        onnxruntime = import_onnxruntime()
    except MissingDependencyError:
        said = "not installed: the native engine runs the BERT family and ModernBERT without it"
        yield Finding("onnxruntime", "ok", f"{said}; others need pip install 'mirror-rt[cpu]'")
        if card_files():
            mend = "pip install 'mirror-rt[gpu]'"
            yield Finding("cuda", "warning", "a card, and no onnxruntime to run on it", mend)
        return
    except ImportError as error:
        mend = _MENDS_WHEELS.format(" ".join(wheels) or "onnxruntime", "cpu")
        yield Finding("onnxruntime", "fault", f"it does not load: {error}", mend)
        return
    if len(wheels) <= 1:
        yield Finding("onnxruntime", "ok", named or f"{onnxruntime.__version__}, not from a wheel")
    providers = onnxruntime.get_available_providers()
    yield Finding("providers", "ok", ", ".join(providers))
    yield _cuda(onnxruntime, providers, wheels)


def _cuda(onnxruntime: ModuleType, providers: list[str], wheels: list[str]) -> Finding:
    found, count = partial(Finding, "cuda"), nvidia_cards()
    fault = driver_fault() if count == 0 else None
    if CUDA not in providers:
        if count == 0:
            said = f"{fault or 'no NVIDIA card'}, and no CUDA in onnxruntime"
            return found("warning" if fault else "ok", said, _MEND_DRIVER if fault else None)
        mend = _MENDS_WHEELS.format(" ".join(wheels) or "onnxruntime", "gpu")
        said = "and this onnxruntime has no CUDA: everything runs on the CPU"
        return found("warning", f"{cards(count)}, {said}", mend)
    preload(onnxruntime)
    library = cuda_library(onnxruntime)
    missing = missing_libraries(library) if library is not None else []
    if missing:
        mend = remedy(missing, onnxruntime)
        well = not (count or fault) and mend == INSTALL_DRIVER
        status: Status = "warning" if well else "fault"
        return found(status, f"{CUDA} cannot start: missing {', '.join(missing)}", mend)
    if fault is not None:
        return found("fault", f"{CUDA} cannot start: {fault}", _MEND_DRIVER)
    if count == 0:
        said = "onnxruntime has CUDA, and the driver offers no NVIDIA card"
        return found("warning", said, "nvidia-smi (in a container: docker run --gpus all)")
    return found("ok", f"{cards(count)}, and every library that {CUDA} needs")


def _openvino() -> Iterator[Finding]:
    try:
        openvino = import_openvino()
        precision = choose_precision(None, openvino)
    except MissingDependencyError:
        yield Finding("openvino", "ok", "not installed (extra openvino)")
    except ProviderError as error:
        mend = "pip install --force-reinstall openvino, or pip uninstall openvino"
        yield Finding("openvino", "warning", str(error), mend)
    else:
        said = f"{openvino.__version__}: --providers openvino runs fp32 graphs in {precision}"
        yield Finding("openvino", "ok", f"{said}; auto never chooses it")


def _threads() -> Iterator[Finding]:
    budget = cpu_budget()
    if budget.quota is not None and budget.quota < 1:
        said = f"{budget}: less than one processor, so every run is interrupted"
        mend = "raise the CPU limit of the container to 1 at least"
        yield Finding("threads", "warning", said, mend)
    else:
        yield Finding("threads", "ok", str(budget))


def _extension() -> Iterator[Finding]:
    sets = _core.vector_instruction_sets()
    yield Finding("extension", "ok", f"{_core.__file__}, instruction set {sets[-1]}")
    yield from _engine()


def _engine() -> Iterator[Finding]:
    """Tell the instruction set of the engine, and the time of each precision with it."""
    best = _core.engine_instruction_sets()[-1]
    taken = "for bundles that it can run where CUDA runs none"
    if best == "portable":
        taken = "where onnxruntime is not installed, as this processor has no set of its kernels"
    yield Finding("engine", "ok", f"instruction set {best}; auto takes it {taken}")
    seconds = {name: seconds_here(name, keep=False) for name in _COSINES}
    times = {name: min(of.values()) / min(seconds["fp32"].values()) for name, of in seconds.items()}
    said = [f"{name} takes {times[name]:.2f} of fp32's time, at cosines of {_COSINES[name]}"
            for name in ("bf16", "int8")]  # fmt: skip
    if quickest(seconds["bf16"]).precision == "fp32":
        said[0] = "bf16 would gain nothing over fp32, which is computed in its place"
    name = (processor_names() or ["unnamed"])[0]
    yield Finding("processor", "ok", f"{name}, {_CLASSES[best]}: {'; '.join(said)}")


def _cache() -> Iterator[Finding]:
    folder = cache_folder()
    existing = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    if not (existing.is_dir() and os.access(existing, os.W_OK)):
        mend = "export MIRROR_RT_CACHE=FOLDER, one that this user may write to"
        yield Finding("cache", "fault", f"{folder} cannot be written", mend)
        return
    free = shutil.disk_usage(existing).free / 1e9
    state = "" if folder.exists() else ", not there yet"
    yield Finding("cache", "ok", f"{folder} ({free:.1f} GB free{state})")


def _self_test(model: str | Path, load: LoadOptions) -> Iterator[Finding]:
    """Check that the model gives unit vectors, and the same ones for texts alone and in a batch."""
    try:
        with Encoder.load(model, **load.keywords()) as encoder:
            together = encoder.encode(_REFERENCE, normalize_embeddings=True)
            alone = np.array([encoder.encode(t, normalize_embeddings=True) for t in _REFERENCE])
            precision, provider = encoder.variant.precision, encoder.providers[0]
            why = encoder.provider_reason
    except MirrorError as error:
        yield Finding("model", "fault", str(error), _mend(error))
        return
    except OSError as error:
        yield Finding("model", "fault", os_reason(error))
        return
    difference = float(np.abs(together - alone).max())
    length = float(np.abs(np.linalg.norm(together, axis=1) - 1).max())
    allowed = 0.0 if provider == NATIVE else _AGREE[precision]
    detail = (
        f"{model}: {precision} on {provider} ({why}); {len(_REFERENCE)} texts, alone and in a "
        f"batch, differ by {difference:.1e} at most ({allowed:.0e} is allowed)"
    )
    if difference <= allowed and length <= 1e-3:
        yield Finding("model", "ok", detail)
    else:
        yield Finding("model", "fault", detail, "pip install -U 'mirror-rt[cpu]', export it again")


def _mend(error: MirrorError) -> str | None:
    return "mirror-rt export, or mirror-rt pull, to make it again" if "SHA" in str(error) else None


def _version(distribution: str) -> str:
    return importlib.metadata.version(distribution) if installed(distribution) else "?"
