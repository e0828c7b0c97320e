"""The folder a run leaves: an ordinary Hugging Face model, plus mirror.json."""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

import torch
import transformers
from safetensors import SafetensorError
from torch import nn

from mirror_rt import __version__
from mirror_rt.bundle.manifest import Layout, Manifest, PoolingMode, record_files
from mirror_rt.io.atomic import new_folder, write_json
from mirror_train.compute.processes import Processes
from mirror_train.data.training_data import TrainingData
from mirror_train.model.license import base_license
from mirror_train.model.pooling_head import Head
from mirror_train.model.pretrained import Pretrained, quiet_transformers
from mirror_train.model.sentence_transformers import save_tokenizer, write_modules
from mirror_train.recipes.recipe import Recipe
from mirror_train.training.trainer import TrainingStats, pad_length

__all__ = ["describe", "write_folder"]


def describe(
    base: Pretrained,
    data: TrainingData,
    recipe: Recipe,
    run: dict[str, Any],
    stats: TrainingStats,
    processes: Processes,
) -> Manifest:
    """Say in a manifest what was tuned, on what, and how it went.

    Args:
        base: the tuned model.
        data: what it was tuned on.
        recipe: hyper-parameters, with the pooling that was used.
        run: what decided the result (see `tune`).
        stats: losses, time and padding.
        processes: where it ran.
    """
    loss_batch = run["loss_batch"] or recipe.batch_size
    strings = loss_batch * len(stats.losses)
    return Manifest(
        dimension=base.dimension,
        max_length=pad_length(recipe) or base.max_length,
        pad_id=base.pad_id,
        pad_to=pad_length(recipe),
        pooling=recipe.pooling,
        mask_token=base.mask_token,
        language=data.language,
        level=recipe.level,
        base_model={
            "name": base.public_name,
            "revision": base.revision,
            "license": base_license(base.name, base.folder),
            "weights_sha256": run["model"],
        },
        recipe=dataclasses.asdict(recipe),
        data=data.summary(),
        training={
            "seed": run["seed"],
            "precision": run["precision"],
            "device": processes.device.type,
            "processes": processes.count,
            "loss_batch": loss_batch,
            "steps": len(stats.losses),
            "loss_first": stats.losses[0],
            "loss_last": stats.losses[-1],
            "seconds": round(stats.seconds, 2),
            "strings_per_second": round(strings / stats.seconds, 1),
            "padding_percent": round(stats.padding_percent, 2),
            "torch": torch.__version__,
            "transformers": transformers.__version__,
        },
        generator=f"mirror-rt {__version__}",
        created=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
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
        base: the model.
        manifest: what it is, its pooling one that can be tuned, but for its files.
        out: folder to write.
        layers: what follows the pooling, `Dense`, `Normalize` or `Flow`.
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
        except SafetensorError as error:  # what safetensors makes of a full disk
            raise OSError(f"cannot write {out}: {error}") from error
        save_tokenizer(base.hf_tokenizer, folder, max_length=manifest.max_length)
        head = Head([cast(PoolingMode, manifest.pooling)], [layer.cpu() for layer in layers])
        write_modules(folder, head, manifest, hidden_size=base.dimension)
        also(folder)
        manifest = dataclasses.replace(manifest, files=record_files(folder))
        write_json(folder / Layout.manifest, manifest.to_dict())
    return manifest
