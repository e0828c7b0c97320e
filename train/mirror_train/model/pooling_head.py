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


def pool(hidden: Tensor, mask: Tensor, pooling: PoolingMode) -> Tensor:
    """Pool token vectors [B, L, H] with a mask [B, L] (padding on the right) to vectors [B, H].

    `cls` takes the first token and `lasttoken` the last real one; `max` takes the maximum of each
    component; `mean` averages the real tokens; `mean-without-special` averages those between the
    first and the last, which are [CLS] and [SEP] (see `Pretrained.check_special_tokens`);
    `mean_sqrt_len_tokens` divides the sum of the real tokens by the root of their number;
    `weightedmean` weighs them by their position, counted from 1 (arXiv 2202.08904, section 4.1);
    and `mean-with-padding` averages all tokens, including padding (EMNLP 2021, caption of Table 3).
    `first-last-avg` is the mean, of the token vectors that `Head.embed` makes of two layers.
    """
    if pooling == "cls":
        return hidden[:, 0]
    if pooling == "lasttoken":
        last = mask.sum(dim=1) - 1
        return hidden.gather(1, last[:, None, None].expand(-1, 1, hidden.shape[2])).squeeze(1)
    if pooling == "mean-with-padding":
        return hidden.mean(dim=1)
    if pooling == "max":
        return hidden.masked_fill(mask.unsqueeze(-1) == 0, float("-inf")).amax(dim=1)
    weights = _positions(mask, pooling).unsqueeze(-1).to(hidden.dtype)
    total = weights.sum(dim=1)
    if pooling == "mean_sqrt_len_tokens":
        total = torch.sqrt(total)
    return (hidden * weights).sum(dim=1) / total


def _positions(mask: Tensor, pooling: PoolingMode) -> Tensor:
    """Return the weight of each token [B, L]."""
    if pooling == "weightedmean":
        return mask * mask.cumsum(dim=1)
    if pooling == "mean-without-special":
        # A token is inside if it is not the first and has a real token on its right.
        return functional.pad(mask[:, 2:], (1, 1))
    return mask


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

    Attributes:
        gives_text_vectors: whether `write_modules` describes the head; those of other models do not
            give a vector of a text.
    """

    gives_text_vectors = True

    def __init__(
        self,
        poolings: Sequence[PoolingMode],
        layers: Iterable[nn.Module] = (),
        *,
        normalize: bool = True,
        truncate_dim: int | None = None,
    ) -> None:
        super().__init__()
        if "first-last-avg" in poolings and len(poolings) > 1:
            raise ModelError("the pooling first-last-avg cannot be joined to another one")
        self.poolings = tuple(poolings)
        self.layers = nn.ModuleList(layers)
        self.normalize = normalize
        self.truncate_dim = truncate_dim

    @property
    def pooling(self) -> str:
        """The names of the poolings in one word, such as `mean` or `cls+max`."""
        return "+".join(self.poolings)

    def truncated(self, dimension: int, hidden_size: int) -> Head:
        """Return the same head, cut to its first `dimension` dimensions."""
        full = self.dimension(hidden_size)
        if not 1 <= dimension <= full:
            raise ConfigError(field="truncate_dim", expected=f"in 1 .. {full}", value=dimension)
        return Head(self.poolings, self.layers, normalize=self.normalize, truncate_dim=dimension)

    def dimension(self, hidden_size: int) -> int:
        """Return the length D of a text vector for token vectors of `hidden_size`."""
        size = len(self.poolings) * hidden_size
        for layer in self.layers:
            if isinstance(layer, Dense | Flow):
                takes = layer.size if isinstance(layer, Flow) else layer.linear.in_features
                if takes != size:
                    raise ModelError(
                        f"a {type(layer).__name__} module takes {takes} features, but the part "
                        f"before it gives {size}"
                    )
                size = size if isinstance(layer, Flow) else layer.linear.out_features
        return size if self.truncate_dim is None else self.truncate_dim

    def embed(self, model: nn.Module, **inputs: Tensor) -> tuple[Tensor, Tensor]:
        """Run a transformers encoder: unnormalised text vectors [B, D], and its token vectors.

        These, [B, L, H], are those of the last layer. `first-last-avg` pools their average with the
        output of the first layer, as the code of SimCSE does, not with the embeddings below it.
        """
        averaged = "first-last-avg" in self.poolings
        found = model(**inputs, **{"output_hidden_states": True} if averaged else {})
        last: Tensor = found.last_hidden_state
        hidden = (found.hidden_states[1] + last) / 2 if averaged else last
        return self(hidden, inputs["attention_mask"]), last

    def forward(self, hidden: Tensor, mask: Tensor) -> Tensor:
        """Map token vectors [B, L, H] and a mask [B, L] to unnormalised text vectors [B, D]."""
        pooled = [pool(hidden, mask, pooling) for pooling in self.poolings]
        vectors = pooled[0] if len(pooled) == 1 else torch.cat(pooled, dim=1)
        for layer in self.layers:
            vectors = layer(vectors)
        return vectors if self.truncate_dim is None else vectors[:, : self.truncate_dim]
