"""The manifest of a bundle, but for its variants and files."""

from __future__ import annotations

import dataclasses
import datetime

from mirror_export.config import ExportConfig
from mirror_rt import Manifest, __version__
from mirror_rt.errors import ConfigError, ModelError
from mirror_rt.manifest import Layout
from mirror_train.pooling import declared_pad_to, declared_pooling
from mirror_train.pretrained import Pretrained

__all__ = ["describe"]


def describe(pretrained: Pretrained, config: ExportConfig) -> Manifest:
    """Say what the bundle of a loaded model will be.

    Raises:
        ModelError: its pooling is not declared, or not supported.
        ConfigError: the options do not go together.
        BundleIntegrityError: a tuned folder was changed since it was written.
    """
    pooling = declared_pooling(pretrained.folder) if config.pooling == "auto" else config.pooling
    if pooling is None:
        raise ModelError(
            f"{config.model} declares no pooling: pass --pooling cls or --pooling mean"
        )
    pad_to = declared_pad_to(pretrained.folder)
    if pooling == "mean-with-padding" and pad_to is None:
        raise ConfigError("pooling mean-with-padding needs a folder that was tuned with it")
    if (pretrained.folder / Layout.manifest).is_file():
        manifest = Manifest.read(pretrained.folder, "mirror_rt encoder")
        manifest.verify(pretrained.folder)  # or the bundle would name a history that is not its own
    else:
        manifest = Manifest(
            dimension=pretrained.dimension,
            max_length=pretrained.max_length,
            pad_id=pretrained.pad_id,
            pooling=pooling,
            mask_token=pretrained.mask_token,
            base_model={"name": pretrained.public_name, "revision": pretrained.revision},
        )
    return dataclasses.replace(
        manifest,
        pooling=pooling,
        created=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        generator=f"mirror-rt {__version__}",
        format="mirror_rt bundle",
    )
