import math

import pytest
import torch
from torch.nn import functional

from mirror_train import infonce
from rounding import HALF_UNIT, of_losses

CPU = {"impl": "cpu"}
HARD = {"hard_negatives": torch.ones(2, 4)}


def views(n, d, *, seed=0, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    z = torch.randn(2, n, d, generator=generator, dtype=torch.float64)
    z[1] = z[0] + 0.3 * z[1]
    return z[0].to(dtype), z[1].to(dtype)


@pytest.mark.parametrize("variant", ["ntxent", "decoupled"])
def test_gradient_by_finite_differences(variant):
    z1, z2 = (z.requires_grad_() for z in views(4, 5))
    assert torch.autograd.gradcheck(
        lambda a, b: infonce(a, b, temperature=0.3, variant=variant), (z1, z2)
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_lower_precisions_are_computed_in_float32(dtype):
    z1, z2 = views(50, 64, dtype=dtype)
    z1.requires_grad_()
    got = infonce(z1, z2, temperature=0.05)
    assert got.dtype == torch.float32
    exact = infonce(z1.detach().double(), z2.double(), temperature=0.05)
    torch.testing.assert_close(got.double(), exact, rtol=0, atol=of_losses(64, 0.05, HALF_UNIT))
    got.backward()
    assert z1.grad.dtype == dtype


def test_under_autocast_it_stays_in_float32():
    z1, z2 = views(50, 64, dtype=torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        got = infonce(z1, z2, temperature=0.05)
    assert got == infonce(z1, z2, temperature=0.05)


def test_one_pair_with_hard_negatives_and_one_group_with_them():
    z1, z2 = views(1, 4)
    hard = views(3, 4)[0]
    got = infonce(z1, z2, temperature=0.1, hard_negatives=hard)
    rows = [functional.normalize(z, dim=1) for z in (z1, z2, hard)]
    losses = []
    for query, positive in ((rows[0], rows[1]), (rows[1], rows[0])):
        logits = torch.cat([query @ positive.T, query @ rows[2].T], 1) / 0.1
        losses.append(functional.cross_entropy(logits, torch.tensor([0])))
    torch.testing.assert_close(got, torch.stack(losses).mean(), rtol=0, atol=of_losses(4, 0.1))
    z1, z2 = views(3, 4)
    one_group = torch.zeros(3, dtype=torch.int64)
    assert infonce(z1, z2, temperature=0.1, hard_negatives=hard, group_ids=one_group).isfinite()


def test_auto_takes_the_kernel_of_the_device():
    from mirror_train.loss.dispatch import choose_kernel

    assert choose_kernel("auto", torch.device("cpu"), torch.float32) == "cpu"
    assert choose_kernel("auto", torch.device("cpu"), torch.float64) == "torch"


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_default_dtype_of_torch_does_not_matter(dtype):
    z1, z2 = (z.requires_grad_() for z in views(20, 16, dtype=torch.float32))
    expected = infonce(z1, z2, temperature=0.1, impl="cpu")
    gradient = torch.autograd.grad(expected, z1)[0]
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        got = infonce(z1, z2, temperature=0.1, impl="cpu")
        assert got.dtype == torch.float32
        assert got == expected
        assert torch.equal(torch.autograd.grad(got, z1)[0], gradient)
    finally:
        torch.set_default_dtype(before)


def test_instruction_set_from_the_environment(monkeypatch):
    from mirror_train.loss.cpu_kernel import CpuKernel

    monkeypatch.setenv("MIRROR_RT_INSTRUCTION_SET", "portable")
    CpuKernel()
    monkeypatch.setenv("MIRROR_RT_INSTRUCTION_SET", "mmx")
    with pytest.raises(ValueError, match=r"this processor runs portable.*, not 'mmx'"):
        CpuKernel()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: (torch.ones(1, 4), torch.ones(1, 4), {}), "at least 2 pairs .* got N = 1"),
        (lambda: (torch.ones(3, 4), torch.ones(2, 4), {}), r"got \(3, 4\) and \(2, 4\)"),
        (lambda: (torch.ones(3), torch.ones(3), {}), r"must both be \[N, D\]"),
        (lambda: (torch.ones(3, 0), torch.ones(3, 0), {}), "D = 0"),
        (lambda: (torch.ones(3, 4).int(), torch.ones(3, 4).int(), {}), "floating-point dtype"),
        (lambda: (torch.ones(3, 4).half(), torch.ones(3, 4), {}), "share a floating-point dtype"),
        (lambda: (torch.ones(3, 4), torch.ones(3, 4, device="meta"), {}), "z2 is on meta"),
        (lambda: (*views(3, 4), {"temperature": 0}), "temperature must be .* got 0"),
        (lambda: (*views(3, 4), {"temperature": -1}), "got -1"),
        (lambda: (*views(3, 4), {"temperature": math.nan}), "got nan"),
        (lambda: (*views(3, 4), {"temperature": 1e-40}), "got 1e-40"),
        (lambda: (*views(3, 4), {"variant": "triplet"}), "variant must be one of .* 'triplet'"),
        (lambda: (*views(3, 4), {"impl": "magic"}), "impl must be .* got 'magic'"),
        (lambda: (*views(3, 4), {"impl": "cuda"}), "impl='cuda' cannot run: "),
        (
            lambda: (*views(3, 4), {"impl": "cpu"}),
            r"impl='cpu' cannot run: it has no torch.float64",
        ),
        (
            lambda: (torch.ones(3, 4, device="meta"), torch.ones(3, 4, device="meta"), CPU),
            "impl='cpu' cannot run: the embeddings are on meta",
        ),
        (
            lambda: (*views(3, 4), {"hard_negatives": torch.ones(2, 5).double()}),
            r"hard_negatives must be \[H, 4\] like z1, got \(2, 5\)",
        ),
        (
            lambda: (*views(3, 4), {"hard_negatives": torch.ones(2, 4)}),
            "z1 and hard_negatives must share .* torch.float64, torch.float32",
        ),
        (
            lambda: (*views(3, 4), {"hard_negatives": torch.ones(2, 4, device="meta").double()}),
            "z1 is on cpu but hard_negatives is on meta",
        ),
        (lambda: (torch.ones(0, 4), torch.ones(0, 4), HARD), "got N = 0"),
        (lambda: (*views(3, 4), {"group_ids": torch.zeros(2).long()}), r"int64 \[3\]"),
        (lambda: (*views(3, 4), {"group_ids": torch.arange(3.0)}), "got torch.float32"),
        (lambda: (*views(3, 4), {"group_ids": torch.zeros(3).long()}), "leaves no negatives"),
    ],
)
def test_bad_input_names_what_it_got(make, message):
    z1, z2, options = make()
    with pytest.raises(ValueError, match=message):
        infonce(z1, z2, **({"temperature": 0.1} | options))
