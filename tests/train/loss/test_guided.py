"""NT-Xent without the negatives that a guide takes to be false."""

import math

import pytest
import torch
from torch import nn
from torch.nn.functional import normalize

from mirror_train.loss import guided, infonce
from rounding import of_losses

N, TAU = 5, 0.3


def vectors(seed, dimension=6):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(2, N, dimension, generator=generator, dtype=torch.float64)


@pytest.mark.parametrize("margin", [0.0, 0.4])
@pytest.mark.parametrize("ids", [None, torch.tensor([0, 1, 0, 2, 3])])
def test_the_formula_written_out(ids, margin):
    z, g = vectors(0), vectors(1, 3).float()
    rows, guides = (normalize(one.reshape(2 * N, -1), dim=1) for one in (z, g))
    group = list(range(N)) if ids is None else ids.tolist()
    losses, filtered = [], 0
    for i in range(2 * N):
        positive = (i + N) % (2 * N)
        found = [positive]
        for j in range(2 * N):
            if group[j % N] == group[i % N]:
                continue
            if guides[i] @ guides[j] >= guides[i] @ guides[positive] - margin:
                filtered += 1
                continue
            found.append(j)
        scores = [math.exp(rows[i] @ rows[j] / TAU) for j in found]
        losses.append(-math.log(scores[0] / sum(scores)))
    assert 0 < filtered < 2 * N * (2 * N - 2)
    loss = guided(*z, *g, temperature=TAU, margin=margin, group_ids=ids)
    assert loss.item() == pytest.approx(sum(losses) / (2 * N), abs=of_losses(6, TAU))


def test_a_guide_that_leaves_out_nothing_gives_ntxent():
    z, apart = vectors(0), torch.eye(N)
    found = guided(*z, apart, apart, temperature=TAU)
    assert found.item() == pytest.approx(infonce(*z, temperature=TAU).item(), rel=1e-6)


def test_a_guide_to_whom_all_is_alike_leaves_nothing():
    same = torch.ones(N, 4)
    assert guided(*vectors(0), same, same, temperature=TAU).item() == 0


def test_each_half_is_that_of_sentence_transformers():
    """Their loss has the rows of one view as anchors; without contrasted positives it is a half."""
    from sentence_transformers.sentence_transformer.losses import GISTEmbedLoss

    theirs = GISTEmbedLoss.__new__(GISTEmbedLoss)  # with vectors in the place of two models
    nn.Module.__init__(theirs)
    theirs.model = lambda features: {"sentence_embedding": features["z"]}
    theirs.guide = lambda features: {"sentence_embedding": features["g"]}
    theirs.must_retokenize = theirs.gather_across_devices = theirs.contrast_positives = False
    theirs.temperature, theirs.margin, theirs.margin_strategy = TAU, 0.1, "absolute"
    theirs.contrast_anchors = True
    theirs.similarity_fct, theirs.cross_entropy_loss = (
        nn.CosineSimilarity(-1),
        nn.CrossEntropyLoss(),
    )
    z, g = vectors(0), vectors(1, 3)
    columns = [{"z": one, "g": guide} for one, guide in zip(z, g, strict=True)]
    halves = [theirs(order, torch.empty(0)).item() for order in (columns, columns[::-1])]
    found = guided(*z, *g, temperature=TAU, margin=0.1)
    assert found.item() == pytest.approx(sum(halves) / 2, abs=1e-6)


def test_the_gradient():
    g = vectors(1, 3)
    views = [one.requires_grad_() for one in vectors(0).unbind()]
    assert torch.autograd.gradcheck(lambda a, b: guided(a, b, *g, temperature=TAU), views)
