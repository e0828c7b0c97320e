"""The regression on vectors of SentEval and BURT, against SentEval's formulas."""

import numpy as np
import pytest
import torch

from mirror_rt import DataError
from mirror_train.data.labelled_examples import Examples
from mirror_train.experiments import trained_sets
from mirror_train.experiments.trained_sets import fit_layer, fit_regression
from mirror_train.model.task_layers import RegressionLayer

SCORES = np.array([0.0, 0.4, 1.0, 2.6, 3.0, 4.99, 5.0])


def encode_labels(labels, nclass=5):
    """Transcribe `encode_labels` of SentEval (senteval/sick.py)."""
    y = np.zeros((len(labels), nclass))
    for j, label in enumerate(labels):
        for i in range(nclass):
            if i + 1 == np.floor(label) + 1:
                y[j, i] = label - np.floor(label)
            if i + 1 == np.floor(label):
                y[j, i] = np.floor(label) - label + 1
    return y


def test_the_loss_is_that_of_senteval(rng):
    """Linear and softmax on |u - v| and u * v, and the squared error from Tai et al.'s shares."""
    u, v = rng.standard_normal((2, len(SCORES), 3))
    layer = RegressionLayer("x", 3, (1.0, 5.0), features=("|u-v|", "u*v")).double()
    found = layer.squared_error(torch.tensor(np.concatenate([u, v])), torch.tensor(SCORES)).item()
    weight, bias = (one.detach().numpy() for one in layer.linear.parameters())
    p = np.exp(np.concatenate([np.abs(u - v), u * v], axis=1) @ weight.T + bias)
    p /= p.sum(axis=1, keepdims=True)
    assert found == pytest.approx(np.square(p - encode_labels(SCORES)).mean(), rel=1e-12)


def test_vectors_keep_their_length_and_scores_from_0_have_five_classes(rng):
    """What the scores follow is the length of the vectors, which unit vectors would not have."""
    lengths = rng.uniform(0.2, 5, 200)
    u = lengths[:, None] * np.tile(rng.standard_normal(4), (200, 1))
    fed = (u, u, lengths)
    head = fit_regression(fed, fed, (0.0, 5.0))
    assert head.scale == (1.0, 5.0)
    assert np.corrcoef(head(u, u).scores, lengths)[0, 1] > 0.95


def test_the_best_weights_are_kept_and_four_fruitless_looks_end_it(rng):
    u, v = rng.standard_normal((2, 20, 3))
    layer = RegressionLayer("x", 3, (1.0, 5.0), features=("|u-v|", "u*v"))
    seen, scores = [], iter([0.1, 0.5, 0.4, 0.6, 0.6, 0.2, 0.3, 0.9])

    def score(head):
        seen.append(head)
        return next(scores)

    best = fit_layer(layer, layer.squared_error, (u, v, rng.uniform(1, 5, 20)), score)
    assert (len(seen), best is seen[3]) == (7, True)  # .9 is not reached
    again = RegressionLayer("x", 3, (1.0, 5.0), features=("|u-v|", "u*v"))
    rng.standard_normal(9)
    first = fit_layer(layer, layer.squared_error, (u, v, np.full(20, 3.0)), lambda head: 0.0)
    second = fit_layer(again, again.squared_error, (u, v, np.full(20, 3.0)), lambda head: 0.0)
    np.testing.assert_array_equal(first.weight, second.weight)


def test_equal_scores_are_refused_before_any_training(tmp_path):
    flat = Examples(["a"], ["b"], np.array([3.0]), (), "pairs")
    with pytest.raises(DataError, match="all 1 rows of pairs have the value 3"):
        flat.scale()
    path = tmp_path / "pairs.tsv"
    path.write_text("text1\ttext2\tscore\na\tb\t3\nc\td\t3\n")
    with pytest.raises(DataError, match="have the value 3"):
        trained_sets.regression_set(None, path, path)
