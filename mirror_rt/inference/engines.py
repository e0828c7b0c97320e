"""Choose the engine that computes the vectors: onnxruntime, OpenVINO or our own."""

from __future__ import annotations

from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from mirror_rt import _core
from mirror_rt.bundle.description import ModelDescription
from mirror_rt.bundle.file_records import verifying
from mirror_rt.bundle.manifest import BUNDLES, Manifest, Precision, Variant
from mirror_rt.errors import BundleError, ConfigError, MissingDependencyError, Setting
from mirror_rt.inference.devices import on_card
from mirror_rt.inference.load_options import LoadOptions
from mirror_rt.inference.loaded_graph import LoadedGraph
from mirror_rt.inference.native.kernel_choice import has_quick_kernels
from mirror_rt.inference.providers import (
    CPU,
    NATIVE,
    OPENVINO,
    candidates,
    no_card,
    say_that_cards_are_unused,
)
from mirror_rt.inference.session import import_onnxruntime
from mirror_rt.inference.shared_libraries import nvidia_cards

if TYPE_CHECKING:
    from mirror_rt.inference.native.engine_model import EngineModel

_PRECISIONS: dict[str, Precision] = {"fp32": "fp32", "bf16": "bf16", "int8": "int8"}
_HINT = "the native engine cannot run it, onnxruntime can: pip install 'mirror-rt[cpu]'"


def attempts(options: LoadOptions) -> list[list[str]]:
    """Return lists of providers to try in turn, the best list first.

    With `"auto"` the native engine comes before onnxruntime on the CPU, and onnxruntime is not
    imported where there is no card: that takes longer than all the rest of loading a small bundle.
    """
    asked = options.providers
    if asked != "auto":
        extra = "gpu" if "cuda" in str(asked).lower() else "cpu|gpu"
        onnxruntime = import_onnxruntime(f"running a bundle under {asked}", extra)
        return candidates(asked, onnxruntime, allow_fallback=options.allow_fallback)
    if not options.for_cards and no_card():
        return [[NATIVE], [CPU]]
    try:
        onnxruntime = import_onnxruntime()
    except MissingDependencyError:
        say_that_cards_are_unused()
        return [[NATIVE], [CPU]]
    found = candidates(asked, onnxruntime, allow_fallback=options.allow_fallback)
    return [*found[:-1], [NATIVE], found[-1]]


def find_native(
    described: ModelDescription, options: LoadOptions
) -> tuple[LoadOptions, EngineModel] | str:
    """Find out whether the native engine can take the place of onnxruntime on the CPU.

    Returns:
        The encoder that `open_native` takes; or why onnxruntime runs the bundle instead, in words.

    Raises:
        BundleError: the bundle has no variant of the name in the options.
    """
    from mirror_rt.inference.native.checkpoint import read_encoder

    folder, manifest = described.folder, described.bundle
    variant = manifest.variant(options.variant)  # an unknown one is an error
    if reason := _why_not(manifest, variant, options):
        return reason
    options = replace(options, variant=variant.precision)
    try:
        source = _native_variant(folder, manifest, variant.precision)
        if not (folder / source.file).is_file():
            return f"{folder / source.file} is not there"
        return options, read_encoder(described)
    except BundleError as error:
        return str(error)


def _why_not(manifest: Manifest, variant: Variant, options: LoadOptions) -> str | None:
    """Return why the native engine does not fit, as far as no graph must be read to tell."""
    if manifest.format not in BUNDLES:
        return "plain ONNX files do not say where their weights are"
    if options.for_cards:
        return f"it does not have the option {options.for_cards[0]}"
    if options.spinning == "always":
        return "its threads do not spin after a run, as spinning='always' asks"
    if variant.target == "cuda" or variant.precision == "fp16":
        return f"it does not compute {variant.precision} graphs for the target {variant.target}"
    if not has_quick_kernels() and variant.target != "native" and find_spec("onnxruntime"):
        return "this processor has none of the instructions that its quick kernels need"
    if kept := variant.graph.get("float32_layers"):
        return f"the int8 graph keeps {len(kept)} layers in float32, and it would keep none"
    return None


def open_native(
    described: ModelDescription, options: LoadOptions, encoder: EngineModel | None = None
) -> tuple[LoadedGraph, Variant]:
    """Open the fp32 graph of a bundle in the native engine.

    Args:
        described: the description of the bundle's folder.
        options: `variant` is `fp32` (None), `bf16` or `int8`, made of the fp32 graph.
        encoder: the result of `find_native`, if it has been asked already.

    Raises:
        BundleIntegrityError: a file is missing or was changed.
        ConfigError: the variant or an option does not go with the engine.
        BundleError: the bundle has no fp32 graph, or it is not one that the engine can run.
    """
    from mirror_rt.inference.native.checkpoint import read_encoder
    from mirror_rt.inference.native.engine_model import UnsupportedModelError
    from mirror_rt.inference.native.runner import NativeRunner

    folder, manifest = described.folder, described.bundle

    for option in options.for_cards:
        raise ConfigError(
            Setting(option, getattr(options, option)),
            " is for NVIDIA cards, not for the provider native",
        )
    try:
        variant = _native_variant(folder, manifest, options.variant)
        files = manifest.files_for([variant]) if options.verify else {}
        with verifying(folder, files):
            encoder = encoder or read_encoder(described)
            return NativeRunner(encoder, variant.precision, options), variant
    except UnsupportedModelError as error:
        raise BundleError(str(error) if manifest.is_checkpoint else f"{error}; {_HINT}") from error


def _native_variant(folder: Path, manifest: Manifest, name: str | None) -> Variant:
    """Return the variant of the manifest, or one made of its fp32 graph."""
    from mirror_rt.inference.native.engine_model import UnsupportedModelError

    precision = _PRECISIONS.get((name or "fp32").removesuffix("-native"))
    if precision is None:
        raise ConfigError(
            f"variant {name!r}: the provider native runs {', '.join(_PRECISIONS)}, made of fp32"
        )
    if manifest.is_checkpoint:
        return manifest.variants[precision]
    if (compared := manifest.variants.get(f"{precision}-native")) is not None:
        return compared
    for variant in manifest.variants.values():
        if (variant.precision, variant.target) == ("fp32", "cpu"):
            return replace(variant, precision=precision, target="native", parity=None)
    raise UnsupportedModelError(f"{folder} has no fp32 graph for the CPU")


def providers_here(described: ModelDescription, options: LoadOptions) -> list[str]:
    """Return the providers that the options lead to on this machine, without loading the bundle."""
    if described.bundle.is_static or described.bundle.is_checkpoint:
        return [NATIVE]
    for providers in attempts(options):
        if on_card(providers[0]) and nvidia_cards() == 0:
            continue
        if providers[0] != NATIVE or not isinstance(find_native(described, options), str):
            return providers
    return [CPU]


def engine_version(provider: str) -> dict[str, str]:
    """Return the name and the version of the library that runs graphs; native has none."""
    if provider == NATIVE:
        return {}
    if provider == OPENVINO:
        from mirror_rt.inference.openvino.compiling import import_openvino

        return {"openvino": import_openvino().__version__}
    return {"onnxruntime": import_onnxruntime().__version__}


def openvino_offer() -> str | None:
    """Say how OpenVINO would run graphs here; None if it is not installed.

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
