"""CoSENT and AnglE against the formula, sentence-transformers' losses, and finite differences."""

import math

import numpy as np
import pytest
import torch
from torch.nn.functional import cosine_similarity

from mirror_train.loss.ranked_pairs import angle_similarity, ranked_pairs

VALUES = torch.tensor([0.0, 5.0, 2.5, 2.5, 1.0, 4.2, 5.0])


def pairs(dimension=6, dtype=torch.float64):
    rng = np.random.default_rng(0)
    return torch.from_numpy(rng.normal(size=(2, len(VALUES), dimension))).to(dtype)


def test_the_formula_written_out():
    s = [0.1, 0.9, 0.3, -0.2, 0.5, 0.8, 0.7]
    ordered = [(i, j) for i in range(7) for j in range(7) if VALUES[i] > VALUES[j]]
    expected = math.log(1 + sum(math.exp((s[j] - s[i]) / 0.1) for i, j in ordered))
    found = ranked_pairs(torch.tensor(s, dtype=torch.float64), VALUES, temperature=0.1)
    assert found.item() == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("dimension", [6, 7])
@pytest.mark.parametrize(
    ("similarity", "theirs"), [(cosine_similarity, "CoSENTLoss"), (angle_similarity, "AnglELoss")]
)
def test_the_losses_are_those_of_sentence_transformers(similarity, theirs, dimension):
    from sentence_transformers.sentence_transformer import losses

    u, v = pairs(dimension)
    expected = getattr(losses, theirs)(None).compute_loss_from_embeddings([u, v], VALUES)
    found = ranked_pairs(similarity(u, v), VALUES, temperature=0.05)
    assert found.item() == pytest.approx(expected.item(), abs=1e-6)


@pytest.mark.parametrize("similarity", [cosine_similarity, angle_similarity])
def test_the_gradient(similarity):
    u, v = (side.requires_grad_() for side in pairs().unbind())

    def loss(u, v):
        return ranked_pairs(similarity(u, v), VALUES, temperature=0.2)

    assert torch.autograd.gradcheck(loss, (u, v))


def test_equal_values_have_no_order():
    z = torch.zeros(3, requires_grad=True)
    loss = ranked_pairs(z, torch.ones(3), temperature=0.05)
    loss.backward()
    assert loss.item() == 0
    assert z.grad.tolist() == [0, 0, 0]


def test_large_differences_stay_finite():
    loss = ranked_pairs(torch.tensor([-1.0, 1.0]), torch.tensor([1.0, 0.0]), temperature=1e-3)
    assert loss.item() == pytest.approx(2000)
