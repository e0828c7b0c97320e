"""What infonce does not differentiate is refused, and never a gradient of zero."""

import pytest
import torch

from mirror_train import infonce

pytestmark = pytest.mark.parametrize("impl", ["torch", "cpu"])


@pytest.fixture
def views():
    torch.manual_seed(0)
    return [torch.randn(6, 8, requires_grad=True) for _ in range(2)]


def test_a_temperature_to_train(views, impl):
    for tensor in (torch.tensor(0.1), torch.nn.Parameter(torch.tensor(0.1))):
        if tensor.requires_grad:
            with pytest.raises(ValueError, match="temperature must be a number, got a tensor that"):
                infonce(*views, temperature=tensor, impl=impl)
        else:
            assert infonce(*views, temperature=tensor, impl=impl).isfinite()


def test_the_gradient_of_the_gradient(views, impl):
    loss = infonce(*views, temperature=0.1, impl=impl)
    once = torch.autograd.grad(loss, views, retain_graph=True)
    again = torch.autograd.grad(loss, views, create_graph=True)
    for expected, found in zip(once, again, strict=True):
        torch.testing.assert_close(found, expected, rtol=0, atol=0)
    with pytest.raises(RuntimeError, match="this loss has no second derivative"):
        again[1].square().sum().backward()
