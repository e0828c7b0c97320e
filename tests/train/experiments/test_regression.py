"""The regression on vectors of SentEval and BURT, against its formulas."""

import numpy as np
import pytest
from scipy.optimize import minimize

from mirror_rt import DataError
from mirror_train.data.labelled_examples import Examples
from mirror_train.experiments.trained_sets import fit_regression


def test_the_regression_minimises_the_divergence(rng):
    """No weights that scipy finds by the formulas of Tai et al. 2015 (Eq. 15) predict otherwise."""
    u, v = rng.standard_normal((2, 80, 2)).astype(np.float32)
    x = np.concatenate([u * v, np.abs(u - v), np.ones((80, 1))], axis=1)
    scores = np.clip(2.5 + x[:, :4] @ rng.standard_normal(4), 0, 5)
    train = Examples([""] * 80, [""] * 80, scores, (), "pairs")
    numbers = np.arange(scores.min() // 1, -(-scores.max() // 1) + 1)
    assert train.scale() == (numbers[0], numbers[-1])
    shares = np.maximum(0, 1 - np.abs(scores[:, None] - numbers))
    np.testing.assert_allclose(shares @ numbers, scores)

    def softmax(w):
        p = np.exp(x @ w.reshape(5, len(numbers)))
        return p / p.sum(axis=1, keepdims=True)

    def loss(w):
        squares = np.square(w.reshape(5, -1)[:4]).sum()
        return -(shares * np.log(softmax(w))).sum() / 80 + 1e-4 / 2 * squares

    best = minimize(loss, np.zeros(5 * len(numbers)), options={"maxiter": 300}).x
    found = fit_regression(u, v, train)(u, v).scores
    np.testing.assert_allclose(found, softmax(best) @ numbers, atol=0.05)
    flat = Examples(["a"], ["b"], np.array([3.0]), (), "pairs")
    with pytest.raises(DataError, match="all 1 rows of pairs have the value 3"):
        fit_regression(u[:1], v[:1], flat)
