"""Derive how far two float32 computations of one vector may lie apart, instead of observing it."""

from __future__ import annotations

import math

HALF_UNIT = 2.0**-24  # of float32: the relative error of one operation
_CERTAINTY = 5.0


def of_norms(dimension: int, times: int = 2) -> float:
    """Bound the components of vectors that were divided by their own norm, `times` altogether.

    The squares of `dimension` components are added up, the root halves the error of their sum and
    is rounded, and so is the quotient.
    """
    return times * (dimension / 2 + 2) * HALF_UNIT


def of_runs(tokens: int, *, layers: int, hidden: int, head: int, inner: int) -> float:
    """Bound the components of unit vectors that two engines make, each adding up in its order.

    What n additions round is at most l sqrt(n) half units, with a probability of at least
    1 - 2 exp(-l^2 / 2) (Higham and Mary, SIAM J. Sci. Comput. 41, 2019, theorem 2.4; here l is 5).
    The sums on the way of a component: projections, scores, their softmax, the values of a head,
    the output, the two sums of each norm, both halves of the feed-forward layer; then the pooling
    and the norm of the vector.
    """
    of_a_layer = hidden + head + 2 * tokens + hidden + 4 * hidden + hidden + inner
    terms = layers * of_a_layer + tokens + hidden
    return 2 * _CERTAINTY * math.sqrt(terms) * HALF_UNIT


# Of the models of tiny_models.py.
NORM_ERROR = of_norms(32)
RUN_ERROR = of_runs(128, layers=2, hidden=32, head=8, inner=64)
