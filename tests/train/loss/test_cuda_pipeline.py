"""The ring of the tma core: the emulation finds each mistake in its use of barriers."""

import re

import pytest
import torch

from mirror_train.loss.cuda_kernel import CudaKernel
from mirror_train.loss.kernel import Inputs, Options
from mirror_train.loss.torch_kernel import TorchKernel

pytestmark = [pytest.mark.full, pytest.mark.compiled]
N, DIM = 200, 330  # six stages: more than the ring has, and no multiple of them
OPTIONS = Options(0.2, "ntxent", "cuda")


@pytest.fixture
def losses(emulation, monkeypatch):
    """Compute the weights of two tiles side by side, as the tma core does and as it should be."""
    monkeypatch.setenv("MIRROR_RT_CUDA_CORE", "tma")
    z = torch.randn(2, N, DIM, generator=torch.Generator().manual_seed(0)).half()
    expected = TorchKernel().forward(Inputs(*z.double(), None, None), OPTIONS)
    kernel = CudaKernel(emulation)
    return lambda: (kernel.forward(Inputs(*z, None, None), OPTIONS).log_weights, expected[2])


def outcome(losses):
    """Return what is wrong: an error, or the result."""
    try:
        found, expected = losses()
    except RuntimeError as error:
        return str(error)
    return "right" if torch.allclose(found.double(), expected, rtol=0, atol=2e-3) else "wrong"


@pytest.mark.parametrize("backwards", [False, True])
def test_without_a_mistake(losses, monkeypatch, backwards):
    """In either order of the threads one warpgroup begins two stages before the other."""
    monkeypatch.setenv("MIRROR_CUDA_EMULATION_APART", "2")
    if backwards:
        monkeypatch.setenv("MIRROR_CUDA_EMULATION_BACKWARDS", "1")
    assert outcome(losses) == "right"


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("no arrival", "deadlock"),
        ("two arrivals", "more arrivals|changed|wrong"),
        ("too few bytes", "changed|wrong"),
        ("too many bytes", "deadlock"),
        ("producer's phase", "deadlock"),
        ("consumers' phase", "changed|wrong"),
        ("no wait for products", "changed|wrong"),
        ("no word from the first", "deadlock"),
        ("two words from the first", "incomplete"),
        ("not apart", "not apart"),
    ],
)
def test_a_mistake_is_found(losses, monkeypatch, fault, message):
    """It is an error, or the result is wrong, of what is not yet or no more in the ring."""
    monkeypatch.setenv("MIRROR_CUDA_EMULATION_FAULT", fault)
    if fault == "not apart":  # then the second warpgroup comes first
        monkeypatch.setenv("MIRROR_CUDA_EMULATION_BACKWARDS", "1")
    assert re.search(message, outcome(losses))
