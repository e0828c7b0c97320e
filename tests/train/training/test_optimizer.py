"""Test AdamW of sparse gradients."""

import io

import pytest
import torch
from torch import nn

from mirror_train.training.optimizer import SparseAdamW


class Words(nn.Module):
    """A table of words and a layer behind it, whose loss reads a few words."""

    def __init__(self, *, sparse):
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.table = nn.Embedding(50, 8, padding_idx=3, sparse=sparse)
        self.layer = nn.Linear(8, 8)
        for weight in self.parameters():
            weight.data = torch.randn(weight.shape, generator=generator)

    def step(self, optimizer, ids):
        """Make a step on two chunks of words, as chunks of texts give them."""
        optimizer.zero_grad()
        for chunk in ids.chunk(2):
            self.layer(self.table(chunk)).square().sum().backward()
        optimizer.step()


def drawn(step):
    """Return the words of a step, in which the later half of the table is never read."""
    return torch.randint(0, 25, (6,), generator=torch.Generator().manual_seed(step))


@pytest.fixture
def both():
    """Return the modules and optimisers of a run with dense gradients, and with sparse ones."""
    modules = [Words(sparse=sparse) for sparse in (False, True)]
    kinds = (torch.optim.AdamW, SparseAdamW)
    options = {"lr": 0.01, "weight_decay": 0.1, "fused": True}
    return [
        (module, kind(module.parameters(), **options))
        for module, kind in zip(modules, kinds, strict=True)
    ]


def test_rows_of_a_table_move_as_with_dense_gradients(both):
    before = both[0][0].table.weight.detach().clone()
    for module, optimizer in both:
        optimizer.param_groups[0]["weight_decay"] = 0.0
        for step in range(40):
            module.step(optimizer, drawn(step))
    dense, sparse = (module.table.weight for module, _ in both)
    assert not torch.equal(dense[:25], before[:25])
    torch.testing.assert_close(dense, sparse)


def test_rows_that_are_never_read_stay_as_they_are(both):
    module, optimizer = both[1]
    before = module.table.weight.detach().clone()
    for step in range(3):
        module.step(optimizer, drawn(step))
    read = torch.cat([drawn(step) for step in range(3)])
    rest = ~torch.isin(torch.arange(50), read)
    assert torch.equal(module.table.weight[rest], before[rest])
    assert set(optimizer.state[module.table.weight]["rows"].tolist()) == {*read.tolist()} - {3}


def test_a_resumed_run_has_the_same_bits(both):
    module, optimizer = both[1]
    for step in range(10):
        module.step(optimizer, drawn(step))
    kept = io.BytesIO()
    torch.save([module.state_dict(), optimizer.state_dict()], kept)
    kept.seek(0)
    weights, moments = torch.load(kept)
    resumed = Words(sparse=True)
    again = SparseAdamW(resumed.parameters(), lr=0.01, weight_decay=0.1, fused=True)
    resumed.load_state_dict(weights)
    again.load_state_dict(moments)
    for step in range(10, 30):
        module.step(optimizer, drawn(step))
        resumed.step(again, drawn(step))
    assert torch.equal(module.table.weight, resumed.table.weight)
