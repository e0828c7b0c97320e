"""Derive how far two float32 computations of one vector may lie apart, instead of observing it."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Rows = npt.NDArray[np.floating]
HALF_UNIT = 2.0**-24  # of float32: the relative error of one operation
DOUBLE = 2.0**-53  # of float64

# Promised to users of real models, whatever the arithmetic would allow.
ANY_BATCH = 1e-5  # a text alone and in any batch, in fp32: docs/reference/encoding.md
BF16_ANY_BATCH = 2e-2  # the same in bf16 with OpenVINO: docs/reference/engines.md
OTHER_TOOLS = 1e-4  # an export in fp32, PyTorch, and other tools: docs/reference/bundle.md
FLOW_ERROR = 1e-5  # a flow in evaluation mode, and back: mirror_train/model/glow.py
GATE = 1e-4  # components or logits that an export in fp32 may be off by: docs/reference/bundle.md
# Cosines of an export's unit vectors in less than fp32, their mean and the least: the same page.
COSINES = {"fp16": (0.9999, -1.0), "bf16": (0.9999, 0.999), "int8": (0.99, 0.97)}
STATIC_PEER = 1e-6  # static encoders and the tools that wrote them: docs/guides/static.md
_CERTAINTY = 5.0


def assert_within_gate(found: Rows, expected: Rows, precision: str) -> None:
    """Assert what an export promises of its unit vectors [n, D]."""
    if precision == "fp32":
        np.testing.assert_allclose(found, expected, atol=GATE)
        return
    cosines = np.einsum("nd,nd->n", found, expected)
    assert cosines.mean() >= COSINES[precision][0], cosines
    assert cosines.min() >= COSINES[precision][1], cosines


def of_sums(terms: int, unit: float = HALF_UNIT) -> float:
    """Bound a sum of `terms` products, as a part of the sum of their absolute values.

    Each product is rounded once, and its sum with others at most `terms` - 1 times.
    """
    return terms * unit


def of_statistics(values: int, unit: float = DOUBLE) -> float:
    """Bound what two ways of computing a statistic of size 1 differ by.

    It is a quotient or a logarithm of at most three sums over `values` numbers, each of which took
    no more than four operations.
    """
    return 2 * 3 * of_sums(values + 4, unit)


def of_correlation(values: Sequence[float], error: float) -> float:
    """Bound a Pearson correlation where each of the values of one side is off by `error`.

    It is a product of unit vectors; one of them turns by at most twice the error's part of its
    length before it was divided by it.
    """
    return 2 * error / float(np.std(values))


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


def of_losses(dimension: int, temperature: float, unit: float = DOUBLE) -> float:
    """Bound a contrastive loss of cosines: a positive and the logarithm of a sum of exponentials.

    Of the additions see `of_runs`; the exponentials' own rounding is that of a few operations.
    """
    return 2 * of_cosines(dimension, unit) / temperature + 16 * unit


def of_cosines(dimension: int, unit: float = DOUBLE) -> float:
    """Bound a cosine, in which two norms and a product add up 2 `dimension` numbers."""
    return _CERTAINTY * math.sqrt(2 * dimension + 4) * unit


# Of the models of tiny_models.py.
NORM_ERROR = of_norms(32)
RUN_ERROR = of_runs(128, layers=2, hidden=32, head=8, inner=64)
# Of cross-encoders: hidden states have the norm sqrt(32), two matrices of weights with a deviation
# of .2 stretch what they are off by .2 sqrt(32) times each, and a sigmoid's slope is 1/4 at most.
LOGIT_ERROR = RUN_ERROR * math.sqrt(32) * (0.2**2 * 32)
SCORE_ERROR = LOGIT_ERROR / 4
