"""The CUDA kernels on the host (support/compiled/cuda_emulation), against float64 in PyTorch."""

import importlib
import importlib.util
import math

import pytest
import torch

from mirror_train import infonce
from mirror_train.loss import autograd, cuda_device
from mirror_train.loss.cuda_device import unavailable_reason
from mirror_train.loss.cuda_kernel import CudaKernel
from mirror_train.loss.kernel import Gathered, Inputs, Options
from mirror_train.loss.torch_kernel import TorchKernel

pytestmark = [pytest.mark.full, pytest.mark.compiled]
# Errors of gradients, relative to their norm: of 16-bit input the rounding of the unit rows times
# 1 / temperature, and that of the result.
TOLERANCE = {torch.float32: 1e-5, torch.float16: 3e-3, torch.bfloat16: 5e-3}


@pytest.fixture
def kernel(emulation, guarded):
    return CudaKernel(emulation)


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
        monkeypatch.setattr(autograd, "kernel_named", lambda name: kernel)
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
    waves = CudaKernel(emulation, panel_tiles=panel_tiles, logsumexp_tiles=logsumexp_tiles)
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


@pytest.mark.usefixtures("core")
@pytest.mark.parametrize("d", [128, 300, 420])
def test_sums_of_every_width(kernel, evaluate, d):
    """Of 128, of three times 64, and of 256 dimensions at once, with a second product to add."""
    blocks, options = views(200, d, dtype=torch.float16), {"temperature": 0.2, "variant": "ntxent"}
    _, grads = evaluate(kernel, blocks, **options)
    _, expected = evaluate(TorchKernel(), [block.double() for block in blocks], **options)
    assert relative(grads, expected) < TOLERANCE[torch.float16]


def processes(world, n, hard, *, grouped, dtype, d=24):
    """The inputs of some processes, and those of all as each of them gathers them."""
    own = [views(n, d, seed=10 * rank, hard=hard, dtype=dtype) for rank in range(world)]
    ids = torch.arange(world * n) // 3 % 7 * (1 << 33) if grouped else torch.arange(world * n)
    every = [inside_nan(torch.cat(blocks)) for blocks in zip(*own, strict=True)]
    hard_of_all = every[2] if hard else None
    gathered = [
        Gathered(None, world, every[0], every[1], hard_of_all, ids, ids[rank * n :][:n].clone())
        for rank in range(world)
    ]
    inputs = [
        Inputs(blocks[0], blocks[1], blocks[2] if hard else None, each.own_ids if grouped else None)
        for blocks, each in zip(own, gathered, strict=True)
    ]
    return inputs, gathered


def solve(kernel, inputs, gathered, options):
    """The loss of the joined batch, and the gradients of every process."""
    own_options = [options._replace(gathered=each) for each in gathered]
    results = list(map(kernel.forward, inputs, own_options))
    parts = [r.log_weights.view(-1, len(inputs[0].z1)) for r in results]
    log_weights = torch.cat(parts, 1).flatten()
    gradients = []
    for own, each, result in zip(inputs, own_options, results, strict=True):
        each.gathered.log_weights = log_weights
        given = (own, result.weights, result.log_weights, torch.ones_like(result.loss))
        gradients += [grad.flatten() for grad in kernel.backward(*given, each)]
    return sum(result.loss for result in results), gradients


@pytest.mark.usefixtures("core")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("variant", ["ntxent", "decoupled", "one_way"])
@pytest.mark.parametrize(
    ("world", "n", "hard", "grouped"), [(2, 70, 0, False), (3, 50, 30, True), (1, 40, 9, False)]
)
def test_the_negatives_of_several_processes(kernel, dtype, variant, world, n, hard, grouped):
    options = Options(0.2, variant, "cuda")
    inputs, gathered = processes(world, n, hard, grouped=grouped, dtype=dtype)
    loss, grads = solve(kernel, inputs, gathered, options)

    def doubled(given):
        return [None if z is None or not z.is_floating_point() else z.double() for z in given]

    exact = [Inputs(*doubled(each)[:3], each.ids) for each in inputs]
    for each in gathered:
        each.z1, each.z2, each.hard = doubled([each.z1, each.z2, each.hard])
    truth, expected = solve(TorchKernel(), exact, gathered, options)
    torch.testing.assert_close(loss.double(), truth, rtol=TOLERANCE[dtype] / 10, atol=1e-6)
    assert relative(grads, expected) < TOLERANCE[dtype]


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
@pytest.mark.parametrize(("architecture", "core"), [(750, "mma"), (900, "mma"), (900, "tma")])
def test_same_bits_every_time(build, guarded, evaluate, monkeypatch, architecture, core, dtype):
    """Also when the threads of a block run in another order: no barrier is missing."""
    monkeypatch.setenv("MIRROR_RT_CUDA_CORE", core)
    kernel = CudaKernel(build(architecture), panel_tiles=4, logsumexp_tiles=2)
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
    inputs, options = Inputs(rows(9, 16), rows(9, 16), None, None), Options(0.2, "ntxent", "cuda")
    for core, architecture, message in [
        ("wmma", 900, "must be mma or tma, got wmma"),
        ("tma", 750, "MIRROR_RT_CUDA_CORE=tma: built without code for sm_90"),
    ]:
        monkeypatch.setenv("MIRROR_RT_CUDA_CORE", core)
        with pytest.raises(RuntimeError, match=message):
            CudaKernel(build(architecture)).forward(inputs, options)


def test_errors_name_the_kernel(kernel, monkeypatch):
    monkeypatch.setattr(torch, "empty", misplaced(torch.empty))
    inputs, options = Inputs(rows(9, 16), rows(9, 16), None, None), Options(0.2, "ntxent", "cuda")
    with pytest.raises(RuntimeError, match="logsumexp_tiles: misaligned access of 16 bytes"):
        kernel.forward(inputs, options)


def misplaced(empty):
    """Workspaces begin two bytes further on."""

    def allocate(*shape, dtype=torch.float32, device=None):
        if dtype != torch.uint8:
            return empty(*shape, dtype=dtype, device=device)
        return empty(shape[0] + 2, dtype=dtype)[2:]

    return allocate


def test_bad_inputs_of_a_pass(kernel):
    """Also after a batch of the same shape, which has been checked."""
    z, other, ids = rows(9, 16), rows(9, 16, seed=1), torch.arange(9)
    options = Options(0.2, "ntxent", "cuda")
    kernel.forward(Inputs(z, other, None, ids), options)
    for message, inputs in [
        ("must be float32, float16 or bfloat16", Inputs(z.double(), other.double(), None, ids)),
        ("share D, dtype and device", Inputs(z, other.half(), None, ids)),
        ("share D, dtype and device", Inputs(z, other, rows(9, 17), ids)),
        (r"contiguous, got strides \(1, 9\)", Inputs(z, rows(16, 9).T, None, ids)),
        ("equal numbers of rows, got 9 and 8", Inputs(z, other[:8], None, ids)),
        (r"ids must be int64 \[9\] on cpu, got torch.int32", Inputs(z, other, None, ids.int())),
    ]:
        with pytest.raises(ValueError, match=message):
            kernel.forward(inputs, options)


KIND = (torch.device("cuda", 0), torch.float32)


def test_an_absent_extension_is_a_reason(monkeypatch):
    monkeypatch.setattr(cuda_device, "_extension", None)
    assert "built without CUDA" in str(unavailable_reason(*KIND))


def test_a_broken_extension_raises(monkeypatch):
    def broken(name):
        raise ImportError("undefined symbol")

    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    monkeypatch.setattr(importlib, "import_module", broken)
    monkeypatch.setattr(cuda_device, "_extension", cuda_device._load())
    with pytest.raises(ImportError, match="undefined symbol"):
        unavailable_reason(*KIND)


def test_reasons(monkeypatch):
    monkeypatch.setattr(cuda_device, "_extension", object())
    monkeypatch.setattr(cuda_device, "_capability", lambda device: (7, 0))
    cpu = torch.device("cpu")
    assert (
        unavailable_reason(cpu, torch.float32) == "the embeddings are on cpu, not on a CUDA device"
    )
    monkeypatch.setattr(torch.version, "cuda", None)
    assert unavailable_reason(*KIND) == "this torch is not built for NVIDIA GPUs"
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    assert "cuda:0 has compute capability 7.0, and 7.5 is the least" in unavailable_reason(*KIND)
    monkeypatch.setattr(cuda_device, "_capability", lambda device: (9, 0))
    assert unavailable_reason(*KIND) is None
    assert "the embeddings are torch.float64" in unavailable_reason(KIND[0], torch.float64)


def test_under_torch_compile(emulation, monkeypatch):
    """The way of a card, but for the device: one graph, though modules and cards are asked."""
    original = cuda_device.unavailable_reason
    monkeypatch.setattr(
        cuda_device, "unavailable_reason", lambda device, dtype: original(KIND[0], dtype)
    )
    monkeypatch.setattr(cuda_device, "_extension", emulation)
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    monkeypatch.setattr(CudaKernel, "_check", lambda *arguments: None)
    caches = (cuda_device._capability, autograd.kernel_named)
    for cache in caches:
        cache.cache_clear()
    leaves = [block.requires_grad_() for block in views(20, 16, hard=3)]

    def loss(z1, z2, hard):
        return infonce(2 * z1, z2, temperature=0.2, hard_negatives=hard, impl="cuda") + 1

    try:
        compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")(*leaves)
        grads = torch.autograd.grad(compiled, leaves)
        expected = loss(*leaves)
        assert torch.equal(compiled, expected)
        for x, y in zip(grads, torch.autograd.grad(expected, leaves), strict=True):
            torch.testing.assert_close(x, y)
        assert autograd.kernel_named("cuda")._batches  # by the CUDA kernel, not another
    finally:
        for cache in caches:
            cache.cache_clear()
