"""Open the tuned models of `mirror-rt study systems` as bundles; that command finds this module."""

from __future__ import annotations

from collections.abc import Callable

from mirror_export import ExportConfig, export_bundle  # raises if an extra is missing, naming it
from mirror_rt.bundle.manifest import Manifest
from mirror_rt.cli.info import describe_parity
from mirror_rt.encoding.encoder import Encoder
from mirror_train.experiments.systems.config import SystemsConfig
from mirror_train.experiments.systems.run import Opened
from mirror_train.model.declared_modules import declared_head
from mirror_train.model.pretrained import load_pretrained


def open_bundles(config: SystemsConfig) -> Callable[[str, str], Opened]:
    """Return a function that opens a model as it is used: exported, checked, run by onnxruntime."""

    def open_model(name: str, model: str) -> Opened:
        out = config.out / "bundles" / name
        options = config.load_options(model)
        folder = load_pretrained(model, **options).folder
        export_bundle(
            ExportConfig(
                model,
                out,
                pooling="auto" if declared_head(folder) else "mean",  # as `TorchEncoder.load`
                overwrite=True,
                **options,
            )
        )
        variant = Manifest.read(out).variants["fp32"]
        return Opened(Encoder.load(out), f"bundle {describe_parity(variant)}")

    return open_model
