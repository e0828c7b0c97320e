"""Compile graphs with OpenVINO for the CPU: its precision, its threads and its cache."""

from __future__ import annotations

import hashlib
import logging
from pathlib import Path
from typing import Any

from mirror_rt.bundle.hub import cache_folder
from mirror_rt.bundle.manifest import Precision
from mirror_rt.errors import (
    BundleError,
    ConfigError,
    MissingDependencyError,
    ProviderError,
    Setting,
    require,
)
from mirror_rt.inference.load_options import LoadOptions
from mirror_rt.io.atomic import new_folder

logger = logging.getLogger("mirror_rt")

_HINTS: dict[Precision, str] = {"fp32": "f32", "bf16": "bf16"}


def import_openvino() -> Any:
    """Import OpenVINO."""
    try:
        openvino = require("openvino", extra="openvino", purpose="providers='openvino'")
        devices = openvino.Core().available_devices
    except MissingDependencyError:
        raise
    except (ImportError, RuntimeError) as error:
        raise ProviderError(
            f"OpenVINO does not load: {error}; pip install -U 'mirror-rt[openvino]', or leave out "
            "the provider openvino"
        ) from error
    if "CPU" not in devices:
        raise ProviderError(f"this OpenVINO has no CPU device, only {devices}")
    return openvino


def choose_precision(asked: str | None, openvino: Any) -> Precision:
    """Return the precision of the products: the one that is asked for, else the fastest here.

    Args:
        asked: `fp32`, `bf16`, or None for `bf16` where the processor computes with it.
        openvino: the module.
    """
    has_bf16 = "BF16" in openvino.Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES")
    if asked == "fp32" or (asked is None and not has_bf16):
        return "fp32"
    if asked not in (None, "bf16"):
        raise ConfigError(
            f"variant {asked!r}: the provider openvino runs {', '.join(_HINTS)}, made of fp32"
        )
    if not has_bf16:
        raise ProviderError(
            "variant 'bf16': this processor has neither AVX512-BF16 nor AMX, so bfloat16 would "
            "only cost accuracy; load variant 'fp32'"
        )
    return "bf16"


def compile_graph(graph: Path, precision: Precision, version: str, options: LoadOptions) -> Any:
    """Compile a graph, or take it from the cache as an earlier process compiled it.

    Args:
        graph: path of the graph's file.
        precision: `fp32` or `bf16`.
        version: a string that differs whenever the weights differ.
        options: say how many threads to use; `provider_options` are OpenVINO's properties.

    Returns:
        The `CompiledModel`.
    """
    openvino = import_openvino()
    core = openvino.Core()
    known = core.get_property("CPU", "SUPPORTED_PROPERTIES")
    if unknown := sorted(set(options.provider_options) - set(known)):
        raise ConfigError(
            Setting("provider_options"), f" {unknown}: OpenVINO's CPU plugin has {sorted(known)}"
        )
    properties = {
        "INFERENCE_PRECISION_HINT": _HINTS[precision],
        "INFERENCE_NUM_THREADS": options.resolved_threads,
        "NUM_STREAMS": 1,  # all threads work on a run, and the next run waits
        "ENABLE_CPU_PINNING": False,  # which a cpuset might forbid
        **options.provider_options,
    }
    about = (openvino.__version__, graph.absolute(), version, sorted(properties.items()))
    key = hashlib.sha256(repr(about).encode()).hexdigest()[:32]
    kept = cache_folder() / "openvino" / key

    def compiled(folder: Path | None) -> Any:
        cached = {} if folder is None else {"CACHE_DIR": str(folder)}
        return core.compile_model(str(graph), "CPU", properties | cached)

    try:
        if kept.is_dir():
            return compiled(kept)
        with new_folder(kept, overwrite=True) as new:
            return compiled(new)
    except (OSError, RuntimeError) as error:  # the cache may be at fault, or the graph
        logger.info("OpenVINO compiles %s without its cache %s: %s", graph, kept, error)
    try:
        return compiled(None)
    except (RuntimeError, TypeError) as error:
        raise BundleError(
            f"OpenVINO {openvino.__version__} cannot run {graph}: {' '.join(str(error).split())}; "
            "the provider cpu runs it with onnxruntime"
        ) from error
