"""Name what computes the vectors: onnxruntime, OpenVINO or the engine of this package."""

from __future__ import annotations

from importlib.util import find_spec

from mirror_rt import _core
from mirror_rt.inference.openvino.compiling import import_openvino
from mirror_rt.inference.providers import NATIVE, OPENVINO, Providers
from mirror_rt.inference.session import import_onnxruntime


def engine_version(providers: Providers) -> dict[str, str]:
    """Return the name and the version of the library that runs graphs; native has none."""
    if providers == NATIVE:
        return {}
    if providers == OPENVINO:
        return {"openvino": import_openvino().__version__}
    return {"onnxruntime": import_onnxruntime().__version__}


def openvino_offer() -> str | None:
    """Return what OpenVINO would give here, in words; None if it is not installed.

    It is not imported, which would take longer than loading a small bundle.
    """
    if find_spec("openvino") is None:
        return None
    if "avx512_bf16" in _core.engine_instruction_sets():  # as every processor with AMX has
        return (
            "providers='openvino' would run fp32 graphs in bf16, which this processor computes "
            "in hardware; it is never chosen unasked"
        )
    return (
        "providers='openvino' would run graphs in fp32, as this processor has no bfloat16; "
        "it is never chosen unasked"
    )
