"""The head of an encoder, which turns token vectors into the vector of a text."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from mirror_rt.bundle.manifest import PoolingMode
from mirror_rt.errors import ConfigError, ModelError
from mirror_train.model.dense import Dense
from mirror_train.model.glow import Flow
from mirror_train.model.pooling import pool


class Normalize(nn.Module):
    """A layer that scales vectors [B, D] to unit length."""

    def forward(self, x: Tensor) -> Tensor:
        """Divide each row by its norm."""
        return functional.normalize(x, dim=1)


class Head(nn.Module):
    """The pooling, the layers after it, and whether vectors are of unit length by default.

    Tuned folders, parity checks and exported graphs all use this one implementation.

    Args:
        poolings: one, or several whose vectors are concatenated.
        layers: the layers after the pooling (`Dense`, `Flow` or `Normalize`), without a final
            normalisation.
        normalize: whether the encoder ends in a normalisation. The head itself leaves it out,
            because both forms of a vector are useful.
        truncate_dim: number of dimensions of the last layer's output to keep; None for all.
    """

    def __init__(
        self,
        poolings: Sequence[PoolingMode],
        layers: Iterable[nn.Module] = (),
        *,
        normalize: bool = True,
        truncate_dim: int | None = None,
    ) -> None:
        super().__init__()
        self.poolings = tuple(poolings)
        self.layers = nn.ModuleList(layers)
        self.normalize = normalize
        self.truncate_dim = truncate_dim

    @property
    def pooling(self) -> str:
        """The names of the poolings in one word, such as `mean` or `cls+max`."""
        return "+".join(self.poolings)

    def truncated(self, dimension: int, hidden_size: int) -> Head:
        """Return the same head, cut to its first `dimension` dimensions.

        Raises:
            ConfigError: the head has fewer dimensions.
        """
        full = self.dimension(hidden_size)
        if not 1 <= dimension <= full:
            raise ConfigError(field="truncate_dim", expected=f"in 1 .. {full}", value=dimension)
        return Head(self.poolings, self.layers, normalize=self.normalize, truncate_dim=dimension)

    def dimension(self, hidden_size: int) -> int:
        """Return the length D of a text vector for token vectors of `hidden_size`.

        Raises:
            ModelError: a layer does not fit the one before it.
        """
        size = len(self.poolings) * hidden_size
        for layer in self.layers:
            if isinstance(layer, Dense):
                if layer.linear.in_features != size:
                    raise ModelError(
                        f"a Dense module takes {layer.linear.in_features} features, but "
                        f"{size} come out of what is before it"
                    )
                size = layer.linear.out_features
            elif isinstance(layer, Flow) and layer.size != size:
                raise ModelError(
                    f"a Flow module takes {layer.size} features, but {size} come out of what is "
                    "before it"
                )
        return size if self.truncate_dim is None else self.truncate_dim

    def forward(self, hidden: Tensor, mask: Tensor) -> Tensor:
        """Map token vectors [B, L, H] and a mask [B, L] to unnormalised text vectors [B, D]."""
        pooled = [pool(hidden, mask, pooling) for pooling in self.poolings]
        vectors = pooled[0] if len(pooled) == 1 else torch.cat(pooled, dim=1)
        for layer in self.layers:
            vectors = layer(vectors)
        return vectors if self.truncate_dim is None else vectors[:, : self.truncate_dim]
