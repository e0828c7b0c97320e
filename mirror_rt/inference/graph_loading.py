"""Open a bundle in a session: find a provider that starts, and the graph that suits it best."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

from mirror_rt.bundle.description import ModelDescription
from mirror_rt.bundle.file_records import verifying
from mirror_rt.bundle.graph_header import read_header
from mirror_rt.bundle.json_document import to_export
from mirror_rt.bundle.manifest import BUNDLES, Manifest, Variant
from mirror_rt.errors import ConfigError, MissingDependencyError, Setting
from mirror_rt.inference.devices import choose_devices, device_name, memory_of, with_options
from mirror_rt.inference.engines import attempts, find_native, open_native, openvino_offer
from mirror_rt.inference.graph_files import check_graph, loadable
from mirror_rt.inference.load_options import LoadOptions
from mirror_rt.inference.loaded_graph import LoadedGraph, OneByOne, Replicas
from mirror_rt.inference.providers import (
    CPU,
    CUDA,
    NATIVE,
    OPENVINO,
    Providers,
    not_started,
    why_not,
)
from mirror_rt.inference.session import GraphSession, NotStarted, import_onnxruntime
from mirror_rt.inference.static_runner import open_static

logger = logging.getLogger("mirror_rt")

# The variants to use where none is requested, best first. The CPU is not listed because fp32 is
# right for it: there fp16 is slower, and int8 gives different vectors.
_BEST = {CUDA: ("fp16-cuda", "fp16", "fp32-cuda", "fp32")}
# Why `"auto"` takes a provider.
_BY_AUTO = {
    CUDA: "auto takes a card where CUDA starts",
    NATIVE: "auto takes the native engine where no card is used",
    CPU: "auto takes onnxruntime where nothing else runs the bundle",
}
# The provider option `sdpa_kernel`, which adds up the kernels of an attention that may be taken:
# flash, CUTLASS's, TensorRT's two, and none that is fused. cuDNN's (8) builds a plan for each new
# number of texts and tokens, which takes longer than a run, and keeps it; so it is for sessions of
# few shapes, those that are captured as CUDA graphs.
_ANY_SHAPE_KERNELS = 1 | 2 | 4 | 32 | 16


def open_variant(described: ModelDescription, options: LoadOptions) -> tuple[LoadedGraph, Variant]:
    """Open a graph of a bundle under the best provider that starts, on each of its devices."""
    folder, manifest = described.folder, described.bundle
    if manifest.is_static:
        return open_static(folder, manifest, options)
    if manifest.is_checkpoint:
        return _open_checkpoint(described, options)
    if options.providers == OPENVINO:
        from mirror_rt.inference.openvino.runner import resolve_openvino

        options = resolve_openvino(options)
    asked, failures = options.providers, list[str]()
    if asked in (NATIVE, OPENVINO):
        runner, variant = _open_named(described, options)
    else:
        runner, variant = _open_first(described, options, failures)
    best = runner.providers[0]
    said = _BY_AUTO.get(best, "auto takes it") if asked == "auto" else f"providers={asked!r}"
    runner.why = "; ".join([said, *failures])
    where = ", ".join(map(device_name, runner.devices))
    logger.info("%s runs under %s on %s: %s", runner.graph, best, where, runner.why)
    on_cpu = asked == "auto" and best in (CPU, NATIVE)
    if on_cpu and logger.isEnabledFor(logging.INFO) and (offer := openvino_offer()):
        logger.info("OpenVINO is installed: %s", offer)
    return _independent(runner, folder / variant.file, manifest), variant


def _independent(runner: LoadedGraph, graph: Path, manifest: Manifest) -> LoadedGraph:
    """Return a graph whose vectors do not depend on the batch; that of a bundle is one already."""
    if manifest.format in BUNDLES or not read_header(graph).scaled_by_batch:
        return runner
    logger.warning(
        "%s is quantised dynamically, with one scale for a whole batch: each text runs by itself, "
        "so that its vector does not depend on the others (mirror-rt export makes int8 that runs "
        "in batches)",
        graph,
    )
    return OneByOne(runner)


def _open_checkpoint(
    described: ModelDescription, options: LoadOptions
) -> tuple[LoadedGraph, Variant]:
    """Open weights in safetensors in the native engine, which alone computes them."""
    if options.providers not in ("auto", "cpu", NATIVE):
        raise ConfigError(
            Setting("providers", options.providers),
            f" needs a graph, and {described.folder} has none; {to_export(described.folder)}",
        )
    runner, variant = open_native(described, options)
    runner.why = "the native engine takes weights in safetensors as they are"
    return runner, variant


def _open_named(described: ModelDescription, options: LoadOptions) -> tuple[LoadedGraph, Variant]:
    """Open a graph in an engine that was asked for by its name, in place of onnxruntime."""
    if options.providers == NATIVE:
        return open_native(described, options)
    from mirror_rt.inference.openvino.runner import open_openvino

    return open_openvino(described.folder, described.bundle, options)


def _open_first(
    described: ModelDescription, options: LoadOptions, failures: list[str]
) -> tuple[LoadedGraph, Variant]:
    """Open a graph under the first provider that starts; `failures` says why others do not."""
    folder, manifest, asked = described.folder, described.bundle, options.providers
    first = asked if isinstance(asked, str) else asked[0]
    for providers in attempts(options):
        best = providers[0]
        if best == NATIVE:
            found = find_native(described, options)
            if not isinstance(found, str):
                return open_native(described, *found)
            failures.append(f"{NATIVE} does not run it: {found}")
            continue
        if best == CPU and first not in ("auto", "cpu", CPU):  # a card was named
            options = _without_card(options)
        reason = why_not(best, _onnxruntime(folder, manifest, options, failures))
        if reason is None:
            chosen = _choose(folder, manifest, options.variant, best)
            try:
                return _Opener(folder, manifest, providers, options).open(chosen), chosen
            except NotStarted as error:
                reason = str(error)
        not_started(best, reason, providers=asked, allow_fallback=options.allow_fallback)
        failures.append(f"{best} does not start: {reason}")
        options = _without_card(options)
    raise AssertionError("the last candidate starts, or not_started raises")


def _onnxruntime(
    folder: Path, manifest: Manifest, options: LoadOptions, failures: list[str]
) -> Any:
    """Import onnxruntime, or raise an error that says what is missing for every engine."""
    try:
        return import_onnxruntime()
    except MissingDependencyError as error:
        if options.verify:  # a changed file would be the reason
            manifest.verify(folder, manifest.files_of([options.variant]))
        raise MissingDependencyError("; ".join([str(error), *failures])) from error


def exact_variant(folder: Path, manifest: Manifest, than: Variant, provider: str) -> Variant | None:
    """Return the fp32 graph that can stand in for a less precise one, or None."""
    if than.precision == "fp32":
        return None
    for variant in manifest.variants.values():
        if variant.precision == "fp32" and _runs(folder, variant, provider):
            return variant
    return None


def open_exact(
    described: ModelDescription, exact: Variant, runner: LoadedGraph, options: LoadOptions
) -> LoadedGraph:
    """Open the graph of `exact_variant` under the same provider, on the first device."""
    if runner.providers[0] in (NATIVE, OPENVINO):
        named = cast(Providers, runner.providers[0])
        options = replace(options, variant="fp32", providers=named)
        if named == NATIVE:
            options = _without_card(options)
        return _open_named(described, options)[0]
    first = [number for number in runner.devices[:1] if number is not None] or None
    options = replace(options, devices=first, cuda_graphs=False)
    return _Opener(described.folder, described.bundle, runner.providers, options).open(exact)


@dataclass(frozen=True, slots=True)
class _Opener:
    """Opens graphs of a bundle under one list of providers."""

    folder: Path
    manifest: Manifest
    providers: Sequence[str]
    options: LoadOptions

    def open(self, variant: Variant) -> LoadedGraph:
        """Open a variant on every device; NotStarted if the preferred provider does not start."""
        numbers = choose_devices(self.options.devices, self.providers[0])
        for name in ("cuda_graphs", "provider_options") if numbers == [None] else ():
            if value := getattr(self.options, name):
                raise ConfigError(
                    Setting(name, value),
                    " is for NVIDIA cards, and this session is on the CPU; leave it out, or ask "
                    "for the provider cuda",
                )
        captured = self._to_capture(variant) if self.options.cuda_graphs else None
        used = [variant] if captured is None else [variant, captured]
        files = self.manifest.files_for(used) if self.options.verify else {}
        runners: list[LoadedGraph] = []
        try:
            with verifying(self.folder, files):
                for device in numbers:
                    runners.append(self._open_on(device, variant, captured))
        except BaseException:
            for runner in runners:
                runner.close()
            raise
        return runners[0] if len(runners) == 1 else Replicas(runners)

    def _open_on(
        self, device: int | None, variant: Variant, captured: Variant | None
    ) -> LoadedGraph:
        session = self._session(variant, device)
        best = self.providers[0]
        if best not in session.providers:
            session.close()
            raise NotStarted("onnxruntime goes on without it, and gives no reason")
        check_graph(session, self.manifest)
        if captured is None or device is None:
            return session
        from mirror_rt.inference.cuda_graphs import (  # threads, which few need
            CapturedShapes,
            WithCudaGraphs,
        )

        return WithCudaGraphs(
            session,
            CapturedShapes(
                lambda: self._session(captured, device, capture=True),
                memory=memory_of(best, device),
                dimension=self.manifest.dimension,
                max_length=self.manifest.pad_to or self.manifest.max_length,
                pad_id=self.manifest.pad_id,
            ),
        )

    def _session(
        self, variant: Variant, device: int | None, *, capture: bool = False
    ) -> GraphSession:
        defaults: dict[str, Any] = {}
        if self.providers[0] == CUDA and not capture:
            defaults["sdpa_kernel"] = _ANY_SHAPE_KERNELS
        required = {"enable_cuda_graph": 1} if capture else {}
        return GraphSession(
            loadable(self.folder, self.manifest, variant.file),
            with_options(
                self.providers, device, {**defaults, **self.options.provider_options, **required}
            ),
            self.options,
            device=device,
        )

    def _to_capture(self, variant: Variant) -> Variant:
        """Return the graph to capture: this one, or one of the same precision that can be."""
        for other in (variant, *self.manifest.variants.values()):
            same = other.precision == variant.precision != "int8"
            if same and other.target != "native" and (self.folder / other.file).is_file():
                return other
        raise ConfigError(
            Setting("cuda_graphs", True),
            f": {self.folder} has no {variant.precision} graph to capture: int8 runs on the CPU; "
            "export one with mirror-rt export --precision fp16 --target cpu,cuda",
        )


def _without_card(options: LoadOptions) -> LoadOptions:
    """Return the options for a provider in the place of a card: those of cards are left out."""
    return replace(options, devices=None, cuda_graphs=False, provider_options={})


def _choose(folder: Path, manifest: Manifest, name: str | None, provider: str) -> Variant:
    for best in _BEST.get(provider, ()) if name is None else ():
        variant = manifest.variants.get(best)
        # A bundle from a hub may have been downloaded in part, with only the requested files.
        if variant is not None and _runs(folder, variant, provider):
            return variant
    chosen = manifest.variant(name)
    if chosen.target == "native":
        raise ConfigError(
            f"variant {name!r} needs ", Setting("providers", "native"), f", not {provider}"
        )
    if chosen.target == "cuda" and provider == CPU:
        on_cpu = [name for name, other in manifest.variants.items() if other.target == "cpu"]
        raise ConfigError(
            f"variant {name!r} runs under CUDA alone, and this session is on the CPU: "
            f"choose one of {on_cpu}"
        )
    return chosen


def _runs(folder: Path, variant: Variant, provider: str) -> bool:
    fits = variant.target == "cpu" or provider not in (CPU, NATIVE, OPENVINO)
    fits = fits or variant.target == provider == NATIVE
    return fits and (folder / variant.file).is_file()
