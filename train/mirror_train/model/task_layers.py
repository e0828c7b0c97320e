"""Task heads in training: layers with a loss, which are saved as heads of `mirror_rt.heads`."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from mirror_rt.heads.task_heads import TaskHead


def join_features(z: Tensor, features: Sequence[str]) -> Tensor:
    """Turn the vectors of n pairs [2n, D], n and then their partners, into [n, len(features) * D].

    The names of the features are in `mirror_rt.heads.task_heads.FEATURES`.
    """
    u, v = z.chunk(2)
    parts = {"u": u, "v": v, "|u-v|": (u - v).abs(), "u*v": u * v}
    return torch.cat([parts[name] for name in features], dim=1)


class TaskLayer(nn.Module):
    """A linear layer on text vectors, with dropout before it and a loss after it."""

    def __init__(self, name: str, in_features: int, out_features: int, dropout: float) -> None:
        super().__init__()
        self.name = name
        self.linear = nn.Linear(in_features, out_features)
        self.dropout = nn.Dropout(dropout)

    def loss(self, z: Tensor, targets: Tensor) -> Tensor:
        """Return the mean loss, a scalar, of n texts [n, D], or of n pairs as [2n, D].

        In pairs, n texts come before their n partners. The targets are int64 [n], indices of
        classes, or float [n], values.
        """
        raise NotImplementedError

    def to_head(self) -> TaskHead:
        """Return a numpy head with the layer's current weights."""
        raise NotImplementedError

    def _arrays(self) -> dict[str, object]:
        with torch.no_grad():
            return {
                "weight": self.linear.weight.float().cpu().numpy().copy(),
                "bias": self.linear.bias.float().cpu().numpy().copy(),
            }


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
        super().__init__(name, max(1, len(features)) * dimension, len(labels), dropout)
        self.labels, self.features = tuple(labels), tuple(features)

    def loss(self, z: Tensor, targets: Tensor) -> Tensor:
        return functional.cross_entropy(self._logits(z), targets)

    def _logits(self, z: Tensor) -> Tensor:
        x = join_features(z, self.features) if self.features else z
        return self.linear(self.dropout(x))  # type: ignore[no-any-return]

    def to_head(self) -> TaskHead:
        return TaskHead(
            self.name,
            "classifier",
            labels=self.labels,
            features=self.features,
            **self._arrays(),  # type: ignore[arg-type]
        )


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
        self.scale, self._numbers = scale, torch.arange(low, high + 1)
        super().__init__(
            name, dimension, list(map(str, self._numbers)), features=features, dropout=dropout
        )

    def loss(self, z: Tensor, targets: Tensor) -> Tensor:
        numbers = self._numbers.to(z.device)
        shares = (1 - (targets.to(z.dtype)[:, None] - numbers).abs()).clamp(min=0)
        return functional.kl_div(self._logits(z).log_softmax(1), shares, reduction="batchmean")

    def to_head(self) -> TaskHead:
        return TaskHead(
            self.name,
            "regressor",
            features=self.features,
            scale=self.scale,
            **self._arrays(),  # type: ignore[arg-type]
        )


class CosineLayer(TaskLayer):
    """The cosine y of two projected vectors, clamped to at least `hinge` (BERT-CF, section 4.3).

    The loss of a pair with one of two labels is 1 - y for the second and y - hinge for the first.
    The loss of a pair with a value is the squared error of y from the value, scaled linearly from
    `scale`, the least and the greatest value, to hinge .. 1.
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
    ) -> None:
        super().__init__(name, dimension, size, dropout)
        self.hinge, self.labels, self.scale = hinge, tuple(labels), scale

    def similarity(self, z: Tensor) -> Tensor:
        """Return y [n], in hinge .. 1, for the vectors of n pairs [2n, D]."""
        u, v = self.linear(self.dropout(z)).chunk(2)
        return functional.cosine_similarity(u, v, dim=1).clamp(min=self.hinge)

    def loss(self, z: Tensor, targets: Tensor) -> Tensor:
        y = self.similarity(z)
        if self.scale is None:
            return torch.where(targets == 1, 1 - y, y - self.hinge).mean()
        low, high = self.scale
        wanted = self.hinge + (targets.to(y.dtype) - low) / (high - low) * (1 - self.hinge)
        return functional.mse_loss(y, wanted)

    def to_head(self) -> TaskHead:
        return TaskHead(
            self.name,
            "cosine-classifier" if self.scale is None else "cosine-regressor",
            labels=self.labels,
            hinge=self.hinge,
            scale=self.scale,
            **self._arrays(),  # type: ignore[arg-type]
        )
