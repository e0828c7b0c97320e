"""Compare the graphs of a bundle with PyTorch."""

from __future__ import annotations

import dataclasses
import logging

from mirror_export.derive import find_sensitive_layers, write_graph
from mirror_export.parity import ParityReport
from mirror_export.trace import Traced
from mirror_rt.bundle.description import describe_folder
from mirror_rt.bundle.manifest import Target, Variant
from mirror_rt.evaluation import evaluate_similarity
from mirror_rt.inference.load_options import LoadOptions
from mirror_rt.inference.native.kernel_choice import as_declared
from mirror_rt.inference.providers import NATIVE
from mirror_rt.inference.session import import_onnxruntime

logger = logging.getLogger("mirror_export")

_CPU, _CUDA = "CPUExecutionProvider", "CUDAExecutionProvider"


def check(traced: Traced, name: str, variant: Variant) -> Variant:
    """Compare a variant with PyTorch; return it with its parity, or raise a ParityError.

    Layers that int8 harms are put into float32, where it fails its gate.
    """
    compared, report = _compared(traced, name, variant)
    if name == "int8" and report is not None and report.failures():
        keep = find_sensitive_layers(traced)
        graph = write_graph(traced.folder, name, keep)
        variant = dataclasses.replace(variant, graph=graph)
        compared, report = _compared(traced, name, variant)
    if report is not None and not traced.config.force:
        report.check(name)
    elif report is not None and (failures := report.failures()):
        logger.warning("variant %s differs from PyTorch: %s", name, "; ".join(failures))
    return compared


@as_declared()
def _compared(traced: Traced, name: str, variant: Variant) -> tuple[Variant, ParityReport | None]:
    """Return the variant with its parity, or with the reason why it was not checked."""
    provider = _CPU
    on_card = (variant.precision, variant.target) == ("bf16", "cuda")  # no kernels on the CPU
    if on_card or "PackedMultiHeadAttention" in variant.graph["fused"]:
        onnxruntime = import_onnxruntime("checking a bundle")
        if _CUDA not in onnxruntime.get_available_providers():
            unchecked = f"needs {_CUDA}, which is not here"
            return dataclasses.replace(variant, unchecked=unchecked), None
        provider = _CUDA
    # A graph without operators that only CUDA has is compared on the CPU, whatever its target.
    native = variant.target == "native"
    target: Target = "native" if native else "cuda" if provider == _CUDA else "cpu"
    runs = dataclasses.replace(variant, target=target)
    described = describe_folder(
        traced.folder, manifest=dataclasses.replace(traced.manifest, variants={name: runs})
    )
    options = LoadOptions(verify=False, providers=[provider], threads=traced.config.threads)
    if native:
        provider = NATIVE
        options = dataclasses.replace(options, providers=NATIVE, variant=name)
    exported, reference = traced.kind.loader(described, options), traced.reference
    report = traced.kind.compare(reference.expected, exported, reference.texts, variant.precision)
    # Weights of more than 2 GB are in a file beside the graph.
    files = (traced.folder / variant.file, traced.folder / f"{variant.file}_data")
    size = sum(path.stat().st_size for path in files if path.is_file())
    parity = report.to_dict() | {"provider": provider, "bytes": size}
    if traced.pairs is not None:
        defined = parity["mean_cosine"] is not None  # vectors of NaN have no order
        parity |= {
            "spearman": evaluate_similarity(exported, traced.pairs) if defined else None,
            "spearman_pytorch": reference.spearman,
            "spearman_pairs": len(traced.pairs.scores),
        }
    return dataclasses.replace(variant, parity=parity), report
