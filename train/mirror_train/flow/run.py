"""Functions that BERT-flow and BERT-CF share: a check, the head below a flow, and its vectors."""

from __future__ import annotations

from pathlib import Path
from typing import cast, get_args

import numpy as np
import torch

from mirror_rt.bundle.manifest import Layout, Manifest, Pooling
from mirror_rt.encoding.batch_encoder import Vectors
from mirror_rt.errors import DataError, ModelError
from mirror_train.data.training_data import TrainingData
from mirror_train.model.declared_modules import declared_head
from mirror_train.model.pooling_head import Head
from mirror_train.model.pretrained import Pretrained
from mirror_train.model.torch_encoder import TorchEncoder


def check_batch(data: TrainingData, batch_size: int, option: str = "--batch-size") -> None:
    """Raise DataError for fewer strings than a batch has; `option` is what sets its size."""
    count = min(len(data), len({*data.first, *data.second}))  # pairs may share strings
    if count < batch_size:
        hint = f"pass {option} {count} or less" if count > 1 else "give at least 2"
        raise DataError(
            f"{data.source} has {count} different strings, fewer than one batch of {batch_size}: "
            f"{hint}"
        )


def frozen_head(base: Pretrained, pooling: str) -> Head:
    """Return the head that a flow follows: a pooling alone, or for `auto` the one that is declared.

    Where `auto` finds no declared head, it is the mean.

    Raises:
        ConfigError: the pooling is mean-without-special, but the tokenizer does not put special
            tokens around a text.
        ModelError: the folder declares a head that is not supported or that no flow can follow.
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
    """Return the head's vectors of all different strings of `data`, float32 [n, D]."""
    strings = list(dict.fromkeys([*data.first, *data.second]))
    encoder = TorchEncoder(base, head=head, device=device)
    vectors = encoder.encode(strings, normalize_embeddings=False, show_progress_bar=show)
    return np.asarray(vectors, dtype=np.float32)


def tuned_level(folder: Path) -> str | None:
    """Return the level that a folder was tuned for; None where it has no mirror.json."""
    if not (folder / Layout.manifest).is_file():
        return None
    return Manifest.read(folder, "mirror_rt encoder").level
