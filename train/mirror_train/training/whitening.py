"""A whitening layer after the pooling, which makes the base model's vectors less anisotropic.

The vectors of a masked language model lie in a narrow cone: a few directions hold most of their
variance. Su et al. 2021 ("Whitening Sentence Representations") and Huang et al. 2021
("WhiteningBERT") map them to unit covariance without training. Full whitening amplifies noise in
the weak directions; a power below 1 whitens in part.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

from mirror_rt.encoding.batch_encoder import Vectors
from mirror_rt.errors import ModelError
from mirror_train.data.training_data import TrainingData
from mirror_train.model.dense import Dense
from mirror_train.model.pooling_head import Head
from mirror_train.model.pretrained import Pretrained
from mirror_train.model.torch_encoder import TorchEncoder
from mirror_train.recipes.recipe import Recipe

# The most strings that the mean and the covariance are estimated from.
_SAMPLE = 5_000
# This share of the mean eigenvalue is added to every eigenvalue, because some are 0 where there are
# fewer strings than dimensions.
_RIDGE = 1e-3


def fit_whitening(
    base: Pretrained, data: TrainingData, recipe: Recipe, *, seed: int, device: torch.device
) -> Dense | None:
    """Fit the whitening layer of a recipe to the base model's vectors of the strings.

    Of more than 5,000 strings, a random sample is taken. It is None where the recipe has no
    whitening.
    """
    if not recipe.whitening:
        return None
    vectors = _sample_vectors(base, Head([recipe.fixed_pooling]), data, seed, device)
    return whitening_layer(vectors, recipe.whitening).to(device)


def centre_again(
    base: Pretrained,
    layer: Dense,
    data: TrainingData,
    recipe: Recipe,
    *,
    seed: int,
    device: torch.device,
) -> None:
    """Move the layer's bias so that the tuned model's vectors of the strings have mean 0 again.

    A direction that all vectors share hardly changes InfoNCE, so tuning brings one back.

    `layer` is the result of `fit_whitening` for the other arguments; it is changed in place.
    """
    vectors = _sample_vectors(base, Head([recipe.fixed_pooling], [layer]), data, seed, device)
    layer.linear.bias.data -= torch.from_numpy(vectors.mean(axis=0, dtype=np.float64)).to(
        layer.linear.bias
    )


def _sample_vectors(
    base: Pretrained, head: Head, data: TrainingData, seed: int, device: torch.device
) -> Vectors:
    """Return the vectors of at most 5,000 random strings, float32 [n, D], not normalised."""
    strings = sorted({*data.first, *data.second})
    if len(strings) > _SAMPLE:
        chosen = np.random.default_rng(seed).choice(len(strings), _SAMPLE, replace=False)
        strings = [strings[i] for i in np.sort(chosen)]
    encoder = TorchEncoder(base, head=head, device=device)
    return np.asarray(encoder.encode(strings, normalize_embeddings=False))


def whitening_layer(vectors: Vectors, power: float) -> Dense:
    """Return the layer y = s (x - m) C^(-power / 2), m and C the mean and covariance of `vectors`.

    The vectors are float32 [n, D], n at least 2. With power 1 and s = 1 they get unit covariance
    (ZCA, so that y stays near x); power 0 only centres them. The factor s gives them a mean norm of
    1. The layer is computed in float64 and stored in float32.
    """
    x = vectors.astype(np.float64)
    mean = x.mean(axis=0)
    values, directions = np.linalg.eigh(np.cov(x - mean, rowvar=False))
    values = np.maximum(values, 0) + _RIDGE * values.mean()
    if not values.min() > 0:
        raise ModelError("whitening: the base model gives every string the same vector")
    weight = (directions * values ** (-power / 2)) @ directions.T
    weight /= np.linalg.norm((x - mean) @ weight, axis=1).mean()
    layer = Dense(len(mean), len(mean), activation=nn.Identity())
    layer.linear.weight.data = torch.from_numpy(weight).float()
    layer.linear.bias.data = torch.from_numpy(-weight @ mean).float()
    return layer.requires_grad_(False).eval()
