"""Define options and helpers that several commands share."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, Literal, cast, get_args, get_type_hints

from mirror_rt.bundle.description import describe_folder
from mirror_rt.bundle.hub import hub_library
from mirror_rt.bundle.manifest import BUNDLES, Pooling, declared_format
from mirror_rt.bundle.onnx_files import onnx_variants
from mirror_rt.bundle.pack_index import refuse_pack
from mirror_rt.cli.parsing.options import Given, Group, Help
from mirror_rt.encoding.batch_encoder import BatchEncoder
from mirror_rt.encoding.encoder import Encoder
from mirror_rt.errors import ConfigError
from mirror_rt.evaluation import static_vectors
from mirror_rt.evaluation.models import PADDED_LENGTH, EvaluatedEncoder
from mirror_rt.inference.load_options import LoadOptions
from mirror_rt.plugins import load_plugin
from mirror_rt.progress import transfer_progress

# The options that several commands have: where a model is on a hub, how it is loaded.
HubOptions = Annotated[Given[LoadOptions], Group(only=("revision", "offline"))]
ModelOptions = Annotated[Given[LoadOptions], Group("model")]
Bundle = Annotated[str, Help("folder or hub name of a bundle", "BUNDLE", word=True)]
BundleOrPack = Annotated[
    str, Help("folder or hub name of a bundle or a pack", "BUNDLE|PACK", word=True)
]
Quiet = Annotated[bool, Help("no progress bar, no summary")]


@dataclass(frozen=True, kw_only=True)
class LoadingOptions:
    """The options by which `mirror-rt evaluate` and its like load a bundle or another model."""

    pooling: Annotated[
        Literal["auto", Pooling],
        Help("of a model that is no bundle; auto: declared, else mean; mean-with-padding, as in "
             "Mirror-BERT's evaluation, pads to --pad-to tokens, and needs PyTorch"),
    ] = "auto"  # fmt: skip
    pad_to: Annotated[int, Help("tokens to which mean-with-padding pads and cuts every text")] = (
        PADDED_LENGTH
    )
    load: Annotated[Given[LoadOptions], Group("model", leave_out=("pooling",))]

    def load_evaluated(self, spec: str) -> EvaluatedEncoder:
        """Load a model for an evaluation: word vectors, NAME:POOLING, or as `load_named`."""
        if static_vectors.is_static(Path(spec)):
            return static_vectors.StaticVectors.read(Path(spec))
        name, options = self.pooled(spec)
        return options.load_named(name)

    def pooled(self, spec: str) -> tuple[str, LoadingOptions]:
        """Take the pooling from the end of NAME:POOLING, where it is one."""
        name, _, pooling = spec.rpartition(":")
        known = get_args(get_type_hints(LoadingOptions)["pooling"])
        if pooling not in known or not name or Path(spec).exists():
            return spec, self
        return name, replace(self, pooling=cast(Any, pooling))

    def load_named(self, name: str) -> BatchEncoder:
        """Load a bundle without torch, or a Hugging Face folder or name with PyTorch.

        Without PyTorch, or with options that it does not know, all is loaded without it.
        """
        padded = self.pooling == "mean-with-padding"
        load = self.load.make() if padded else self.load.make(pooling=self.pooling)
        refuse_pack(Path(name))
        if self.load.values().keys() - {"revision", "offline"} or _needs_no_torch(Path(name)):
            if padded:
                raise ConfigError(
                    f"{name} runs without PyTorch, which alone pools with mean-with-padding: "
                    "evaluate the Hugging Face folder that it was made of, without options of a run"
                )
            return Encoder.load(name, **load.keywords())
        torch_encoder = load_plugin(
            "mirror_rt.encoders", "torch", purpose=f"{name}, which is no bundle,"
        )
        encoder: BatchEncoder = torch_encoder.load(
            name,
            pooling=self.pooling,
            revision=load.revision,
            offline=load.offline,
            **{"pad_to": self.pad_to} if padded else {},
        )
        return encoder


def _needs_no_torch(path: Path) -> bool:
    """Return whether to load a model without torch: of several forms torch runs the original."""
    if declared_format(path) in BUNDLES:
        return True
    if not path.exists():
        return find_spec("torch") is None
    weights = [*path.glob("*.safetensors"), *path.glob("pytorch_model*.bin")]
    described = describe_folder(path)
    return (
        described.is_static
        or (bool(onnx_variants(path)) and not weights)
        or (find_spec("torch") is None and described.weights is not None)
    )


@contextlib.contextmanager
def hub_progress(doing: str, folder: Path | None = None, *, quiet: bool) -> Iterator[None]:
    """Let huggingface_hub show bars on a terminal; our errors replace its warnings.

    Without a terminal, print `doing`, and every ten seconds that it goes on, with the
    bytes that have come into `folder`.
    """
    hub = hub_library("a model hub")
    terminal, shown = sys.stderr.isatty(), not quiet
    verbosity, bars = hub.logging.get_verbosity(), not hub.utils.are_progress_bars_disabled()
    hub.logging.set_verbosity_error()
    if bars and not (shown and terminal):
        hub.utils.disable_progress_bars()
    lines: contextlib.AbstractContextManager[None] = contextlib.nullcontext()
    if shown and not terminal:
        print(doing, file=sys.stderr, flush=True)
        lines = transfer_progress(doing, folder)
    try:
        with lines:
            yield
    finally:
        hub.logging.set_verbosity(verbosity)
        if bars:
            hub.utils.enable_progress_bars()
