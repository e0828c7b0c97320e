"""Task heads in training: layers with a loss, which are saved as heads of `mirror_rt.heads`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from mirror_rt.heads.task_heads import HeadKind, TaskHead
from mirror_train.loss.ranked_pairs import angle_similarity, ranked_pairs
from mirror_train.recipes.recipe import CosineLoss


def join_features(z: Tensor, features: Sequence[str]) -> Tensor:
    """Turn the vectors of n pairs [2n, D], n and then their partners, into [n, len(features) * D].

    The names of the features are in `mirror_rt.heads.task_heads.FEATURES`.
    """
    u, v = z.chunk(2)
    parts = {"u": u, "v": v, "|u-v|": (u - v).abs(), "u*v": u * v}
    return torch.cat([parts[name] for name in features], dim=1)


class TaskLayer(nn.Module):
    """A linear layer on text vectors, with dropout before it and a loss after it.

    `kind` is that of its head; `others` are further fields of the head.
    """

    def __init__(
        self,
        name: str,
        in_features: int,
        out_features: int,
        dropout: float,
        kind: HeadKind,
        **others: Any,
    ) -> None:
        super().__init__()
        self.linear = nn.Linear(in_features, out_features)
        self.dropout = nn.Dropout(dropout)
        self._head: dict[str, Any] = {"name": name, "kind": kind, **others}

    def loss(self, z: Tensor, targets: Tensor) -> Tensor:
        """Return the mean loss, a scalar, of n texts [n, D], or of n pairs as [2n, D].

        In pairs, n texts come before their n partners. The targets are int64 [n], indices of
        classes, or float [n], values.
        """
        raise NotImplementedError

    def to_head(self) -> TaskHead:
        """Return a numpy head with the layer's current weights."""
        linear = self.linear.state_dict()
        arrays = {name: linear[name].float().cpu().numpy().copy() for name in ("weight", "bias")}
        return TaskHead(**self._head, **arrays)


class SoftmaxLayer(TaskLayer):
    """A softmax classifier, trained by cross entropy.

    It classifies texts (BERT-CF, section 4.3, sentiment), or pairs by joined features of
    `mirror_rt.heads.task_heads.FEATURES` (BURT, section 3.2:
    P(a | P, H) = softmax(W^T [u; v; |u - v|])).
    """

    def __init__(
        self,
        name: str,
        dimension: int,
        labels: Sequence[str],
        *,
        features: Sequence[str] = (),
        dropout: float = 0.0,
    ) -> None:
        self._features, size = tuple(features), max(1, len(features)) * dimension
        kept = {"labels": tuple(labels), "features": self._features}
        super().__init__(name, size, len(labels), dropout, "classifier", **kept)

    def loss(self, z: Tensor, targets: Tensor) -> Tensor:
        return functional.cross_entropy(self._logits(z), targets)

    def _logits(self, z: Tensor) -> Tensor:
        x = join_features(z, self._features) if self._features else z
        return self.linear(self.dropout(x))  # type: ignore[no-any-return]


class RegressionLayer(SoftmaxLayer):
    """A softmax over the whole numbers of a scale, whose mean is the value (Tai et al. 2015, 4.2).

    The loss is the divergence KL(t || softmax) from t, which shares a target y between the two
    numbers that it lies between, so that their mean is y (Eq. 15). SentEval predicts relatedness in
    this way, from u * v and |u - v|.
    """

    def __init__(
        self,
        name: str,
        dimension: int,
        scale: tuple[float, float],
        *,
        features: Sequence[str] = (),
        dropout: float = 0.0,
    ) -> None:
        low, high = scale
        self._numbers = torch.arange(low, high + 1)
        numbers = list(map(str, self._numbers))
        super().__init__(name, dimension, numbers, features=features, dropout=dropout)
        self._head |= {"kind": "regressor", "labels": (), "scale": scale}

    def loss(self, z: Tensor, targets: Tensor) -> Tensor:
        logs = self._logits(z).log_softmax(1)
        return functional.kl_div(logs, self._shares(targets, z), reduction="batchmean")

    def squared_error(self, z: Tensor, targets: Tensor) -> Tensor:
        """Return the mean squared error of the softmax, which SentEval's code minimises instead."""
        return functional.mse_loss(self._logits(z).softmax(1), self._shares(targets, z))

    def _shares(self, targets: Tensor, z: Tensor) -> Tensor:
        numbers = self._numbers.to(z.device)
        return (1 - (targets.to(z.dtype)[:, None] - numbers).abs()).clamp(min=0)


class CosineLayer(TaskLayer):
    """The cosine y of two projected vectors, clamped to at least `hinge` (BERT-CF, section 4.3).

    The loss of a pair with one of two labels is 1 - y for the second and y - hinge for the first.
    The `squared` loss of a pair with a value is the squared error of y from the value, scaled
    linearly from `scale`, the least and the greatest value, to hinge .. 1. `cosent` and `angle` put
    the pairs of a batch into the order of their values, without a hinge (see `ranked_pairs`).

    A `size` of 0 compares the vectors as they are: the projection is the identity, which is not
    trained, without dropout.
    """

    def __init__(
        self,
        name: str,
        dimension: int,
        size: int,
        *,
        hinge: float,
        labels: Sequence[str] = (),
        scale: tuple[float, float] | None = None,
        dropout: float = 0.0,
        loss: CosineLoss = "squared",
        temperature: float = 0.05,
    ) -> None:
        kind: HeadKind = "cosine-classifier" if scale is None else "cosine-regressor"
        kept = {"labels": tuple(labels), "hinge": hinge, "scale": scale}
        super().__init__(name, dimension, size or dimension, dropout if size else 0, kind, **kept)
        if size == 0:
            nn.init.eye_(self.linear.weight)
            nn.init.zeros_(self.linear.bias)
            self.linear.requires_grad_(False)
        self._hinge, self._scale = hinge, scale
        self._loss, self._temperature = loss, temperature

    def loss(self, z: Tensor, targets: Tensor) -> Tensor:
        u, v = self.linear(self.dropout(z)).chunk(2)
        if self._loss != "squared":
            compare = angle_similarity if self._loss == "angle" else functional.cosine_similarity
            return ranked_pairs(compare(u, v), targets, temperature=self._temperature)
        y = functional.cosine_similarity(u, v, dim=1).clamp(min=self._hinge)
        if self._scale is None:
            return torch.where(targets == 1, 1 - y, y - self._hinge).mean()
        low, high = self._scale
        wanted = self._hinge + (targets.to(y.dtype) - low) / (high - low) * (1 - self._hinge)
        return functional.mse_loss(y, wanted)
