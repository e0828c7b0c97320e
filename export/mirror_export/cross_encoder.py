"""Read the head of a sequence classification as data, and score pairs with PyTorch."""

from __future__ import annotations

from typing import Any, cast, get_args

import numpy as np
import torch
from torch import Tensor

from mirror_rt.bundle.classifier import NAMES, score_activation
from mirror_rt.bundle.families import Classifier, family_of
from mirror_rt.bundle.manifest import PoolingMode
from mirror_rt.bundle.score_layers import LayerActivation, ScoreLayer, ScoreLayers
from mirror_rt.errors import ModelError
from mirror_rt.inference.pooled_model import PooledModel, Vectors
from mirror_rt.reranking.score_head import ScoreHead, pack_layers
from mirror_rt.tokens.padding import PaddedBatch
from mirror_rt.tokens.pairs import Pair
from mirror_train.model.declared_modules import as_model_error
from mirror_train.model.pretrained import Pretrained

# Pairs to compare on are made of neighbours, and of texts far apart.
_APART = (1, 7, 31)


def pooling_of(pretrained: Pretrained) -> PoolingMode:
    """Return the pooling that the head of a classifier reads."""
    return cast(PoolingMode, _setting(pretrained, _classifier(pretrained).pooling, ("cls", "mean")))


def score_head(pretrained: Pretrained) -> ScoreHead:
    """Return the head of a loaded classifier.

    Raises:
        ModelError: the head of the family is not known, or an activation has no implementation.
    """
    model, names = pretrained.classifier, _classifier(pretrained)
    assert model is not None
    known = get_args(LayerActivation)
    activation = _setting(pretrained, names.activation, (*known, *NAMES))
    dense, out = model.get_submodule(names.dense), model.get_submodule(names.out)
    norm = model.get_submodule(names.norm) if names.norm else None
    arrays, described = [], []
    for linear, kind, behind in ((dense, activation, norm), (out, "identity", None)):
        layer = [linear.weight, _bias(linear)]
        if behind is not None:
            layer += [behind.weight, _bias(behind)]
        epsilon = None if behind is None else float(behind.eps)
        made = ScoreLayer(linear.in_features, linear.out_features, NAMES.get(kind, kind), epsilon)  # type: ignore[arg-type]  # checked above
        described.append(made)
        arrays.append([array.detach().cpu().numpy() for array in layer])
    labels = [str(name) for _, name in sorted(model.config.id2label.items())]
    with as_model_error():
        makes_scores = score_activation(pretrained.description, len(labels))
    layers = ScoreLayers(described, labels, makes_scores)
    if problem := layers.problem(pretrained.dimension):
        raise ModelError(f"{pretrained.folder}: the head does not fit its encoder: {problem}")
    return ScoreHead(layers, pack_layers(arrays))


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


def _classifier(pretrained: Pretrained) -> Classifier:
    model = pretrained.classifier
    found = None if model is None else family_of(model).classifier
    if model is None or found is None:
        kind = type(pretrained.model).__name__ if model is None else type(model).__name__
        raise ModelError(
            f"{pretrained.folder}: the head of a {kind} is not known; --pooling cls or mean "
            "exports its encoder without it"
        )
    return found


def _setting(pretrained: Pretrained, name: str, known: tuple[str, ...]) -> str:
    """Return a value of a head: the name itself, or that of the field of config.json."""
    value = name if name in known else getattr(pretrained.model.config, name, None)
    if value not in known:
        raise ModelError(
            f"{pretrained.model_folder / 'config.json'}: {name} is {value!r}, which has no "
            f"implementation here; there are {', '.join(known)}"
        )
    return str(value)


def _bias(module: Any) -> Tensor:
    """Return the bias of a layer, or zeros."""
    found: Tensor | None = module.bias
    return torch.zeros(module.weight.shape[0]) if found is None else found
