"""CoSENT and AnglE: the similarities of pairs are put into the order of the pairs' values.

A batch has n pairs with similarities s_i and values y_i. Of two pairs whose values differ, the one
with the higher value should have the higher similarity, and the loss is

    ln(1 + sum over i, j with y_i > y_j of exp((s_j - s_i) / temperature)).

Only the order of the values counts, not how far they are apart. CoSENT (Huang et al. 2024) takes
the cosine as the similarity; AnglE (Li and Li 2024), as its authors' code does, the one below.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional


def ranked_pairs(similarities: Tensor, values: Tensor, *, temperature: float) -> Tensor:
    """Return the loss of n pairs, a scalar; it is 0 where all values are equal.

    Args:
        similarities: floating point [n].
        values: [n], any numbers.
        temperature: the divisor of differences of similarities.
    """
    apart = (similarities[None, :] - similarities[:, None]) / temperature
    wrong = apart[values[:, None] > values[None, :]]
    return torch.logsumexp(functional.pad(wrong, (1, 0)), dim=0)


def angle_similarity(u: Tensor, v: Tensor) -> Tensor:
    """Return AnglE's similarity [n] of n pairs of vectors [n, D].

    The first half of a unit vector's components are the real parts of complex numbers, the second
    half the imaginary ones; with z and w of a pair, it is |Re(sum of z conj(w)) + Im(the same)|. An
    odd D is padded with a 0.
    """
    odd = u.shape[1] % 2
    x, y = (functional.pad(functional.normalize(side, dim=1), (0, odd)) for side in (u, v))
    (a, b), (c, d) = x.chunk(2, dim=1), y.chunk(2, dim=1)
    return (a * c + b * d + b * c - a * d).sum(dim=1).abs()
