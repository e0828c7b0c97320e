"""The files beside the graph: what other tools load it with."""

from __future__ import annotations

from pathlib import Path

from mirror_rt import Manifest
from mirror_rt.files import write_json
from mirror_train.declared import declared
from mirror_train.head import Head
from mirror_train.modules import write_modules
from mirror_train.pretrained import Pretrained

__all__ = ["write_companions"]


def write_companions(pretrained: Pretrained, head: Head, manifest: Manifest, folder: Path) -> None:
    """Write tokenizer, configuration and modules of a bundle into `folder`.

    Raises:
        OSError: the disk is full.
    """
    _write_tokenizer(pretrained, manifest, folder)
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


def _write_tokenizer(pretrained: Pretrained, manifest: Manifest, folder: Path) -> None:
    tokenizer = pretrained.hf_tokenizer
    tokenizer.model_max_length = manifest.max_length
    try:
        tokenizer.save_pretrained(folder)
    except OSError:
        raise
    except Exception as error:  # what tokenizers makes of a full disk
        raise OSError(f"cannot write the tokenizer: {error}") from error
    # transformers 5 does without this file, others do not.
    write_json(folder / "special_tokens_map.json", tokenizer.special_tokens_map)
