"""Write the files beside the graph, with which other tools load it."""

from __future__ import annotations

import logging
from pathlib import Path

from mirror_rt import Manifest
from mirror_rt.heads.task_heads import Heads
from mirror_train.model.declared_modules import declared
from mirror_train.model.pooling_head import Head
from mirror_train.model.pretrained import Pretrained
from mirror_train.model.sentence_transformers import save_tokenizer, write_modules

logger = logging.getLogger("mirror_export")


def write_companions(pretrained: Pretrained, head: Head, manifest: Manifest, folder: Path) -> None:
    """Write the tokenizer, configuration, modules and task heads of a bundle into `folder`."""
    save_tokenizer(pretrained.hf_tokenizer, folder, max_length=manifest.max_length)
    config = pretrained.model.config
    config.architectures = [type(pretrained.model).__name__]  # without task layers
    config.save_pretrained(folder)
    write_modules(
        folder,
        head,
        manifest,
        hidden_size=pretrained.dimension,
        similarity=declared(pretrained.folder).similarity,
    )
    _write_heads(pretrained.folder, manifest, folder)


def _write_heads(source: Path, manifest: Manifest, folder: Path) -> None:
    """Copy the task heads, if the bundle gives the kind of vectors that they were trained on."""
    if not Heads.present(source):
        return
    heads = Heads.read(source)
    if (heads.dimension, heads.pooling) != (manifest.dimension, manifest.pooling):
        logger.warning(
            "the task heads of %s are left out: they take %d dimensions by %s pooling, the bundle "
            "gives %d by %s",
            source,
            heads.dimension,
            heads.pooling,
            manifest.dimension,
            manifest.pooling,
        )
        return
    heads.write(folder)
