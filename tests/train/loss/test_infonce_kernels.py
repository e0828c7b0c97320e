"""Every implementation of the loss, against float64 formulas on the same values."""

import math
import os
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch.nn import functional

from kernel_tiers import EMULATED, kernel_tiers
from mirror_rt import _core
from mirror_train import infonce
from mirror_train.loss import autograd
from mirror_train.loss.cpu_kernel import CpuKernel
from mirror_train.loss.kernel import Gathered, Inputs, Options
from mirror_train.loss.torch_kernel import TorchKernel
from native_build import build_emulated, emulated_sets
from rounding import HALF_UNIT, of_losses
from tiers import tiers

SETS = _core.instruction_sets()
# What this processor lacks is compiled for it, for the tiling is what differs.
NAMES = ["torch", *SETS, *(EMULATED + name for name in emulated_sets()["infonce/cpu"])]
FAST = ("torch", "portable", *SETS[-2:])  # the best for float32 and for bfloat16
KERNELS = kernel_tiers(NAMES, FAST)
FLOAT32_KERNELS = kernel_tiers([name for name in NAMES if not name.endswith("bf16")], FAST)
BFLOAT16_KERNELS = kernel_tiers([name for name in NAMES if name.endswith("bf16")])


@pytest.fixture(scope="session")
def emulated_core():
    return build_emulated()


@pytest.fixture
def use_kernel(request, monkeypatch):
    """use_kernel(name) makes infonce compute with that kernel; returns it and its `impl`."""

    def use(name):
        if name == "torch":
            return TorchKernel(), "torch"
        if name.startswith(EMULATED):
            module = request.getfixturevalue("emulated_core")
            kernel = CpuKernel(name.removeprefix(EMULATED), module)
        else:
            kernel = CpuKernel(name)
        monkeypatch.setattr(autograd, "kernel_named", lambda _: kernel)
        return kernel, "cpu"

    return use


def views(n, d, *, seed=0, dtype=torch.float32, hard=0, noise=0.5):
    """Two views and some hard negatives; with much noise, positives are hardly the nearest."""
    generator = torch.Generator().manual_seed(seed)
    z = torch.randn(2, n, d, generator=generator)
    z[1] = z[0] + noise * z[1]
    inputs = [z[0], z[1]]
    if hard:
        inputs.append(z[0, torch.arange(hard) % n] + torch.randn(hard, d, generator=generator))
    return [x.to(dtype).requires_grad_() for x in inputs]


def plain(inputs, temperature, variant, ids=None, dtype=torch.float64):
    """The definition, materialised, in one dtype from beginning to end."""
    units = [functional.normalize(z.to(dtype), dim=1) for z in inputs]
    n = len(inputs[0])
    ids = torch.arange(n) if ids is None else ids
    keys = torch.cat(units) if variant != "one_way" else torch.cat(units[1:])
    queries = units[0] if variant == "one_way" else torch.cat(units[:2])
    repeats = len(queries) // n
    similarities = queries @ keys.T / temperature
    row_ids, column_ids = ids.repeat(repeats), ids.repeat(repeats)
    same = torch.zeros_like(similarities, dtype=torch.bool)
    same[:, : len(column_ids)] = row_ids[:, None] == column_ids
    shift = n if repeats == 2 else 0
    index = torch.arange(len(queries))
    positives = similarities[index, (index + shift) % len(queries)]
    margins = torch.logsumexp(similarities.masked_fill(same, -math.inf), 1) - positives
    return (margins if variant == "decoupled" else functional.softplus(margins)).mean()


def gradients(loss, inputs):
    return torch.cat([g.double() for g in torch.autograd.grad(loss, inputs)])


def relative(got, expected):
    return ((got - expected).norm() / expected.norm()).item()


def check(impl, inputs, temperature, variant="ntxent", ids=None, *, loss_tol, grad_tol):
    hard = inputs[2] if len(inputs) == 3 else None
    loss = infonce(
        inputs[0],
        inputs[1],
        temperature=temperature,
        variant=variant,
        group_ids=ids,
        hard_negatives=hard,
        impl=impl,
    )
    exact = plain(inputs, temperature, variant, ids)
    assert loss.item() == pytest.approx(exact.item(), rel=loss_tol, abs=loss_tol)
    got, expected = gradients(loss, inputs), gradients(exact, inputs)
    if inputs[0].shape[1] == 1:  # then every row has unit length, and the gradient is zero
        torch.testing.assert_close(got, expected, rtol=0, atol=1e-4)
    else:
        assert relative(got, expected) < grad_tol


def tolerances(name, temperature, dtype=torch.float32):
    """Bound the relative errors of a loss and of its gradients.

    Cosines are exact to five deviations of a rounding of float32, or to those of both factors where
    products are of bfloat16. Two of them make a loss, beside some operations; the gradients have
    the weights of five, and are rounded to the dtype of the rows.
    """
    cosine = 2**-8 if name.endswith("bf16") else 5 * HALF_UNIT
    return {
        "loss_tol": 2 * cosine / temperature + 16 * HALF_UNIT,
        "grad_tol": 5 * cosine / temperature + max(16 * HALF_UNIT, torch.finfo(dtype).eps),
    }


# Rows, dimensions, hard negatives.
SIZES = [(2, 1, 0), (3, 64, 1), (97, 312, 0), (97, 64, 13), (401, 24, 0), (1, 8, 5)]
VARIANTS = ["ntxent", "decoupled", "one_way"]


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("size", tiers(SIZES, fast=[(97, 64, 13), (1, 8, 5)]), ids=str)
def test_every_variant_and_size(use_kernel, name, variant, size):
    _, impl = use_kernel(name)
    n, d, hard = size
    check(impl, views(n, d, hard=hard), 0.2, variant, **tolerances(name, 0.2))


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("size", tiers([(513, 384), (130, 768), (60, 1024)], fast=[(60, 1024)]))
def test_the_widths_of_real_models(use_kernel, name, size):
    _, impl = use_kernel(name)
    check(impl, views(*size), 0.04, **tolerances(name, 0.04))


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("variant", tiers(VARIANTS, fast=["one_way"]))
def test_many_blocks_of_rows(use_kernel, name, variant):
    """More blocks than threads, the last of them ragged."""
    _, impl = use_kernel(name)
    check(impl, views(1025, 40, hard=301), 0.1, variant, **tolerances(name, 0.1))


@pytest.mark.parametrize("name", FLOAT32_KERNELS)
@pytest.mark.parametrize("temperature", [0.2, 0.04, 0.01, 0.002])
def test_every_temperature(use_kernel, name, temperature):
    _, impl = use_kernel(name)
    check(impl, views(150, 12, noise=1.5), temperature, **tolerances(name, temperature))


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("variant", ["ntxent", "one_way"])
def test_pairs_of_one_group_are_no_negatives(use_kernel, name, variant):
    _, impl = use_kernel(name)
    ids = torch.arange(300) % 97 - 40  # three or four of each, some negative
    check(impl, views(300, 32, hard=7), 0.1, variant, ids, **tolerances(name, 0.1))


@pytest.mark.parametrize("name", FLOAT32_KERNELS)
@pytest.mark.parametrize(
    "dtype", tiers([torch.float32, torch.float16, torch.bfloat16], fast=[torch.float32])
)
@pytest.mark.parametrize("temperature", tiers([0.2, 0.04, 0.01], fast=[0.04]))
def test_error_is_at_most_twice_that_of_plain_torch(use_kernel, name, dtype, temperature):
    """But for the rounding of the results.

    Both losses are float32, and half a unit in the last place from what was computed: 2 (e + 1/2)
    + 1/2 such units, where e is torch's error. Gradients are rounded to the dtype of the rows.
    """
    _, impl = use_kernel(name)
    ours, theirs, unit = [], [], 0.0
    for seed in range(4):
        inputs = views(160, 384, seed=seed, dtype=dtype, noise=8)
        exact = plain(inputs, temperature, "ntxent")
        expected = gradients(exact, inputs)
        loss = infonce(*inputs, temperature=temperature, impl=impl)
        same = plain(inputs, temperature, "ntxent", dtype=dtype)
        ours.append((abs((loss - exact).item()), relative(gradients(loss, inputs), expected)))
        theirs.append((abs((same - exact).item()), relative(gradients(same, inputs), expected)))
        unit = max(unit, float(np.spacing(np.float32(exact.item()))))
    rounding = [1.5 * unit, torch.finfo(dtype).eps / 2]
    assert (np.max(ours, axis=0) <= 2 * np.max(theirs, axis=0) + rounding).all()


# Columns of a panel, a constant of each instruction set's own code.
PANELS = {"portable": 12, "avx2": 24, "avx512": 48, "avx512_bf16": 48}


@pytest.mark.parametrize("name", kernel_tiers(NAMES[1:]))
def test_the_instruction_set_that_is_named_is_the_one_that_runs(use_kernel, name):
    """Each step of the native code is given an execution, which knows the panels of its code.

    Of two whose panels are equal, one rounds the rows to bfloat16: by 2^-9 at most, where sums of
    eight float32 products are off by 8 * 2^-24, each divided by the temperature.
    """
    kernel, impl = use_kernel(name)
    native, isa, made = kernel._native, name.removeprefix(EMULATED), []

    def execution(named, threads):
        made.append((named, native.InfonceExecution(named, threads)))
        return made[-1][1]

    kernel._native = SimpleNamespace(**vars(native) | {"InfonceExecution": execution})
    inputs = views(5, 8)
    found = gradients(infonce(*inputs, temperature=0.1, impl=impl), inputs)
    assert {(named, one.padded_dim(1)) for named, one in made} == {(isa, PANELS[isa])}
    error = relative(found, gradients(plain(inputs, 0.1, "ntxent"), inputs))
    assert (error > 2**-16) == isa.endswith("bf16")


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", BFLOAT16_KERNELS)
def test_bfloat16_products_stay_within_the_budget_of_bfloat16_torch(use_kernel, name, dtype):
    _, impl = use_kernel(name)
    inputs = views(160, 384, dtype=dtype, noise=8)
    exact = plain(inputs, 0.04, "ntxent")
    expected = gradients(exact, inputs)
    error = relative(gradients(infonce(*inputs, temperature=0.04, impl=impl), inputs), expected)
    same = [z.detach().bfloat16().requires_grad_() for z in inputs]
    naive = relative(gradients(plain(same, 0.04, "ntxent", dtype=torch.bfloat16), same), expected)
    assert error <= 2 * naive


@pytest.mark.parametrize("name", KERNELS)
def test_a_repeat_is_bit_identical(use_kernel, name):
    _, impl = use_kernel(name)
    inputs = views(300, 96)
    runs = [infonce(*inputs, temperature=0.05, impl=impl) for _ in range(3)]
    grads = [gradients(loss, inputs) for loss in runs]
    assert runs[0] == runs[1] == runs[2]
    assert torch.equal(grads[0], grads[1])
    assert torch.equal(grads[0], grads[2])


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("threads", tiers([1, 3, 8], fast=[3]))
def test_any_number_of_threads(use_kernel, name, threads):
    _, impl = use_kernel(name)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        check(impl, views(333, 48), 0.1, **tolerances(name, 0.1))
        check(impl, views(333, 48), 0.1, "one_way", **tolerances(name, 0.1))
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("name", KERNELS)
def test_degenerate_rows(use_kernel, name):
    _, impl = use_kernel(name)
    ones = torch.ones(5, 4)  # unit rows of 1/2, which bfloat16 holds
    assert infonce(ones, ones, temperature=0.01, impl=impl).item() == pytest.approx(
        math.log(9), abs=of_losses(4, 0.01, HALF_UNIT)
    )
    z1, z2 = (z.detach() for z in views(9, 70))
    zero = z1.clone()
    zero[4] = 0
    expected = plain([zero, z2], 0.1, "ntxent").item()
    error = tolerances(name, 0.1)["loss_tol"]
    found = infonce(zero, z2, temperature=0.1, impl=impl)
    assert found.item() == pytest.approx(expected, rel=error)
    huge = z1 * torch.logspace(-11, 30, 9)[:, None]
    expected = infonce(z1, z2, temperature=0.1, impl=impl).item()
    found = infonce(huge, z2, temperature=0.1, impl=impl)
    assert found.item() == pytest.approx(expected, rel=2 * error)  # each is off


@pytest.mark.parametrize("name", FLOAT32_KERNELS)
def test_gradient_of_zero_and_tiny_rows_is_that_of_torch(use_kernel, name):
    _, impl = use_kernel(name)
    z1, z2 = (z.detach() for z in views(6, 10))
    z1[2] = 0
    z1[3] *= 1e-20
    inputs = [z.requires_grad_() for z in (z1, z2)]
    got = gradients(infonce(*inputs, temperature=0.1, impl=impl), inputs)
    expected = gradients(plain(inputs, 0.1, "ntxent"), inputs)
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_nan_and_infinity_give_nan(use_kernel, name, variant, value):
    _, impl = use_kernel(name)
    for temperature in (0.1, 0.01):
        z1, z2 = (z.detach() for z in views(120, 20))
        z1[7, 3] = value
        z1.requires_grad_()
        loss = infonce(z1, z2, temperature=temperature, variant=variant, impl=impl)
        assert loss.isnan()
        assert torch.autograd.grad(loss, z1)[0][7].isnan().all()


@pytest.mark.parametrize("name", KERNELS)
def test_rows_whose_candidates_share_their_group_count_nothing(use_kernel, name):
    kernel, _ = use_kernel(name)
    inputs = Inputs(*(z.detach() for z in views(3, 8)), None, torch.tensor([5, 5, 5]))
    for variant, loss in [("ntxent", 0.0), ("decoupled", -math.inf)]:
        options = Options(0.1, variant, "cpu")
        objective = kernel.forward(inputs, options)
        assert objective.loss == loss
        assert (objective.weights == 0).all()
        assert (objective.log_weights == -math.inf).all()
        for grad in kernel.backward(inputs, *objective[1:], torch.tensor(1.0), options):
            assert (grad == 0).all()


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("temperature", [0.1, 0.011])
@pytest.mark.parametrize(
    ("world", "n", "hard", "grouped"), [(2, 50, 0, False), (5, 52, 9, True), (1, 30, 7, False)]
)
def test_the_negatives_of_several_processes(
    use_kernel, name, variant, temperature, world, n, hard, grouped
):
    """The rows of each process against the columns of all, as each of them gathers these."""
    kernel, _ = use_kernel(name)
    if name.endswith("bf16"):
        temperature = max(temperature, 0.1)
    every = views(world * n, 33, hard=world * hard, noise=1.5)
    ids = torch.arange(world * n) // 2 % 20 if grouped else torch.arange(world * n)
    options = []
    for rank in range(world):
        z = [block.detach() for block in every]
        own_ids = ids[rank * n :][:n].clone()
        gathered = Gathered(None, world, z[0], z[1], z[2] if hard else None, ids, own_ids)
        options.append(Options(temperature, variant, "cpu", gathered))
    parts = [
        Inputs(
            *(z.detach().view(world, -1, 33)[rank] for z in every), *[None] * (3 - len(every)), None
        )
        for rank in range(world)
    ]
    results = list(map(kernel.forward, parts, options))
    joined = [r.log_weights.view(-1, n) for r in results]
    grads = []
    for own, each, result in zip(parts, options, results, strict=True):
        each.gathered.log_weights = torch.cat(joined, 1).flatten()
        given = (own, result.weights, result.log_weights, torch.tensor(1.0))
        grads.append(kernel.backward(*given, each))
    got = torch.cat([torch.cat(blocks).double() for blocks in zip(*grads, strict=True)])

    exact = plain(every, temperature, variant, ids)
    tolerance = tolerances(name, temperature)
    loss = sum(result.loss for result in results)
    assert loss.item() == pytest.approx(
        exact.item(), rel=tolerance["loss_tol"], abs=tolerance["loss_tol"]
    )
    expected = world * gradients(exact, every)  # as DistributedDataParallel takes their mean
    assert relative(got, expected) < tolerance["grad_tol"]


@pytest.mark.parametrize("name", KERNELS)
def test_strided_input_and_a_scaled_loss(use_kernel, name):
    _, impl = use_kernel(name)
    z = torch.randn(40, 2, 30, generator=torch.Generator().manual_seed(1)).requires_grad_()
    loss = infonce(z[:, 0], z[:, 1], temperature=0.1, impl=impl)
    (strided,) = torch.autograd.grad(loss * 1024, z)
    z1, z2 = (z[:, i].detach().contiguous().requires_grad_() for i in (0, 1))
    dense = torch.autograd.grad(infonce(z1, z2, temperature=0.1, impl=impl), (z1, z2))
    torch.testing.assert_close(strided, 1024 * torch.stack(dense, 1), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("impl", ["torch", "cpu"])
def test_registered_operator(impl):
    from mirror_train.loss.autograd import _operator

    ids = torch.tensor([1, 2, 3, 3, 5])
    for inputs in (views(5, 8), views(5, 8, hard=3)):
        z1, z2, hard = inputs if len(inputs) == 3 else (*inputs, None)
        for variant in ("ntxent", "one_way"):
            torch.library.opcheck(_operator, (z1, z2, hard, ids, 0.1, variant, impl))


@pytest.mark.parametrize("impl", ["torch", "cpu"])
def test_under_torch_compile(impl):
    inputs = views(12, 16, hard=2)

    def loss(z1, z2, hard):
        z1 = 2 * z1  # something for the compiler to do
        return infonce(z1, z2, temperature=0.1, hard_negatives=hard, impl=impl) + 1

    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")(*inputs)
    assert compiled.item() == pytest.approx(loss(*inputs).item(), rel=1e-6)
    torch.testing.assert_close(
        gradients(compiled, inputs), gradients(loss(*inputs), inputs), rtol=1e-5, atol=1e-7
    )


MEMORY = """
import sys, torch
from mirror_train import infonce
from pathlib import Path
def resident(field):
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(field)) / 1024
impl, n, d = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
z = [torch.randn(n, d).requires_grad_() for _ in range(2)]
warm = [torch.randn(64, d).requires_grad_() for _ in range(2)]
infonce(*warm, temperature=0.04, impl=impl).backward()
Path("/proc/self/clear_refs").write_text("5")  # resets the high-water mark
before = resident("VmRSS")
infonce(*z, temperature=0.04, impl=impl).backward()
print(resident("VmHWM") - before)
"""


def peak_megabytes(impl, n, d):
    done = subprocess.run(
        [sys.executable, "-c", MEMORY, impl, str(n), str(d)],
        capture_output=True,
        text=True,
        check=True,
        timeout=600,
        # What is freed goes back at once: what the allocator would keep differs between processes.
        env={**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536"},
    )
    return float(done.stdout)


@pytest.mark.full
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("impl", ["torch", "cpu"])
def test_memory_is_linear_in_the_batch(impl):
    """Of 8,192 rows of 192 dimensions (6 MB) the cosines alone would be 268 MB in float32."""
    assert peak_megabytes(impl, 4096, 192) < 100
