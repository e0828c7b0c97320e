"""Write the output folder of a run: an ordinary Hugging Face model, plus mirror.json."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

import torch
import transformers
from safetensors import SafetensorError
from torch import nn

from mirror_rt.bundle.manifest import Layout, Manifest, PoolingMode, record_files
from mirror_rt.bundle.provenance import made_now
from mirror_rt.io.atomic import new_folder, write_json
from mirror_train.model.license import describe_base
from mirror_train.model.pooling_head import Head
from mirror_train.model.pretrained import Pretrained, quiet_transformers
from mirror_train.model.sentence_transformers import save_tokenizer, write_modules
from mirror_train.training.trainer import TrainingStats

__all__ = ["describe_run", "write_folder"]


def describe_run(
    base: Pretrained,
    stats: TrainingStats,
    *,
    pooling: str,
    recipe: dict[str, Any],
    data: dict[str, Any],
    training: dict[str, Any],
    level: str | None,
    language: str | None = None,
    dimension: int | None = None,
    weights_sha256: list[str] | None = None,
    pad_to: int | None = None,
) -> Manifest:
    """Return a manifest that records what was trained, on what, and how it went.

    Args:
        base: the model that the run began with.
        stats: losses and wall time.
        pooling: name of the pooling from token vectors to the vector of a text.
        recipe: every hyper-parameter.
        data: a summary of the data.
        training: seed, device, precision, and whatever else the manifest should record of the run.
        level: whether the texts are words, phrases or sentences.
        language: language of the texts.
        dimension: D; None for the base model's.
        weights_sha256: hashes of the base model's weight files, where they are known already.
        pad_to: number of tokens that every text is padded to and cut at; None for no padding.
    """
    return Manifest(
        dimension=base.dimension if dimension is None else dimension,
        max_length=pad_to or base.max_length,
        pad_id=base.pad_id,
        pad_to=pad_to,
        pooling=pooling,
        mask_token=base.mask_token,
        language=language,
        level=level,
        base_model=describe_base(base)
        | {"weights_sha256": weights_sha256 or base.weights_sha256()},
        recipe=recipe,
        data=data,
        training=training
        | {
            "steps": len(stats.losses),
            "loss_first": stats.losses[0],
            "loss_last": stats.losses[-1],
            "seconds": round(stats.seconds, 2),
            "torch": torch.__version__,
            "transformers": transformers.__version__,
        },
        **made_now(),
        format="mirror_rt encoder",
    )


def write_folder(
    base: Pretrained,
    manifest: Manifest,
    out: Path,
    *,
    layers: Sequence[nn.Module] = (),
    also: Callable[[Path], None] = lambda folder: None,
    overwrite: bool,
) -> Manifest:
    """Write the tuned model as `out`, whole or not at all; return the manifest with its files.

    Args:
        base: the tuned model and its tokenizer.
        manifest: its manifest, complete but for `files`, with a pooling that can be tuned.
        out: folder to write.
        layers: the layers after the pooling: `Dense`, `Normalize` or `Flow`.
        also: writes further files into the folder.
        overwrite: replace an existing folder.

    Raises:
        OutputExistsError: `out` exists and `overwrite` is False.
        OSError: the disk is full.
    """
    with new_folder(out, overwrite=overwrite) as folder:
        try:
            with quiet_transformers():
                base.model.save_pretrained(folder)
        except SafetensorError as error:  # safetensors' error for a full disk
            raise OSError(f"cannot write {out}: {error}") from error
        save_tokenizer(base.hf_tokenizer, folder, max_length=manifest.max_length)
        head = Head([cast(PoolingMode, manifest.pooling)], [layer.cpu() for layer in layers])
        write_modules(folder, head, manifest, hidden_size=base.dimension)
        also(folder)
        manifest = dataclasses.replace(manifest, files=record_files(folder))
        write_json(folder / Layout.manifest, manifest.to_dict())
    return manifest
