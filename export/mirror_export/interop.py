"""The files beside the graph: what other tools load it with."""

from __future__ import annotations

from pathlib import Path

from mirror_rt import Manifest
from mirror_train.declared import declared
from mirror_train.head import Head
from mirror_train.modules import save_tokenizer, write_modules
from mirror_train.pretrained import Pretrained

__all__ = ["write_companions"]


def write_companions(pretrained: Pretrained, head: Head, manifest: Manifest, folder: Path) -> None:
    """Write tokenizer, configuration and modules of a bundle into `folder`.

    Raises:
        OSError: the disk is full.
    """
    save_tokenizer(pretrained.hf_tokenizer, folder, max_length=manifest.max_length)
    config = pretrained.model.config
    config.architectures = [type(pretrained.model).__name__]  # without what is not in the graph
    config.save_pretrained(folder)
    write_modules(
        folder,
        head,
        manifest,
        hidden_size=pretrained.dimension,
        similarity=declared(pretrained.folder).similarity,
    )
