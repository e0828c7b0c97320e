"""Open the fp32 graph of a bundle in OpenVINO."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path
from typing import cast

from mirror_rt.bundle.manifest import Manifest, Precision, Variant
from mirror_rt.errors import BundleError, ConfigError, MissingDependencyError, ProviderError
from mirror_rt.inference.graph_files import check_graph, loadable
from mirror_rt.inference.load_options import LoadOptions
from mirror_rt.inference.openvino.compiling import choose_precision, import_openvino
from mirror_rt.inference.openvino.runner import OpenVinoRunner
from mirror_rt.inference.providers import OPENVINO
from mirror_rt.inference.replicas import Runner

logger = logging.getLogger("mirror_rt")


def resolve_openvino(options: LoadOptions) -> LoadOptions:
    """Return options for `providers="openvino"` with the variant chosen; others as they are.

    Where OpenVINO does not start and `allow_fallback` is given, they are for onnxruntime.

    Raises:
        MissingDependencyError: OpenVINO is not installed.
        ProviderError: it does not load, or the processor has no bfloat16.
        ConfigError: OpenVINO does not run such a variant.
    """
    if options.providers != OPENVINO:
        return options
    try:
        return replace(options, variant=choose_precision(options.variant, import_openvino()))
    except (MissingDependencyError, ProviderError) as error:
        if not options.allow_fallback:
            raise
        logger.warning("%s; running under onnxruntime on the CPU", error)
        return replace(options, providers="cpu", provider_options={})


def open_openvino(folder: Path, manifest: Manifest, options: LoadOptions) -> tuple[Runner, Variant]:
    """Open the fp32 graph of a bundle in OpenVINO.

    Args:
        folder: folder of the bundle.
        manifest: manifest of the bundle.
        options: those of `resolve_openvino`.

    Raises:
        BundleIntegrityError: a file is missing or was changed.
        ConfigError: an option does not go with OpenVINO.
        BundleError: the bundle has no fp32 graph for the CPU, or OpenVINO cannot run it.
    """
    for option in ("devices", "cuda_graphs"):
        if value := getattr(options, option):
            raise ConfigError(
                f"{option}={value!r} is for NVIDIA cards, not for providers='openvino'"
            )
    if options.spinning is not None:
        raise ConfigError(
            f"spinning={options.spinning!r}: OpenVINO decides how its threads wait; leave it out"
        )
    precision = cast(Precision, options.variant)
    exact = _exact(folder, manifest)
    with manifest.verifying(folder, manifest.files_for([exact]) if options.verify else {}):
        path = loadable(folder, manifest, exact.file)
        runner = OpenVinoRunner(path, precision, _version(folder, manifest, exact), options)
    try:
        check_graph(runner, manifest.dimension)
    except BundleError:
        runner.close()
        raise
    logger.info("%s runs under OpenVINO on the CPU in %s", path, precision)
    return runner, exact if precision == "fp32" else replace(
        exact, precision=precision, parity=None
    )


def _exact(folder: Path, manifest: Manifest) -> Variant:
    for variant in manifest.variants.values():
        if (variant.precision, variant.target) == ("fp32", "cpu"):
            return variant
    raise BundleError(
        f"{folder} has no fp32 graph for the CPU, which OpenVINO runs: export it with "
        "mirror-rt export --precision fp32 --target cpu"
    )


def _version(folder: Path, manifest: Manifest, variant: Variant) -> str:
    """Return what differs whenever the weights differ: the recorded hash, and the file's times."""
    record = manifest.files.get(variant.file)
    recorded = None if record is None else record.sha256
    try:
        found = (folder / variant.file).stat()
    except OSError as error:
        raise BundleError(f"{folder / variant.file} cannot be read: {error}") from error
    return repr((recorded, found.st_size, found.st_mtime_ns))
