"""Write the output folder of a run: an ordinary Hugging Face model, plus mirror.json."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors import SafetensorError

from mirror_rt.bundle.manifest import Layout, Manifest, record_files
from mirror_rt.bundle.provenance import made_now
from mirror_rt.io.atomic import check_space, new_folder, write_json
from mirror_train.model.license import describe_base
from mirror_train.model.pooling_head import Head
from mirror_train.model.pretrained import Pretrained, quiet_transformers
from mirror_train.model.sentence_transformers import save_tokenizer, write_modules
from mirror_train.training.run_config import RunConfig
from mirror_train.training.trainer import TrainingStats


@dataclass(frozen=True, slots=True)
class TuneReport:
    """The result of a run.

    Attributes:
        out: the folder written.
        manifest: the content of its mirror.json.
        stats: losses, wall time and padding.
    """

    out: Path
    manifest: Manifest
    stats: TrainingStats


def check_disk(base: Pretrained, out: Path, *, copies: int = 1) -> None:
    """Raise OSError unless the disk of `out` can hold the weights of `base` `copies` times."""
    weights = sum(p.numel() * p.element_size() for p in base.model.parameters())
    check_space(out, copies * weights)


def write_folder(
    base: Pretrained,
    head: Head,
    stats: TrainingStats,
    config: RunConfig,
    *,
    recipe: dict[str, Any],
    data: dict[str, Any],
    training: dict[str, Any],
    level: str | None,
    language: str | None = None,
    pad_to: int | None = None,
    weights_sha256: list[str] | None = None,
    tuned: Pretrained | None = None,
    also: Callable[[Path], None] = lambda folder: None,
) -> TuneReport:
    """Write the model of a run and its mirror.json as `config.out`, whole or not at all.

    The head is a pooling that can be tuned, and the layers after it. `recipe` has every
    hyper-parameter, `training` the device, the precision and whatever else to record besides the
    seed and `stats`; `weights_sha256` are the hashes of the base model's weight files, where they
    are known already. The model written is `tuned`, or `base`, with which the run began, where that
    was trained in place. `also` writes further files into the folder.

    Raises:
        OutputExistsError: the folder exists, and the run may not overwrite it.
        OSError: the disk is full.
    """
    manifest = Manifest(
        dimension=head.dimension(base.dimension),
        max_length=pad_to or base.max_length,
        pad_id=base.pad_id,
        pad_to=pad_to,
        pooling=head.pooling,
        mask_token=base.mask_token,
        language=language,
        level=level,
        base_model=describe_base(base)
        | {"weights_sha256": weights_sha256 or base.weights_sha256()},
        recipe=recipe,
        data=data,
        training={"seed": config.seed} | training | _measured(stats),
        **made_now(),
        format="mirror_rt encoder",
    )
    model = tuned or base
    with new_folder(config.out, overwrite=config.overwrite) as folder:
        try:
            with quiet_transformers():
                model.model.save_pretrained(folder)
        except SafetensorError as error:  # safetensors' error for a full disk
            raise OSError(f"cannot write {config.out}: {error}") from error
        save_tokenizer(model.hf_tokenizer, folder, max_length=manifest.max_length)
        normalized = Head(head.poolings, head.layers).cpu()
        write_modules(folder, normalized, manifest, hidden_size=base.dimension)
        also(folder)
        manifest = dataclasses.replace(manifest, files=record_files(folder))
        write_json(folder / Layout.manifest, manifest.to_dict())
    return TuneReport(config.out, manifest, stats)


def _measured(stats: TrainingStats) -> dict[str, Any]:
    return {
        "steps": len(stats.losses),
        "loss_first": stats.losses[0],
        "loss_last": stats.losses[-1],
        "seconds": round(stats.seconds, 2),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
    }
