"""Read the head of a sequence classification as data, and score pairs with PyTorch."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from mirror_rt.bundle.classifier import Head, head_of
from mirror_rt.bundle.families import family_of
from mirror_rt.errors import ModelError
from mirror_rt.inference.pooled_model import PooledModel, Vectors
from mirror_rt.tokens.padding import PaddedBatch
from mirror_rt.tokens.pairs import Pair
from mirror_train.model.declared_modules import as_model_error
from mirror_train.model.pretrained import Pretrained

# Pairs to compare on are made of neighbours, and of texts far apart.
_APART = (1, 7, 31)


def read_head(pretrained: Pretrained) -> Head:
    """Return the head of a loaded classifier; ModelError for one that cannot be run."""
    model, described = pretrained.classifier, pretrained.description
    assert model is not None
    family = family_of(model)
    prefix = f"{family.tensors.prefix}." if family.tensors else ""
    state = {name.removeprefix(prefix): weight for name, weight in model.state_dict().items()}
    with as_model_error():
        head = head_of(described, family, state.keys(), lambda name: state[name].numpy())
    if problem := head.described.problem(pretrained.dimension):
        raise ModelError(f"{pretrained.folder}: the head does not fit its encoder: {problem}")
    return head


def parity_pairs(texts: list[str]) -> list[Pair]:
    """Return pairs of texts to compare on, from short ones to those that are cut."""
    n = len(texts)
    return [
        Pair(texts[i], texts[(i + gap) % n]) for gap in _APART for i in range(0, n, len(_APART))
    ]


class TorchScores(PooledModel):
    """A classifier in PyTorch, whose vectors are its logits, float32 [rows, C]."""

    def __init__(self, model: Any, names: tuple[str, ...]) -> None:
        super().__init__(int(model.config.num_labels))
        self._model, self._names = model, names

    def run_batch(self, batch: PaddedBatch, *, normalize: bool) -> Vectors:
        """Run a padded batch: logits, float32 [rows, C]."""
        given = {name: torch.from_numpy(getattr(batch, name)) for name in self._names}
        with torch.inference_mode():
            return np.asarray(self._model(**given).logits.float().numpy())
