"""Soft targets, against float64 formulas on the same values, with every instruction set."""

import math
import sys

import pytest
import torch
from torch.nn import functional

from kernel_tiers import EMULATED, kernel_tiers
from mirror_rt import _core
from mirror_train.loss.cpu_kernel import CpuKernel
from mirror_train.loss.cuda_kernel import CudaKernel
from mirror_train.loss.infonce import infonce
from mirror_train.loss.soft_targets import soft_targets
from native_build import build_emulated, emulated_sets

SETS = _core.instruction_sets()
NAMES = [*SETS, *(EMULATED + name for name in emulated_sets()["infonce/cpu"])]
KERNELS = kernel_tiers(NAMES, ("portable", *SETS[-2:]))


@pytest.fixture
def use_set(monkeypatch):
    def use(name):
        if name.startswith(EMULATED):
            kernel = CpuKernel(name.removeprefix(EMULATED), build_emulated())
        else:
            kernel = CpuKernel(name)
        monkeypatch.setattr(sys.modules[soft_targets.__module__], "kernel_named", lambda _: kernel)

    return use


def vectors(n, *, views=2, dims=(40, 24), dtype=torch.float32, seed=0):
    generator = torch.Generator().manual_seed(seed)
    first = torch.randn(n, dims[0], generator=generator)
    others = [first + 0.5 * torch.randn(n, dims[0], generator=generator) for _ in range(views - 1)]
    teacher = torch.randn(n, dims[1], generator=generator)
    return [one.to(dtype).requires_grad_() for one in (first, *others)], teacher


def plain(views, teacher, *, temperature, teacher_temperature=None, weight=1.0, group_ids=None):
    """The definition, materialised, in float64."""
    n = len(teacher)
    ids = (torch.arange(n) if group_ids is None else group_ids).repeat(len(views))
    z = functional.normalize(torch.cat(views).double(), dim=1)
    t = functional.normalize(teacher.double(), dim=1).repeat(len(views), 1)
    same = ids[:, None] == ids
    s = (z @ z.T / temperature).masked_fill(same, -math.inf)
    t = (t @ t.T / (teacher_temperature or temperature)).masked_fill(same, -math.inf)
    followed = ~same.all(1)
    s, t, kept = s[followed], t[followed], ~same[followed]
    q, p = s.log_softmax(1), t.log_softmax(1)
    loss = weight * (p.exp() * (p - q)).masked_fill(~kept, 0).sum() / len(ids)
    if weight == 1:
        return loss
    positives = (z * z.roll(n, 0)).sum(1) / temperature
    margins = torch.logsumexp((z @ z.T / temperature).masked_fill(same, -math.inf), 1) - positives
    return loss + (1 - weight) * functional.softplus(margins).mean()


def check(given, *, loss_tol=3e-6, grad_tol=1e-5, **options):
    views, teacher = given
    loss, exact = soft_targets(views, teacher, **options), plain(views, teacher, **options)
    assert loss.item() == pytest.approx(exact.item(), rel=loss_tol, abs=loss_tol)
    got, expected = (
        torch.cat([g.double() for g in torch.autograd.grad(one, views)]) for one in (loss, exact)
    )
    # One view of two strings has no choice to make: the gradient is 0, but for rounding.
    assert (got - expected).norm() < grad_tol * max(expected.norm(), 0.5)


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("views", [1, 2])
def test_value_and_gradient_are_those_of_float64(use_set, name, views):
    use_set(name)
    tolerances = {"loss_tol": 1e-2, "grad_tol": 2e-2} if name.endswith("bf16") else {}
    check(vectors(150, views=views), temperature=0.1, **tolerances)
    check(vectors(37, views=views), temperature=0.2, teacher_temperature=0.05, **tolerances)
    if views == 2:
        check(vectors(150), temperature=0.1, weight=0.3, **tolerances)


@pytest.mark.parametrize("n", [2, 3, 97, 401])
def test_any_number_of_strings(n):
    check(vectors(n), temperature=0.1, weight=0.5)
    check(vectors(n, views=1, dims=(33, 500)), temperature=0.1)


def test_low_temperatures_of_either_side():
    check(vectors(60), temperature=0.01, teacher_temperature=0.1, loss_tol=6e-5, grad_tol=1e-4)
    low = {"loss_tol": 6e-5, "grad_tol": 1e-4}  # cosines are exact to 3e-7
    check(vectors(60), temperature=0.1, teacher_temperature=0.01, weight=0.5, **low)
    check(vectors(60), temperature=0.02, loss_tol=1e-5, grad_tol=1e-4)


def test_groups_are_left_out_and_a_row_without_others_counts_as_0():
    ids = torch.arange(50) // 3
    check(vectors(50), temperature=0.1, weight=0.4, group_ids=ids)
    check(vectors(50, views=1), temperature=0.1, group_ids=ids)


def test_16_bits_and_a_student_as_good_as_its_teacher():
    views, teacher = vectors(64, dtype=torch.bfloat16)
    loss = soft_targets(views, teacher, temperature=0.1, weight=0.5)
    loss.backward()
    assert views[0].grad.dtype == torch.bfloat16
    (z,), _ = vectors(64, views=1)
    assert soft_targets([z], z, temperature=0.1).item() == pytest.approx(0, abs=1e-6)


def test_the_weight_0_of_soft_targets_is_infonce_in_the_limit():
    views, teacher = vectors(64)
    near = soft_targets(views, teacher, temperature=0.1, weight=1e-7)
    assert near.item() == pytest.approx(infonce(*views, temperature=0.1).item(), rel=1e-5)


def test_the_same_call_gives_the_same_bits_with_any_number_of_threads():
    def run():
        views, teacher = vectors(500)
        loss = soft_targets(views, teacher, temperature=0.1, weight=0.5)
        loss.backward()
        return loss, *(view.grad for view in views)

    for one, other in zip(run(), run(), strict=True):
        assert torch.equal(one, other)


def test_nan_and_infinity_are_passed_on():
    for spoilt in range(2):
        views, teacher = vectors(20)
        with torch.no_grad():
            (views[0], teacher)[spoilt][3, 1] = math.inf if spoilt else math.nan
        loss = soft_targets(views, teacher, temperature=0.1, weight=0.5)
        assert loss.isnan()


def test_what_cannot_be_used_is_named():
    views, teacher = vectors(8)
    for options, wrong in (
        ({"weight": 0.0}, "weight must be above 0 and at most 1, got 0.0"),
        ({"weight": math.nan}, "weight must be above 0"),
        ({"temperature": 0.0}, "temperature must be a finite number"),
        ({"teacher_temperature": math.inf}, "temperature must be a finite number"),
        ({"views": views * 2}, "one view or two, got 4"),
        ({"views": views[:1], "weight": 0.5}, "contrasts two views, got one"),
        ({"teacher": teacher[:7]}, r"teacher must be floating point \[8, E\]"),
        ({"teacher": teacher.long()}, "got torch.int64"),
        ({"teacher": teacher[:, :0]}, "0 dimensions"),
        ({"group_ids": torch.zeros(8, dtype=torch.int64)}, "one group id"),
    ):
        given = {"views": views, "teacher": teacher, "temperature": 0.1} | options
        with pytest.raises(ValueError, match=wrong):
            soft_targets(given.pop("views"), given.pop("teacher"), **given)


def test_the_gradient_has_no_gradient():
    views, teacher = vectors(8)
    loss = soft_targets(views, teacher, temperature=0.1)
    once = torch.autograd.grad(loss, views, retain_graph=True)
    again = torch.autograd.grad(loss, views, create_graph=True)
    for expected, found in zip(once, again, strict=True):
        assert torch.equal(expected, found)
    with pytest.raises(RuntimeError, match="this loss has no second derivative"):
        again[1].square().sum().backward()


def test_views_that_are_changed_before_the_gradient_are_refused():
    views, teacher = vectors(8)
    loss = soft_targets(views, teacher, temperature=0.1)
    with torch.no_grad():
        views[0].zero_()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


@pytest.fixture
def on_cuda(emulation, guarded, core, monkeypatch):
    """The CUDA kernels on the host, by either core, in several waves of few tiles."""

    def use(panel_tiles=0):
        kernel = CudaKernel(emulation, panel_tiles=panel_tiles, logsumexp_tiles=panel_tiles)
        monkeypatch.setattr(sys.modules[soft_targets.__module__], "kernel_named", lambda _: kernel)

    return use


@pytest.mark.full
@pytest.mark.compiled
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("views", [1, 2])
def test_cuda_gives_the_value_and_gradient_of_float64(on_cuda, dtype, views):
    # Of 16-bit input the rounding of the unit rows times 1 / temperature, and that of the result.
    bounds = {torch.float32: (3e-6, 1e-5), torch.bfloat16: (2e-3, 5e-3)}[dtype]
    bounds = dict(zip(("loss_tol", "grad_tol"), bounds, strict=True))
    for panel_tiles, n, options in (
        (0, 150, {"temperature": 0.1}),
        (1, 150, {"temperature": 0.2, "teacher_temperature": 0.05}),
        (4, 290, {"temperature": 0.1, "weight": 0.4 if views == 2 else 1.0}),
        (0, 50, {"temperature": 0.1, "group_ids": torch.arange(50) // 3}),
        (1, 3, {"temperature": 0.1}),
    ):
        on_cuda(panel_tiles)
        check(vectors(n, views=views, dtype=dtype, dims=(40, 150)), **options, **bounds)


@pytest.mark.full
@pytest.mark.compiled
def test_cuda_at_low_temperatures_of_either_side(on_cuda):
    on_cuda()
    low = {"loss_tol": 6e-5, "grad_tol": 1e-4}
    check(vectors(140), temperature=0.01, teacher_temperature=0.1, **low)
    check(vectors(140), temperature=0.1, teacher_temperature=0.01, weight=0.5, **low)


@pytest.mark.full
@pytest.mark.compiled
def test_cuda_passes_nan_on_and_gives_the_same_bits(on_cuda):
    on_cuda(1)
    runs = []
    for _ in range(2):
        views, teacher = vectors(200)
        loss = soft_targets(views, teacher, temperature=0.1, weight=0.5)
        loss.backward()
        runs.append((loss.detach(), *(view.grad for view in views)))
    assert all(torch.equal(one, other) for one, other in zip(*runs, strict=True))
    for spoilt in range(2):
        views, teacher = vectors(200)
        with torch.no_grad():
            (views[0], teacher)[spoilt][150, 1] = math.inf if spoilt else math.nan
        assert soft_targets(views, teacher, temperature=0.1, weight=0.5).isnan()
