"""Task heads in training: layers with a loss, which end as `mirror_rt.heads` applies them."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from mirror_rt.heads.task_heads import TaskHead

__all__ = ["CosineLayer", "SoftmaxLayer", "TaskLayer", "join_features"]


def join_features(z: Tensor, features: Sequence[str]) -> Tensor:
    """Vectors of n pairs, [2n, D] (n and then their partners), to features [n, len * D].

    Args:
        z: vectors.
        features: of `mirror_rt.heads.task_heads.FEATURES`.
    """
    u, v = z.chunk(2)
    parts = {"u": u, "v": v, "|u-v|": (u - v).abs(), "u*v": u * v}
    return torch.cat([parts[name] for name in features], dim=1)


class TaskLayer(nn.Module):
    """A linear layer on text vectors, with dropout before it, and a loss.

    Args:
        name: of the task.
        in_features: size of its input.
        out_features: size of its output.
        dropout: rate, in training.
    """

    def __init__(self, name: str, in_features: int, out_features: int, dropout: float) -> None:
        super().__init__()
        self.name = name
        self.linear = nn.Linear(in_features, out_features)
        self.dropout = nn.Dropout(dropout)

    def loss(self, z: Tensor, targets: Tensor) -> Tensor:
        """Mean loss of n texts [n, D] or pairs [2n, D], a number.

        Args:
            z: vectors as pooled; of pairs, n and then their n partners.
            targets: int64 [n], numbers of classes; or float [n], values.
        """
        raise NotImplementedError

    def to_head(self) -> TaskHead:
        """The layer as it is now, for numpy."""
        raise NotImplementedError

    def _arrays(self) -> dict[str, object]:
        with torch.no_grad():
            return {
                "weight": self.linear.weight.float().cpu().numpy().copy(),
                "bias": self.linear.bias.float().cpu().numpy().copy(),
            }


class SoftmaxLayer(TaskLayer):
    """Classes by a softmax, trained by cross entropy.

    Of texts (BERT-CF, section 4.3, sentiment), or of pairs by joined features (BURT, section 3.2:
    P(a | P, H) = softmax(W^T [u; v; |u - v|])).

    Args:
        name: of the task.
        dimension: length D of a text's vector.
        labels: names of the classes.
        features: of pairs, of `mirror_rt.heads.task_heads.FEATURES`; none for texts.
        dropout: rate, in training.
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
        """See `TaskLayer.loss`."""
        x = join_features(z, self.features) if self.features else z
        return functional.cross_entropy(self.linear(self.dropout(x)), targets)

    def to_head(self) -> TaskHead:
        """See `TaskLayer.to_head`."""
        return TaskHead(
            self.name,
            "classifier",
            labels=self.labels,
            features=self.features,
            **self._arrays(),  # type: ignore[arg-type]
        )


class CosineLayer(TaskLayer):
    """The cosine of two projected vectors, at least `hinge` (BERT-CF, section 4.3).

    With y the cosine so clamped, pairs with labels have the loss 1 - y where they are of the second
    class and y - hinge where they are of the first; pairs with values, which are scaled linearly to
    hinge .. 1, the squared error.

    Args:
        name: of the task.
        dimension: length D of a text's vector.
        size: e, length of a projected vector.
        hinge: the least similarity.
        labels: names of the two classes; none for values.
        scale: least and greatest value; None for classes.
        dropout: rate, in training.
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
        """Vectors of n pairs [2n, D] to y [n], in hinge .. 1."""
        u, v = self.linear(self.dropout(z)).chunk(2)
        return functional.cosine_similarity(u, v, dim=1).clamp(min=self.hinge)

    def loss(self, z: Tensor, targets: Tensor) -> Tensor:
        """See `TaskLayer.loss`."""
        y = self.similarity(z)
        if self.scale is None:
            return torch.where(targets == 1, 1 - y, y - self.hinge).mean()
        low, high = self.scale
        wanted = self.hinge + (targets.to(y.dtype) - low) / (high - low) * (1 - self.hinge)
        return functional.mse_loss(y, wanted)

    def to_head(self) -> TaskHead:
        """See `TaskLayer.to_head`."""
        return TaskHead(
            self.name,
            "cosine-classifier" if self.scale is None else "cosine-regressor",
            labels=self.labels,
            hinge=self.hinge,
            scale=self.scale,
            **self._arrays(),  # type: ignore[arg-type]
        )
