"""The ring of the tma core: the emulation finds each mistake in its use of barriers."""

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


def test_without_a_mistake(logsumexp):
    torch.testing.assert_close(*logsumexp(), rtol=0, atol=1e-3)


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("no arrival", "deadlock"),
        ("two arrivals", None),
        ("too few bytes", None),
        ("too many bytes", "deadlock"),
        ("producer's phase", "deadlock"),
        ("consumers' phase", None),
        ("no wait for products", None),
    ],
)
def test_a_mistake_is_found(logsumexp, monkeypatch, fault, message):
    """It is an error, or the results are wrong, of what is not yet or no more in the ring."""
    monkeypatch.setenv("MIRROR_CUDA_EMULATION_FAULT", fault)
    try:
        found, expected = logsumexp()
    except RuntimeError as error:
        assert str(error).startswith("logsumexp_tiles: ")
        assert message is None or message in str(error)
    else:
        assert message is None
        assert not torch.allclose(found, expected, rtol=0, atol=1e-3)
