"""The CUDA kernels on the host (tests/support/cuda_emulation), against float64 in plain PyTorch."""

import importlib
import importlib.util
import math

import pytest
import torch

from mirror_train import infonce
from mirror_train.loss import cuda_extension
from mirror_train.loss.cuda_extension import unavailable_reason
from mirror_train.loss.cuda_kernel import CudaKernel
from mirror_train.loss.cuda_rows import CudaRows
from mirror_train.loss.cuda_waves import Waves
from mirror_train.loss.kernel import Inputs, Negatives, Pairs
from mirror_train.loss.torch_kernel import TorchKernel

GUARD = 256  # bytes before and after every workspace and result
# Errors of gradients, relative to their norm: of 16-bit input the rounding of the unit rows times
# 1 / temperature, and that of the result.
TOLERANCE = {torch.float32: 1e-5, torch.float16: 3e-3, torch.bfloat16: 5e-3}


@pytest.fixture
def guarded(monkeypatch):
    """What torch.empty and empty_like give is NaN, and nothing may write beside it."""
    empty, buffers = torch.empty, []

    def allocate(*shape, dtype=torch.float32, device=None):
        shape = shape[0] if len(shape) == 1 and not isinstance(shape[0], int) else shape
        size = math.prod(shape) * dtype.itemsize
        buffer = empty(size + 2 * GUARD, dtype=torch.uint8).fill_(0xFF)
        buffers.append(buffer)
        return buffer[GUARD : GUARD + size].view(dtype).view(shape)

    monkeypatch.setattr(torch, "empty", allocate)
    monkeypatch.setattr(torch, "empty_like", lambda z: allocate(z.shape, dtype=z.dtype))
    yield
    monkeypatch.undo()
    for buffer in buffers:
        assert (buffer[:GUARD] == 0xFF).all()
        assert (buffer[-GUARD:] == 0xFF).all()


@pytest.fixture
def kernel(emulation, guarded):
    return CudaKernel(emulation)


@pytest.fixture(params=["mma", "wgmma", "tma"])
def core(request, monkeypatch):
    monkeypatch.setenv("MIRROR_RT_CUDA_CORE", request.param)


def inside_nan(tensor):
    """The same values with NaN around them in memory, and no better aligned than its dtype."""
    buffer = torch.full((tensor.numel() + 130,), math.nan, dtype=tensor.dtype)
    inner = buffer[65:-65].view(tensor.shape)
    return inner.copy_(tensor)


def rows(*shape, seed=0, dtype=torch.float32):
    generator = torch.Generator().manual_seed(seed)
    return inside_nan(torch.randn(*shape, generator=generator).to(dtype))


def views(n, d, *, dtype=torch.float32, hard=0, seed=0):
    z1 = rows(n, d, seed=seed)
    z2 = 0.3 * z1 + rows(n, d, seed=seed + 1)
    blocks = [z1, z2, rows(hard, d, seed=2)] if hard else [z1, z2]
    return [inside_nan(block.to(dtype)) for block in blocks]


def groups(n):
    return torch.arange(n) // 2 * (1 << 40)  # ids of neighbours are equal; all are in 64 bits


@pytest.fixture
def evaluate(monkeypatch):
    """Loss and gradients of a kernel."""

    def run(kernel, blocks, *, grad_output=1.0, **options):
        monkeypatch.setattr("mirror_train.loss.steps.kernel_named", lambda name: kernel)
        leaves = [block.detach().requires_grad_() for block in blocks]
        hard = leaves[2] if len(leaves) == 3 else None
        loss = infonce(leaves[0], leaves[1], hard_negatives=hard, impl="torch", **options)
        return loss.detach(), torch.autograd.grad(loss, leaves, torch.tensor(grad_output).to(loss))

    return run


def relative(actual, expected):
    actual, expected = torch.cat(list(actual)).double(), torch.cat(list(expected))
    return float((actual - expected).norm() / expected.norm())


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize(
    ("n", "d", "temperature", "variant", "hard", "grouped"),
    [
        (3, 64, 0.2, "ntxent", 0, False),
        (97, 24, 0.2, "decoupled", 0, True),
        (97, 312, 0.04, "ntxent", 20, True),
        (48, 768, 0.04, "one_way", 70, False),
        (200, 64, 0.04, "ntxent", 0, False),
        (140, 33, 0.2, "one_way", 0, True),
        (20, 1024, 0.2, "ntxent", 0, False),
    ],
)
def test_loss_and_gradients(kernel, evaluate, dtype, n, d, temperature, variant, hard, grouped):
    blocks = views(n, d, dtype=dtype, hard=hard)
    options = {
        "temperature": temperature,
        "variant": variant,
        "group_ids": groups(n) if grouped else None,
        "grad_output": 3.0,
    }
    loss, grads = evaluate(kernel, blocks, **options)
    truth, expected = evaluate(TorchKernel(), [block.double() for block in blocks], **options)
    assert loss.dtype == torch.float32
    assert [(grad.shape, grad.dtype) for grad in grads] == [(b.shape, b.dtype) for b in blocks]
    torch.testing.assert_close(loss.double(), truth, rtol=TOLERANCE[dtype] / 10, atol=1e-6)
    assert relative(grads, expected) < TOLERANCE[dtype]


@pytest.mark.usefixtures("core")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(("panel_tiles", "logsumexp_tiles"), [(1, 1), (4, 2)])
@pytest.mark.parametrize(("variant", "hard"), [("ntxent", 0), ("ntxent", 130), ("one_way", 20)])
def test_many_waves(
    emulation, guarded, evaluate, dtype, panel_tiles, logsumexp_tiles, variant, hard
):
    blocks = views(140, 20, dtype=dtype, hard=hard)
    waves = CudaKernel(emulation, waves=Waves(panel_tiles, logsumexp_tiles))
    options = {"temperature": 0.2, "variant": variant}
    loss, grads = evaluate(waves, blocks, **options)
    truth, expected = evaluate(TorchKernel(), [block.double() for block in blocks], **options)
    torch.testing.assert_close(loss.double(), truth, rtol=TOLERANCE[dtype] / 10, atol=1e-6)
    assert relative(grads, expected) < TOLERANCE[dtype]


@pytest.mark.usefixtures("core")
@pytest.mark.parametrize("temperature", [0.2, 0.02, 0.0195, 0.01])
@pytest.mark.parametrize(("n", "d"), [(97, 64), (20, 768)])
def test_fp32_is_as_precise_as_torch(kernel, evaluate, n, d, temperature):
    options = {"temperature": temperature, "variant": "ntxent"}
    errors = []
    for seed in (10, 20):
        blocks = views(n, d, seed=seed)
        truth, expected = evaluate(TorchKernel(), [block.double() for block in blocks], **options)
        loss, grads = evaluate(kernel, blocks, **options)
        plain_loss, plain_grads = evaluate(TorchKernel(), blocks, **options)
        rounding = 2**-24 / temperature  # of a single score
        assert abs(loss - truth) <= 2 * abs(plain_loss - truth) + rounding
        errors.append((relative(grads, expected), relative(plain_grads, expected)))
    ours, plain = map(sum, zip(*errors, strict=True))
    assert ours <= 2 * plain


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
def test_normalize(kernel, dtype):
    blocks = [rows(n, 40, seed=n, dtype=dtype) for n in (5, 130, 9)]
    got, expected = kernel.normalize(blocks), TorchKernel().normalize([b.double() for b in blocks])
    unit = got.unit.double().view(len(got.unit), got.parts, got.stride).sum(1) / 2**15
    precision = 2**-22 if dtype == torch.float32 else 2**-10
    torch.testing.assert_close(unit[:144, :40], expected.unit, rtol=precision, atol=2**-30)
    assert not unit[144:].any()
    assert not unit[:, 40:].any()
    torch.testing.assert_close(got.norms.double(), expected.norms[:, 0], rtol=2**-23, atol=0)


@pytest.mark.parametrize(
    ("variant", "hard", "grouped", "dtype"),
    [
        ("ntxent", 9, True, torch.float32),
        ("decoupled", 0, False, torch.bfloat16),
        ("one_way", 70, True, torch.float32),
        ("one_way", 0, False, torch.float16),
    ],
)
def test_a_pass_is_its_steps(kernel, evaluate, variant, hard, grouped, dtype):
    blocks = views(140, 40, dtype=dtype, hard=hard)
    ids = groups(140) if grouped else None
    options = {"temperature": 0.04, "variant": variant, "group_ids": ids, "grad_output": 3.0}
    loss, grads = evaluate(kernel, blocks, **options)
    kernel.passes = None
    expected_loss, expected = evaluate(kernel, blocks, **options)
    assert torch.equal(loss, expected_loss)
    assert all(torch.equal(x, y) for x, y in zip(grads, expected, strict=True))


@pytest.mark.usefixtures("core")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize("temperature", [0.2, 0.02, 0.0195, 0.005])
def test_negatives_as_far_away_as_can_be(kernel, evaluate, temperature, dtype):
    """The sums of exponentials are the least and the largest that there are."""
    x = torch.eye(16, dtype=dtype)[:1]
    for variant, z in [("decoupled", [x, -x]), ("ntxent", [x, x, -x, x])]:
        z = torch.cat(z)
        blocks = [z.clone(), z.clone()]
        options = {"temperature": temperature, "variant": variant}
        loss, grads = evaluate(kernel, blocks, **options)
        truth, _ = evaluate(TorchKernel(), [block.double() for block in blocks], **options)
        torch.testing.assert_close(loss.double(), truth, rtol=1e-6, atol=1e-6)
        assert torch.cat(list(grads)).abs().max() < 1e-4 / temperature  # it is 0


RECTANGLES = {
    "strings": Negatives(100, 260, 130),
    "ids": Negatives(100, 260, 1, torch.arange(100) % 7, torch.arange(260) % 11),
    "hard rows": Negatives(60, 129, 60),
}


@pytest.mark.parametrize("name", RECTANGLES)
@pytest.mark.parametrize("transposed", [False, True])
def test_rectangular(kernel, name, transposed):
    """As with negatives from other processes: all tiles, and the sums of both sides."""
    negatives, sizes, scale = RECTANGLES[name], (110, 300), 5.0
    if transposed:
        negatives = Negatives(
            negatives.n_columns, negatives.n_rows, negatives.period, negatives.column_ids,
            negatives.row_ids,
        )  # fmt: skip
        sizes = sizes[::-1]
    inputs = [[rows(n, 24, seed=n)] for n in sizes]
    a, b = rows(negatives.n_rows, seed=3) - 9, rows(negatives.n_columns, seed=4) - 9
    truth = TorchKernel()
    left, right = (kernel.normalize(blocks) for blocks in inputs)
    left64, right64 = (truth.normalize([blocks[0].double()]) for blocks in inputs)
    torch.testing.assert_close(
        kernel.logsumexp(left, right, negatives, scale=scale).double(),
        truth.logsumexp(left64, right64, negatives, scale=scale),
        rtol=0,
        atol=2e-6,
    )
    for x, y, both in [(a, b, True), (a, None, True), (None, b, False)]:
        got = kernel.contract(left, right, negatives, x, y, scale=scale, both=both)
        expected = truth.contract(
            left64, right64, negatives, None if x is None else x.double(),
            None if y is None else y.double(), scale=scale, both=both,
        )  # fmt: skip
        assert (got[1] is None) == (expected[1] is None)
        for sums, reference in zip(got, expected, strict=True):
            if sums is not None:
                assert relative([sums[: len(reference), :24]], [reference]) < 1e-6


@pytest.mark.parametrize("variant", ["ntxent", "decoupled"])
def test_objective_and_finish(kernel, variant):
    blocks, pairs = [rows(30, 24), rows(40, 24, seed=1)], Pairs(60, 30, mutual=True)
    n, sums = rows(60, seed=2), rows(70, 24, seed=3)
    n[7] = -math.inf  # has no negatives
    truth = TorchKernel()
    got, reference = kernel.normalize(blocks), truth.normalize([b.double() for b in blocks])
    options = {"scale": 5.0, "variant": variant, "factor": 0.1}
    if variant == "decoupled":
        n[7] = 1
    actual = kernel.objective(got, got, pairs, n, **options)
    expected = truth.objective(reference, reference, pairs, n.double(), **options)
    for x, y in zip(actual, expected, strict=True):
        torch.testing.assert_close(x.double(), y, rtol=1e-6, atol=1e-6)

    padded = torch.full((128, got.stride), math.nan)
    padded[:70, :24] = sums
    options = {"factor": 2.0, "grad_output": torch.tensor(3.0)}
    grads = kernel.finish(padded, got, got, pairs, actual.weights, **options)
    options["grad_output"] = options["grad_output"].double()
    expected = truth.finish(sums.double(), reference, reference, pairs, expected.weights, **options)
    assert [grad.shape for grad in grads] == [block.shape for block in blocks]
    assert relative(grads, expected) < 1e-6


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
def test_one_dimension(kernel, evaluate, dtype):
    """All cosines are 1 or -1; the gradient is 0."""
    blocks = views(50, 1, dtype=dtype)
    loss, grads = evaluate(kernel, blocks, temperature=0.2)
    truth, _ = evaluate(TorchKernel(), [block.double() for block in blocks], temperature=0.2)
    torch.testing.assert_close(loss.double(), truth, rtol=1e-6, atol=0)
    for grad, block in zip(grads, blocks, strict=True):
        assert (grad * block).abs().max() < 1e-6


@pytest.mark.parametrize("temperature", [0.2, 0.01, 1e20, 1e-20])
def test_equal_rows(kernel, evaluate, temperature):
    z = rows(1, 40).expand(97, 40)
    loss, grads = evaluate(kernel, [z, z], temperature=temperature, variant="decoupled")
    tolerance = 1e-6 * max(1, 1 / temperature)
    torch.testing.assert_close(float(loss), math.log(192), rtol=0, atol=tolerance)
    assert all(grad.isfinite().all() for grad in grads)


@pytest.mark.parametrize("size", [0.0, 1e-30, 1e-13, 1e20, 5e37])
def test_short_and_long_rows(kernel, evaluate, size):
    blocks = views(60, 16)
    for block in blocks:
        block[:7] *= size
    loss, grads = evaluate(kernel, blocks, temperature=0.2)
    truth, expected = evaluate(TorchKernel(), [block.double() for block in blocks], temperature=0.2)
    torch.testing.assert_close(loss.double(), truth, rtol=1e-6, atol=0)
    for part in (slice(7), slice(7, None)):
        # Of subnormal gradients little is left in fp32.
        reference = [grad[part] for grad in expected]
        if torch.cat(reference).abs().max() > 1e-35:
            assert relative([grad[part] for grad in grads], reference) < 1e-5


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("variant", ["ntxent", "one_way"])
def test_what_is_not_finite_gives_nan(kernel, evaluate, dtype, value, variant):
    blocks = views(70, 16, dtype=dtype)
    blocks[1][41, 3] = value
    loss, grads = evaluate(kernel, blocks, temperature=0.04, variant=variant)
    assert loss.isnan()
    assert grads[0].isnan().any()


def test_rows_without_negatives(kernel, evaluate):
    blocks, ids = views(140, 16), torch.zeros(140, dtype=torch.int64)
    ids[-1] = 1
    options = {"temperature": 0.2, "group_ids": ids, "variant": "one_way"}
    loss, grads = evaluate(kernel, blocks, **options)
    truth, expected = evaluate(TorchKernel(), [block.double() for block in blocks], **options)
    torch.testing.assert_close(loss.double(), truth, rtol=1e-6, atol=0)
    assert relative(grads, expected) < 1e-5


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize(
    ("architecture", "core"), [(750, "mma"), (900, "mma"), (900, "wgmma"), (900, "tma")]
)
def test_same_bits_every_time(build, guarded, evaluate, monkeypatch, architecture, core, dtype):
    """Also when the threads of a block run in another order: no barrier is missing."""
    monkeypatch.setenv("MIRROR_RT_CUDA_CORE", core)
    kernel = CudaKernel(build(architecture), waves=Waves(4, 2))
    blocks = views(140, 40, dtype=dtype, hard=9)
    results = []
    for backwards in (False, False, True):
        if backwards:
            monkeypatch.setenv("MIRROR_CUDA_EMULATION_BACKWARDS", "1")
        loss, grads = evaluate(kernel, blocks, temperature=0.04)
        results.append([loss, *grads])
    for other in results[1:]:
        for x, y in zip(results[0], other, strict=True):
            assert torch.equal(x, y)
    _, expected = evaluate(TorchKernel(), [block.double() for block in blocks], temperature=0.04)
    assert relative(results[0][1:], expected) < TOLERANCE[dtype]


def test_a_core_that_cannot_run_is_an_error(build, monkeypatch):
    monkeypatch.setenv("MIRROR_RT_CUDA_CORE", "wmma")
    for architecture, message in [
        (900, "must be mma, wgmma or tma, got wmma"),
        (750, "built without"),
    ]:
        kernel = CudaKernel(build(architecture))
        unit = kernel.normalize([rows(9, 16)])
        with pytest.raises(RuntimeError, match=message):
            kernel.logsumexp(unit, unit, Negatives(9, 9, 9), scale=1.0)
        monkeypatch.setenv("MIRROR_RT_CUDA_CORE", "wgmma")


def test_errors_name_the_kernel(kernel):
    z = kernel.normalize([rows(9, 16)])
    native = kernel._cuda.Rows(z.unit.data_ptr() + 2, z.norms.data_ptr(), 9, 16, z.stride, True)
    z = CudaRows(z.unit, z.norms, native, [9], 16, z.stride, z.dtype)
    with pytest.raises(RuntimeError, match="logsumexp_tiles: misaligned access of 16 bytes"):
        kernel.logsumexp(z, z, Negatives(9, 9, 9), scale=1.0)


def test_bad_arguments(kernel):
    z = rows(9, 16)
    with pytest.raises(
        ValueError, match=r"must be float32, float16 or bfloat16, got torch\.float64"
    ):
        kernel.normalize([z.double()])
    with pytest.raises(ValueError, match="share D, dtype and device, got"):
        kernel.normalize([z, rows(9, 17)])
    with pytest.raises(ValueError, match=r"contiguous, got strides \(1, 9\)"):
        kernel.normalize([rows(16, 9).T])
    with pytest.raises(ValueError, match="at most 3 blocks, got 4"):
        kernel.normalize([z] * 4)
    unit = kernel.normalize([z])
    with pytest.raises(ValueError, match=r"row_ids must be contiguous \[9\] torch\.int64"):
        ids = torch.arange(8)
        kernel.logsumexp(unit, unit, Negatives(9, 9, 9, ids, ids), scale=1.0)
    with pytest.raises(ValueError, match=r"n must be contiguous \[9\] torch\.float32"):
        kernel.objective(
            unit, unit, Pairs(9, 0, mutual=False), torch.zeros(9).double(),
            scale=1.0, variant="one_way", factor=1.0,
        )  # fmt: skip
    with pytest.raises(ValueError, match="rows differ in dim: 16 and 17"):
        kernel.logsumexp(unit, kernel.normalize([rows(9, 17)]), Negatives(9, 9, 9), scale=1.0)


def test_bad_inputs_of_a_pass(kernel):
    """Also after a batch of the same shape, which has been checked."""
    z, other, ids = rows(9, 16), rows(9, 16, seed=1), torch.arange(9)
    options = {"scale": 5.0, "variant": "ntxent"}
    kernel.passes.forward(Inputs(z, other, None, ids), **options)
    for message, inputs in [
        ("must be float32, float16 or bfloat16", Inputs(z.double(), other.double(), None, ids)),
        ("share D, dtype and device", Inputs(z, other.half(), None, ids)),
        ("share D, dtype and device", Inputs(z, other, rows(9, 17), ids)),
        (r"contiguous, got strides \(1, 9\)", Inputs(z, rows(16, 9).T, None, ids)),
        ("as many rows, got 9 and 8", Inputs(z, other[:8], None, ids)),
        (r"ids must be int64 \[9\] on cpu, got torch.int32", Inputs(z, other, None, ids.int())),
    ]:
        with pytest.raises(ValueError, match=message):
            kernel.passes.forward(inputs, **options)


@pytest.fixture
def look_again():
    """What is known of the extension is forgotten, before the test and after."""
    cuda_extension.extension_is_built.cache_clear()
    yield
    cuda_extension.extension_is_built.cache_clear()


@pytest.mark.usefixtures("look_again")
def test_an_absent_extension_is_a_reason(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert "built without CUDA" in str(unavailable_reason(torch.zeros(1)))


@pytest.mark.usefixtures("look_again")
def test_a_broken_extension_raises(monkeypatch):
    def broken(name):
        raise ImportError("undefined symbol")

    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    monkeypatch.setattr(importlib, "import_module", broken)
    with pytest.raises(ImportError, match="undefined symbol"):
        unavailable_reason(torch.zeros(1))


@pytest.mark.usefixtures("look_again")
def test_a_cpu_tensor_is_a_reason(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    monkeypatch.setattr(importlib, "import_module", lambda name: None)
    assert unavailable_reason(torch.zeros(1)) == "the embeddings are on cpu, not on a CUDA device"
