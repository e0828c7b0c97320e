"""Test what training on a processor is spared."""

import pytest
import torch
from torch import nn

from mirror_train.model.cpu import QuickDropout, quicken_on_cpu


class Encoder(nn.Module):
    """A module that says where its table of words is, as transformers' do."""

    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(5, 2)
        self.layers = nn.ModuleList([nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.25))])

    def get_input_embeddings(self):
        return self.words


@pytest.mark.parametrize(
    ("precision", "expected"), [("fp32", True), ("bf16", True), ("fp16", False)]
)
def test_words_are_sparse_where_no_scaler_is(precision, expected):
    model = Encoder()
    quicken_on_cpu(model, precision)
    assert model.words.sparse is expected
    assert isinstance(model.layers[0][1], QuickDropout)
    assert model.layers[0][1].p == 0.25


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("rate", [0.1, 0.5, 2**-16])
def test_dropout_drops_at_its_rate_and_keeps_the_mean(rate, dtype):
    torch.manual_seed(0)
    n = 1 << 20
    x = torch.ones(n - 3, dtype=dtype, requires_grad=True)  # no whole number of draws
    y = QuickDropout(rate)(x)
    dropped = (y == 0).sum().item()
    assert abs(dropped - n * rate) <= 5 * (n * rate * (1 - rate)) ** 0.5 + 1
    scale = torch.tensor(1 / (1 - rate), dtype=dtype)
    torch.testing.assert_close(y[y != 0], scale.expand(n - 3 - dropped))
    y.sum().backward()
    assert torch.equal(x.grad, y.detach())


def test_the_generator_decides_what_is_dropped():
    x = torch.ones(5, 7)
    drawn = []
    for _ in range(2):
        torch.manual_seed(3)
        drawn.append(QuickDropout(0.5)(x))
    assert torch.equal(*drawn)


@pytest.mark.parametrize("rate", [0.0, 1.0])
def test_rates_that_draw_nothing_are_those_of_torch(rate):
    x = torch.ones(4)
    assert torch.equal(QuickDropout(rate)(x), nn.Dropout(rate)(x))
    assert torch.equal(QuickDropout(0.5).eval()(x), x)
