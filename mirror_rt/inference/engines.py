"""Choose what computes the vectors: onnxruntime, OpenVINO or the engine of this package."""

from __future__ import annotations

from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from mirror_rt import _core
from mirror_rt.bundle.manifest import Manifest, Variant
from mirror_rt.errors import BundleError, MissingDependencyError
from mirror_rt.inference.devices import on_card
from mirror_rt.inference.load_options import LoadOptions
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
    from mirror_rt.inference.native.runner import Recognised


def attempts(options: LoadOptions) -> list[list[str]]:
    """Return lists of providers to try in turn, the best list first.

    With `"auto"` the native engine comes before onnxruntime on the CPU, and onnxruntime is not
    imported where there is no card: that takes longer than all the rest of loading a small bundle.
    """
    asked = options.providers
    if asked != "auto":
        return candidates(asked, import_onnxruntime(), allow_fallback=options.allow_fallback)
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
    folder: Path, manifest: Manifest, options: LoadOptions
) -> tuple[LoadOptions, Recognised] | str:
    """Find out whether the native engine can take the place of onnxruntime on the CPU.

    Returns:
        What `open_native` takes; or why onnxruntime runs the bundle instead, in words.

    Raises:
        BundleError: the bundle has no variant of the name in the options.
    """
    from mirror_rt.inference.native.runner import native_variant, recognise_in

    variant = manifest.variant(options.variant)  # an unknown one is an error
    if reason := _why_not(manifest, variant, options):
        return reason
    options = replace(options, variant=variant.precision)
    try:
        source = native_variant(folder, manifest, variant.precision)
        if not (folder / source.file).is_file():
            return f"{folder / source.file} is not there"
        return options, recognise_in(folder, manifest, source)
    except BundleError as error:
        return str(error)


def _why_not(manifest: Manifest, variant: Variant, options: LoadOptions) -> str | None:
    """Return why the native engine does not fit, as far as no graph must be read to tell."""
    if manifest.format != "mirror_rt bundle":
        return "plain ONNX files have operators that are not fused"
    if options.for_cards:
        return f"it does not have the option {options.for_cards[0]}"
    if options.spinning == "always":
        return "its threads do not spin after a run, as spinning='always' asks"
    if variant.target == "cuda" or variant.precision == "fp16":
        return f"it does not compute {variant.precision} graphs for the target {variant.target}"
    if kept := variant.graph.get("float32_layers"):
        return f"the int8 graph keeps {len(kept)} layers in float32, and it would keep none"
    return None


def providers_here(folder: Path, manifest: Manifest, options: LoadOptions) -> list[str]:
    """Return the providers that the options lead to on this machine, without loading the bundle."""
    for providers in attempts(options):
        if on_card(providers[0]) and nvidia_cards() == 0:
            continue
        if providers[0] != NATIVE or not isinstance(find_native(folder, manifest, options), str):
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
