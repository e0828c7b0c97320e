"""Task heads in training: layers with a loss, which are saved as heads of `mirror_rt.heads`."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from mirror_rt.heads.task_heads import TaskHead

__all__ = ["CosineLayer", "SoftmaxLayer", "TaskLayer", "join_features"]


def join_features(z: Tensor, features: Sequence[str]) -> Tensor:
    """Turn the vectors of n pairs into features [n, len(features) * D].

    Args:
        z: [2n, D] vectors: n, and then their partners.
        features: names in `mirror_rt.heads.task_heads.FEATURES`.
    """
    u, v = z.chunk(2)
    parts = {"u": u, "v": v, "|u-v|": (u - v).abs(), "u*v": u * v}
    return torch.cat([parts[name] for name in features], dim=1)


class TaskLayer(nn.Module):
    """A linear layer on text vectors, with dropout before it and a loss after it.

    Args:
        name: name of the task.
        in_features: size of the input.
        out_features: size of the output.
        dropout: rate of dropout in training.
    """

    def __init__(self, name: str, in_features: int, out_features: int, dropout: float) -> None:
        super().__init__()
        self.name = name
        self.linear = nn.Linear(in_features, out_features)
        self.dropout = nn.Dropout(dropout)

    def loss(self, z: Tensor, targets: Tensor) -> Tensor:
        """Return the mean loss of n texts [n, D] or pairs [2n, D], a scalar.

        Args:
            z: pooled vectors; for pairs, n and then their n partners.
            targets: int64 [n], indices of classes; or float [n], values.
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

    It classifies texts (BERT-CF, section 4.3, sentiment), or pairs by joined features (BURT,
    section 3.2: P(a | P, H) = softmax(W^T [u; v; |u - v|])).

    Args:
        name: name of the task.
        dimension: length D of a text's vector.
        labels: names of the classes.
        features: for pairs, names in `mirror_rt.heads.task_heads.FEATURES`; empty for texts.
        dropout: rate of dropout in training.
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
        """Return the loss as `TaskLayer.loss` says."""
        x = join_features(z, self.features) if self.features else z
        return functional.cross_entropy(self.linear(self.dropout(x)), targets)

    def to_head(self) -> TaskHead:
        """Return the head as `TaskLayer.to_head` says."""
        return TaskHead(
            self.name,
            "classifier",
            labels=self.labels,
            features=self.features,
            **self._arrays(),  # type: ignore[arg-type]
        )


class CosineLayer(TaskLayer):
    """The cosine y of two projected vectors, clamped to at least `hinge` (BERT-CF, section 4.3).

    The loss of a pair with a label is 1 - y for the second class and y - hinge for the first. The
    loss of a pair with a value is the squared error of y from the value, scaled linearly to
    hinge .. 1.

    Args:
        name: name of the task.
        dimension: length D of a text's vector.
        size: e, length of a projected vector.
        hinge: the least similarity.
        labels: names of the two classes; empty for values.
        scale: least and greatest value; None for classes.
        dropout: rate of dropout in training.
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
        """Return the loss as `TaskLayer.loss` says."""
        y = self.similarity(z)
        if self.scale is None:
            return torch.where(targets == 1, 1 - y, y - self.hinge).mean()
        low, high = self.scale
        wanted = self.hinge + (targets.to(y.dtype) - low) / (high - low) * (1 - self.hinge)
        return functional.mse_loss(y, wanted)

    def to_head(self) -> TaskHead:
        """Return the head as `TaskLayer.to_head` says."""
        return TaskHead(
            self.name,
            "cosine-classifier" if self.scale is None else "cosine-regressor",
            labels=self.labels,
            hinge=self.hinge,
            scale=self.scale,
            **self._arrays(),  # type: ignore[arg-type]
        )
