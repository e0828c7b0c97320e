"""From a bundle to a session: the provider that starts, and the graph that is best for it."""

from __future__ import annotations

import logging
from pathlib import Path

from mirror_rt.errors import BundleError, ConfigError
from mirror_rt.manifest import Layout, Manifest, Variant
from mirror_rt.providers import CPU, candidates, not_started, why_not
from mirror_rt.session import GraphSession, SessionConfig, import_onnxruntime

__all__ = ["exact_variant", "open_exact", "open_variant"]

logger = logging.getLogger("mirror_rt")

# Where no variant is asked for. On the CPU fp16 is slower than fp32, and int8 differs from it.
_BEST_ON_CUDA = ("fp16-cuda", "fp16", "fp32-cuda", "fp32")


def open_variant(
    folder: Path,
    manifest: Manifest,
    variant: str | None,
    config: SessionConfig,
    *,
    verify: bool,
) -> tuple[GraphSession, Variant]:
    """Open a graph of a bundle under the best provider that starts.

    Args:
        folder: the bundle's.
        manifest: the bundle's.
        variant: name of the graph; None for the best for the provider.
        config: which providers, and how to run.
        verify: compare every file that the variant needs with its hash first.

    Raises:
        BundleIntegrityError: a file is missing or was changed.
        ProviderError: the provider asked for is absent or does not start.
        ConfigError: the variant does not run under the provider.
        BundleError: there is no such variant, or its graph is not that of an encoder.
    """
    onnxruntime = import_onnxruntime()
    for providers in candidates(
        config.providers, onnxruntime, allow_fallback=config.allow_fallback
    ):
        best = providers[0]
        reason = why_not(best, onnxruntime)
        if reason is None:
            chosen = _choose(folder, manifest, variant, best)
            if verify:
                manifest.verify(folder, manifest.files_for([chosen]))
            session = GraphSession(_loadable(folder, manifest, chosen.file), providers, config)
            if best in session.providers:
                _check_graph(session)
                logger.info("%s runs on %s", session.graph, best)
                return session, chosen
            session.close()
            reason = f"onnxruntime {onnxruntime.__version__} gives no reason"
        not_started(best, reason, providers=config.providers, allow_fallback=config.allow_fallback)
    raise AssertionError("the last candidate starts, or not_started raises")


def exact_variant(folder: Path, manifest: Manifest, than: Variant, provider: str) -> Variant | None:
    """Return the fp32 graph that can stand in for a less precise one, None where there is none."""
    if than.precision == "fp32":
        return None
    for variant in manifest.variants.values():
        if variant.precision == "fp32" and _runs(folder, variant, provider):
            return variant
    return None


def open_exact(
    folder: Path,
    manifest: Manifest,
    exact: Variant,
    session: GraphSession,
    config: SessionConfig,
    *,
    verify: bool,
) -> GraphSession:
    """Open the graph of `exact_variant` as `session` was."""
    if verify:
        manifest.verify(folder, manifest.files_for([exact]))
    return GraphSession(_loadable(folder, manifest, exact.file), session.providers, config)


def _choose(folder: Path, manifest: Manifest, name: str | None, provider: str) -> Variant:
    if name is None and provider != CPU:
        for best in _BEST_ON_CUDA:
            variant = manifest.variants.get(best)
            # Of a bundle from a hub, only the files that were asked for may be here.
            if variant is not None and _runs(folder, variant, provider):
                return variant
    chosen = manifest.variant(name)
    if chosen.target == "cuda" and provider == CPU:
        on_cpu = [name for name, other in manifest.variants.items() if other.target == "cpu"]
        raise ConfigError(
            f"variant {name!r} runs under CUDA alone, and this session is on the CPU: "
            f"choose one of {on_cpu}"
        )
    return chosen


def _runs(folder: Path, variant: Variant, provider: str) -> bool:
    return (variant.target == "cpu" or provider != CPU) and (folder / variant.file).is_file()


def _loadable(folder: Path, manifest: Manifest, graph: str) -> Path:
    """Path of a graph, where possible of the one that leaves its weights in the file.

    Not where the file was changed, whose weights are elsewhere then; and not behind a symbolic
    link, which a model hub's cache is made of and onnxruntime refuses for weights.
    """
    path, mapped = folder / graph, folder / Layout.mapped(graph)
    record = manifest.files.get(graph)
    if not mapped.is_file() or not path.is_file() or path.is_symlink():
        return path
    same = record is None or record.bytes == path.stat().st_size
    return mapped if same else path


def _check_graph(session: GraphSession) -> None:
    unknown = set(session.inputs) - {"input_ids", "attention_mask", "token_type_ids"}
    missing = {"sentence_embedding", "pooled_embedding"} - set(session.outputs)
    if unknown or missing:
        raise BundleError(
            f"{session.graph} is not a pooled encoder graph: "
            f"unknown inputs {sorted(unknown)}, missing outputs {sorted(missing)}"
        )
