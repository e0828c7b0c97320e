"""Hold the options of `Encoder.load`, and translate them into the terms of onnxruntime."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, fields
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, Literal, TypedDict, cast

from mirror_rt.bundle.description import ModelDescription
from mirror_rt.bundle.model_kinds import Format
from mirror_rt.bundle.onnx_files import describe_bundle
from mirror_rt.bundle.plain_manifest import PoolingChoice
from mirror_rt.bundle.resolve import resolve_bundle
from mirror_rt.cpus import cpu_budget
from mirror_rt.inference.devices import Devices
from mirror_rt.inference.providers import NATIVE, OPENVINO, Providers
from mirror_rt.schema import Rule, check_rules

Spinning = Literal["off", "run", "always"]

_SPINNING = {
    "off": {"session.intra_op.allow_spinning": "0", "session.inter_op.allow_spinning": "0"},
    "run": {"session.force_spinning_stop": "1"},
    "always": {},
}


class LoadKeywords(TypedDict, total=False):
    """The fields of `LoadOptions`, as keyword arguments of the functions that take them."""

    variant: str | None
    revision: str | None
    offline: bool
    verify: bool
    pooling: PoolingChoice
    providers: Providers
    allow_fallback: bool
    threads: int | None
    spinning: Spinning | None
    devices: Devices
    cuda_graphs: bool
    provider_options: Mapping[str, Any]
    cache: Path | None
    cache_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadOptions:
    """Say which graph of a bundle to load, where from, and how to run it.

    Attributes:
        variant: which graph of the bundle (`fp32`, `fp16`, `int8`, `fp16-cuda` ...); by default
            `fp32` on the CPU (the first where the bundle has no `fp32`), and under CUDA for
            the fastest that it has: `fp16-cuda`, `fp16`, `fp32-cuda`, `fp32`. In the native
            engine it is the precision of the products, whose weights are made of the fp32 graph
            while loading: with `providers="native"` `fp32`, `bf16` or `int8`; with `"openvino"` it
            is `fp32` or `bf16`, by default `bf16` on processors with AVX512-BF16 or AMX.
        revision: branch, tag or commit of a name on a model hub.
        offline: never ask the network: take a name from the local caches alone.
        verify: compare every file that is needed with its hash in the manifest of a bundle, or in
            the table of ready models.
        pooling: of plain ONNX files that declare none: `"mean"`, `"cls"` and so on; `"auto"` for
            the declared one. That of a bundle is in its graph.
        providers: `"auto"` (CUDA where onnxruntime has it and there is a card; else the engine of
            this package where it can run the bundle with these options; else onnxruntime on the
            CPU); `"cpu"` (onnxruntime), `"cuda"`, or a list of onnxruntime execution providers;
            `"native"`, the engine of this package, which runs the BERT family and ModernBERT on the
            CPU without onnxruntime; or `"openvino"`, which runs the same graphs as onnxruntime
            (`pip install 'mirror-rt[openvino]'`) and is never chosen by `"auto"`.
            `Encoder.provider_reason` says why one was chosen.
        allow_fallback: run on the CPU, with a warning, where the provider that was asked for
            cannot start.
        threads: of one operator; by default all processors that this process may use, by its
            affinity mask and the CPU quota of its cgroups.
        spinning: whether threads without work spin, which makes them faster to wake and keeps a
            processor busy: `"off"`, `"run"` (while a run is in flight) or `"always"` (and a while
            after it). By default `"run"`, and `"off"` under a CPU quota, which spinning would
            use up.
        devices: numbers of NVIDIA cards, or `"all"`: the model is loaded on each, and batches run
            on those that are free. By default the first.
        cuda_graphs: run batches of up to 8 texts and 128 tokens as CUDA graphs, padded to the
            next of 16 shapes. They are captured while loading, before anything else may run on
            the card.
        provider_options: options of the provider that is preferred, in onnxruntime's names, such as
            `gpu_mem_limit` for CUDA, in bytes (by default nearly all that is free when the model
            loads). With `"openvino"`, properties of its CPU plugin.
        cache: a file that keeps vectors between calls and processes, so that a text is encoded
            once by all that name this file; models may share it. By default none.
        cache_bytes: most bytes of that file, at least 16 MiB; the least recently used vectors
            leave it.

    Raises:
        ConfigError: `threads` or `spinning` has an unusable value.
    """

    variant: str | None = None
    revision: str | None = None
    offline: bool = False
    verify: bool = True
    pooling: PoolingChoice = "auto"
    providers: Providers = "auto"
    allow_fallback: bool = False
    threads: Annotated[int | None, Rule("in 1 .. 1024", lambda n: 1 <= n <= 1024)] = None
    spinning: Spinning | None = None
    devices: Devices = None
    cuda_graphs: bool = False
    provider_options: Mapping[str, Any] = field(default_factory=dict)
    cache: Path | None = None
    cache_bytes: int = 1 << 30

    def __post_init__(self) -> None:
        check_rules(self)

    def keywords(self) -> LoadKeywords:
        """Return the options as keyword arguments of `LoadOptions` that make equal options."""
        pairs = {field.name: getattr(self, field.name) for field in fields(self)}
        return cast(LoadKeywords, pairs)

    def find(self, path_or_name: str | Path, cache: Path | None = None) -> Path:
        """Return the folder of a bundle or a pack; one on a hub is downloaded into a cache.

        Raises:
            BundleError, ConfigError: as `resolve_bundle`.
        """
        return resolve_bundle(
            path_or_name,
            revision=self.revision,
            offline=self.offline,
            variants=[self.stored_variant],
            weights=self.takes_weights,
            hashed=self.verify,
            cache=cache,
        )

    def describe(
        self,
        folder: Path,
        formats: tuple[Format, ...] = ("mirror_rt bundle",),
        allowed: Collection[str] = (),
    ) -> ModelDescription:
        """Describe a folder by the files that these options take; errors as `describe_bundle`."""
        return describe_bundle(
            folder,
            pooling=self.pooling,
            formats=formats,
            allowed=allowed,
            weights=self.takes_weights,
        )

    @property
    def takes_weights(self) -> bool:
        """Whether of weights in safetensors and ONNX files beside them the weights are taken."""
        absent = self.providers == "auto" and find_spec("onnxruntime") is None
        return absent or self.providers == NATIVE

    def session_options(self, onnxruntime: Any) -> Any:
        """Return the `SessionOptions` of onnxruntime that these options ask for."""
        options = onnxruntime.SessionOptions()
        # With a given number of threads, onnxruntime does not pin them to processors, which a
        # cpuset might forbid.
        options.intra_op_num_threads = self.resolved_threads
        # Shapes vary from batch to batch, so a memory pattern for each of them would only take
        # memory.
        options.enable_mem_pattern = False
        options.log_severity_level = 4  # errors are raised anyway; do not also log them
        for name, value in _SPINNING[self.resolved_spinning].items():
            options.add_session_config_entry(name, value)
        return options

    @property
    def stored_variant(self) -> str | None:
        """The variant whose files are needed: two engines make their own of the fp32 graph."""
        return None if self.providers in (NATIVE, OPENVINO) else self.variant

    @property
    def for_cards(self) -> list[str]:
        """The names of the options given that have no meaning without an NVIDIA card."""
        options = (self.devices is not None, self.cuda_graphs, bool(self.provider_options))
        names = ("devices", "cuda_graphs", "provider_options")
        return [name for name, given in zip(names, options, strict=True) if given]

    @property
    def resolved_threads(self) -> int:
        """The number of threads of one operator, with None resolved."""
        return self.threads or cpu_budget().threads

    @property
    def resolved_spinning(self) -> Spinning:
        """The value of `spinning`, with None resolved."""
        return self.spinning or ("off" if cpu_budget().has_quota else "run")
