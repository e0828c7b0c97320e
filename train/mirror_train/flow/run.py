"""What both systems share: the encoder below the flow, its vectors, and the folder at the end."""

from __future__ import annotations

import datetime
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast, get_args

import numpy as np
import torch
import transformers

from mirror_rt import __version__
from mirror_rt.bundle.manifest import Layout, Manifest, Pooling
from mirror_rt.encoding.batch_encoder import Vectors
from mirror_rt.errors import ConfigError, DataError, ModelError
from mirror_rt.progress import progress_bar
from mirror_train.compute.processes import world_size
from mirror_train.data.training_data import TrainingData
from mirror_train.model.declared_modules import declared_head
from mirror_train.model.license import base_license
from mirror_train.model.pooling_head import Head
from mirror_train.model.pretrained import Pretrained
from mirror_train.model.torch_encoder import TorchEncoder
from mirror_train.training.trainer import TrainingStats

__all__ = [
    "check_batch",
    "check_one_process",
    "describe_flow",
    "frozen_head",
    "show_bars",
    "step_bar",
    "text_vectors",
]


def check_one_process(command: str) -> None:
    """Raise ConfigError where torchrun has started several."""
    if (count := world_size()) > 1:
        raise ConfigError(
            f"mirror-rt {command} runs in one process, torchrun started {count}: start it without"
        )


def check_batch(data: TrainingData, batch_size: int, option: str = "--batch-size") -> None:
    """Raise DataError where there are fewer strings than a batch, set by `option`, has."""
    count = min(len(data), len({*data.first, *data.second}))  # pairs may share strings
    if count < batch_size:
        hint = f"pass {option} {count} or less" if count > 1 else "give at least 2"
        raise DataError(
            f"{data.source} has {count} different strings, fewer than one batch of {batch_size}: "
            f"{hint}"
        )


def frozen_head(base: Pretrained, pooling: str) -> Head:
    """The head that a flow follows: what the folder declares, or the pooling asked for.

    Args:
        base: the model.
        pooling: to take in its place; auto for none: what the folder declares, else mean.

    Raises:
        ConfigError: mean-without-special, with a tokenizer that has no special tokens around a
            text.
        ModelError: it declares what is not supported, or no flow can follow.
    """
    head = declared_head(base.folder) if pooling == "auto" else Head([cast(Pooling, pooling)])
    head = head or Head(["mean"])
    if head.pooling not in get_args(Pooling) or head.pooling == "mean-with-padding":
        raise ModelError(
            f"{base.name} declares the pooling {head.pooling}, which a flow cannot follow: pass "
            "--pooling cls or --pooling mean"
        )
    base.check_special_tokens(head.poolings)
    return head


def text_vectors(
    base: Pretrained, head: Head, data: TrainingData, *, device: torch.device, show: bool
) -> Vectors:
    """Vectors of all different strings of `data`, float32 [n, D], as the head gives them."""
    strings = list(dict.fromkeys([*data.first, *data.second]))
    encoder = TorchEncoder(base, head=head, device=device)
    vectors = encoder.encode(strings, normalize_embeddings=False, show_progress_bar=show)
    return np.asarray(vectors, dtype=np.float32)


def show_bars(wanted: bool | None) -> bool:
    """Whether to show bars: as told, else where standard error is a terminal."""
    return sys.stderr.isatty() if wanted is None else wanted


@contextmanager
def step_bar(steps: int, show: bool) -> Iterator[Callable[[float], None]]:
    """A bar of a flow's steps; what it gives takes the loss after each."""
    bar = progress_bar(steps, show, unit="step", desc="flow")

    def on_step(loss: float) -> None:
        bar.set_postfix_str(f"loss={loss:.4f}")
        bar.update(1)

    try:
        yield on_step
    finally:
        bar.close()


def describe_flow(
    base: Pretrained,
    data: TrainingData,
    *,
    pooling: str,
    dimension: int,
    recipe: dict[str, Any],
    stats: TrainingStats,
    training: dict[str, Any],
) -> Manifest:
    """Say in a manifest what was fitted, on what, and how it went.

    Args:
        base: the model that the run began with.
        data: the strings.
        pooling: below the flow.
        dimension: D.
        recipe: every hyper-parameter, `system` among them.
        stats: losses and time of the flow's steps.
        training: seed, device, precision, and what else is to be said of the run.
    """
    return Manifest(
        dimension=dimension,
        max_length=base.max_length,
        pad_id=base.pad_id,
        pooling=pooling,
        mask_token=base.mask_token,
        language=data.language,
        level=recipe.get("level") or _level(base.folder),
        base_model={
            "name": base.public_name,
            "revision": base.revision,
            "license": base_license(base.name, base.folder),
            "weights_sha256": base.weights_sha256(),
        },
        recipe=recipe,
        data=data.summary(),
        training=training
        | {
            "steps": len(stats.losses),
            "loss_first": stats.losses[0],
            "loss_last": stats.losses[-1],
            "seconds": round(stats.seconds, 2),
            "torch": torch.__version__,
            "transformers": transformers.__version__,
        },
        generator=f"mirror-rt {__version__}",
        created=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        format="mirror_rt encoder",
    )


def _level(folder: Path) -> str | None:
    """The level that a folder was tuned for; None for one that was not tuned here."""
    if not (folder / Layout.manifest).is_file():
        return None
    return Manifest.read(folder, "mirror_rt encoder").level
