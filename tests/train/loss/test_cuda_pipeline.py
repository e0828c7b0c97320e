"""The ring of the tma core: the emulation finds each mistake in its use of barriers."""

import re

import pytest
import torch

from mirror_train.loss.cuda_kernel import CudaKernel
from mirror_train.loss.cuda_rows import CudaRows
from mirror_train.loss.kernel import Negatives
from mirror_train.loss.torch_kernel import TorchKernel

ROWS, DIM = 400, 330  # six stages: more than the ring has, and no multiple of them


@pytest.fixture
def logsumexp(emulation, monkeypatch):
    """Compute the logsumexp of two tiles side by side, as the tma core does and as it should be."""
    monkeypatch.setenv("MIRROR_RT_CUDA_CORE", "tma")
    block = torch.randn(ROWS, DIM, generator=torch.Generator().manual_seed(0)).half()
    negatives, options = Negatives(ROWS, ROWS, ROWS), {"scale": 5.0}
    truth = TorchKernel()
    rows64 = truth.normalize([block.double()])
    expected = truth.logsumexp(rows64, rows64, negatives, **options)
    kernel = CudaKernel(emulation)
    rows: CudaRows = kernel.normalize([block])
    return lambda: (kernel.logsumexp(rows, rows, negatives, **options).double(), expected)


def outcome(logsumexp):
    """Return what is wrong: an error, or the result."""
    try:
        found, expected = logsumexp()
    except RuntimeError as error:
        return str(error)
    return "right" if torch.allclose(found, expected, rtol=0, atol=1e-3) else "wrong"


def test_without_a_mistake(logsumexp):
    assert outcome(logsumexp) == "right"


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
    ],
)
def test_a_mistake_is_found(logsumexp, monkeypatch, fault, message):
    """It is an error, or the result is wrong, of what is not yet or no more in the ring."""
    monkeypatch.setenv("MIRROR_CUDA_EMULATION_FAULT", fault)
    assert re.search(message, outcome(logsumexp))
