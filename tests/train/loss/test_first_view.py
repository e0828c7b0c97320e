"""InfoNCE with anchors of the first view alone (BERT-CF's L_mirror)."""

import math

import pytest
import torch
from torch.nn import functional

from mirror_train.loss import first_view, infonce
from rounding import of_losses

IDS = torch.tensor([0, 1, 0, 2])


@pytest.mark.parametrize("ids", [None, IDS])
def test_it_is_its_formula_and_one_half_of_ntxent(ids):
    z = torch.randn(2, 4, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    a, b = functional.normalize(z, dim=2)
    group = list(range(4)) if ids is None else ids.tolist()
    total = 0.0
    for i in range(4):
        others = [j for j in range(4) if group[j] != group[i]]
        candidates = [a[i] @ b[i], *(a[i] @ view[j] for j in others for view in (a, b))]
        if ids is None:
            assert len(candidates) == 2 * 4 - 1
        scores = [math.exp(cosine / 0.3) for cosine in candidates]
        total -= math.log(scores[0] / sum(scores)) / 4
    found = first_view(3 * z[0], z[1], temperature=0.3, group_ids=ids)
    assert found.item() == pytest.approx(total, abs=of_losses(5, 0.3))
    both = (found + first_view(z[1], z[0], temperature=0.3, group_ids=ids)) / 2
    assert both.item() == pytest.approx(
        infonce(z[0], z[1], temperature=0.3, group_ids=ids).item(), rel=1e-6
    )


def test_no_negatives_are_refused():
    z = torch.eye(2)
    with pytest.raises(ValueError, match="group"):
        first_view(z, z, temperature=0.1, group_ids=torch.tensor([3, 3]))
