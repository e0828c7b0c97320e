"""Open the tuned models of `mirror-rt study systems` as bundles; that command finds this module."""

from __future__ import annotations

from typing import Literal

from mirror_export import ExportConfig, export_bundle  # raises if an extra is missing, naming it
from mirror_rt.bundle.manifest import Manifest, Pooling
from mirror_rt.cli.info import describe_parity
from mirror_rt.encoding.encoder import Encoder
from mirror_train.experiments.runner import Opened, Opener
from mirror_train.experiments.study import StudyConfig
from mirror_train.model.declared_modules import declared_head
from mirror_train.model.pretrained import Source


def open_bundles(config: StudyConfig) -> Opener:
    """Return a function that opens a model as it is used: exported, checked, run by onnxruntime."""

    def open_model(label: str, model: str, pooling: Pooling | Literal["auto"]) -> Opened:
        out = config.out / "bundles" / label
        options = config.load_options(model)
        if pooling == "auto" and not declared_head(Source.find(model, **options).description):
            pooling = "mean"  # as `TorchEncoder.load`
        export_bundle(ExportConfig(model, out, pooling=pooling, overwrite=True, **options))
        variant = Manifest.read(out).variants["fp32"]
        return Opened(Encoder.load(out), f"bundle {describe_parity(variant)}")

    return open_model
