"""The regression on vectors of SentEval and BURT, against its formulas."""

import math

import numpy as np
import pytest

from mirror_rt import DataError
from mirror_train.experiments.regression import fit_regression, score_distribution


def test_scores_are_spread_over_whole_numbers():
    """Tai et al. 2015, Eq. 15, case by case."""
    scores = np.array([1.0, 2.3, 4.75, 5.0, 3.0])
    numbers, shares = score_distribution(scores)
    assert numbers.tolist() == [1, 2, 3, 4, 5]
    for y, row in zip(scores, shares, strict=True):
        for i, share in zip(numbers, row, strict=True):
            if i == math.floor(y) + 1:
                expected = y - math.floor(y)
            elif i == math.floor(y):
                expected = math.floor(y) - y + 1
            else:
                expected = 0
            assert share == pytest.approx(expected)
    np.testing.assert_allclose(shares @ numbers, scores)
    with pytest.raises(DataError, match="all pairs of a regression have the score 3"):
        score_distribution(np.array([3.0, 3.0]))


def test_the_regression_minimises_the_divergence(rng):
    """No softmax regression that torch finds by the formula has a lower loss."""
    import torch

    x, w = rng.standard_normal((80, 6)), rng.standard_normal((6, 1))
    scores = np.clip(2.5 + (x @ w)[:, 0], 0, 5)
    numbers, shares = map(torch.from_numpy, score_distribution(scores))
    weight = torch.zeros(6, len(numbers), dtype=torch.float64, requires_grad=True)
    bias = torch.zeros(len(numbers), dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.LBFGS([weight, bias], max_iter=500, line_search_fn="strong_wolfe")

    def loss():
        optimizer.zero_grad()
        log_p = torch.log_softmax(torch.from_numpy(x) @ weight + bias, dim=1)
        divergence = torch.nn.functional.kl_div(log_p, shares, reduction="batchmean")
        value = divergence + 1e-4 / 2 * weight.square().sum()
        value.backward()
        return value

    optimizer.step(loss)
    p = torch.softmax(torch.from_numpy(x) @ weight + bias, dim=1)
    expected = (p @ numbers).detach().numpy()
    np.testing.assert_allclose(fit_regression(x, scores)(x), expected, atol=0.05)
    assert np.corrcoef(expected, scores)[0, 1] > 0.95
