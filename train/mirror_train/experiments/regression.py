"""Measure the relatedness of texts by a regression on their vectors, which stay as they are.

SentEval evaluates the STS benchmark and SICK in this way, and so does BURT (section 4.1): a model
is "first trained on a regression task and then evaluated on the test set".
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt

from mirror_rt.encoding.batch_encoder import EmbeddingModel
from mirror_rt.errors import DataError, require
from mirror_rt.evaluation import ScoredPairs, read_scored_pairs
from mirror_rt.evaluation.models import EvaluatedModel
from mirror_rt.evaluation.statistics import RankCorrelation
from mirror_rt.evaluation.suites import EvaluationSet, Measured, Outcome

Floats = npt.NDArray[np.float64]

_PENALTY = 1e-4  # lambda of Tai et al.
_STEPS = 200


def regression_set(test: EvaluationSet, path: Path) -> EvaluationSet:
    """Return the set of scored pairs `test`, measured by a regression that is trained on `path`.

    A model's value is Spearman's rho between predicted and human scores.
    """
    language, train = test.languages[0], read_scored_pairs(path)
    score_distribution(train.scores)  # refuses scores that cannot be learnt before any training

    def measure(model: EvaluatedModel) -> Measured:
        pairs = read_scored_pairs(test.path)
        encoder = model.of(language)
        predict = fit_regression(pair_features(encoder, train), train.scores)
        rho = RankCorrelation(predict(pair_features(encoder, pairs)), pairs.scores)
        note = f"a regression on the vectors, trained on {len(train.scores)} pairs"
        return Measured([Outcome.of("spearman", len(pairs.scores), rho, note=note)])

    return dataclasses.replace(test, measure=measure, further=(path,))


def pair_features(encoder: EmbeddingModel, pairs: ScoredPairs) -> Floats:
    """Return [u * v; |u - v|] of the vectors of each pair, float64 [n, 2D] (Tai et al. 2015)."""
    u, v = (encoder.encode(texts).astype(np.float64) for texts in (pairs.first, pairs.second))
    return np.concatenate([u * v, np.abs(u - v)], axis=1)


def score_distribution(scores: Floats) -> tuple[Floats, Floats]:
    """Return the whole numbers r [K] that scores lie between, and the shares t [n, K] of each.

    A score y has t_i = y - floor(y) for i = floor(y) + 1, t_i = floor(y) - y + 1 for i = floor(y),
    and 0 elsewhere (Tai et al. 2015, Eq. 15), so that r . t is y.
    """
    numbers = np.arange(np.floor(scores.min()), np.ceil(scores.max()) + 1)
    if len(numbers) < 2:
        raise DataError(f"all pairs of a regression have the score {scores[0]:g}")
    return numbers, np.maximum(0, 1 - np.abs(scores[:, None] - numbers))


def fit_regression(x: Floats, scores: Floats) -> Callable[[Floats], Floats]:
    """Fit r . softmax(W x + b) to scores [n] by features [n, F]; return what predicts others.

    As in Tai et al. 2015, the mean divergence KL(t || softmax) is minimised, with lambda / 2 of the
    squared weights, here by L-BFGS from zero, so that nothing is random.
    """
    minimize = require("scipy.optimize", extra="study", purpose="a regression").minimize
    numbers, shares = score_distribution(scores)
    x = np.concatenate([x, np.ones((len(x), 1))], axis=1)  # the last row of w is b
    shape = (x.shape[1], len(numbers))
    penalty = np.full((shape[0], 1), _PENALTY)
    penalty[-1] = 0  # of the bias

    def loss(flat: Floats) -> tuple[float, Floats]:
        w = flat.reshape(shape)
        log_p = _log_softmax(x @ w)
        slope = x.T @ (np.exp(log_p) - shares) / len(x) + penalty * w
        value = -(shares * log_p).sum() / len(x) + (penalty * w * w).sum() / 2
        return float(value), slope.ravel()

    options = {"maxiter": _STEPS}
    found = minimize(loss, np.zeros(shape).ravel(), jac=True, method="L-BFGS-B", options=options)
    w = found.x.reshape(shape)
    return lambda other: np.exp(_log_softmax(other @ w[:-1] + w[-1])) @ numbers


def _log_softmax(logits: Floats) -> Floats:
    logits = logits - logits.max(axis=1, keepdims=True)
    return np.asarray(logits - np.log(np.exp(logits).sum(axis=1, keepdims=True)))
