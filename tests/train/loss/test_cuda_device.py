"""The CUDA kernels on a GPU, through the public functions, against float64 in plain PyTorch.

Every test runs once for each core; MIRROR_RT_CUDA_CORE names one alone.
"""

import importlib.util
import os

import pytest
import torch
from torch import nn

from mirror_train import infonce
from mirror_train.loss.cuda_kernel import CudaKernel
from mirror_train.loss.kernel import Inputs, Options
from mirror_train.loss.soft_targets import soft_targets

pytestmark = [
    pytest.mark.full,
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA card"),
    pytest.mark.skipif(
        importlib.util.find_spec("mirror_train._cuda") is None,
        reason="built without CUDA: see benchmarks/gpu.sh",
    ),
]

CORE = "MIRROR_RT_CUDA_CORE"
# Core -> the compute capability that it needs; None for any.
CORES = {"mma": None, "tma": (9, 0)}
TOLERANCE = {torch.float32: 1e-5, torch.float16: 3e-3, torch.bfloat16: 5e-3}


@pytest.fixture(autouse=True)
def exact_reference(monkeypatch):
    monkeypatch.setattr(torch.backends.cuda.matmul, "allow_tf32", False)


@pytest.fixture(autouse=True)
def poisoned_memory(monkeypatch):
    """`torch.empty` gives NaN, for memory used again may hold the right answer of a call before."""
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # else the references warn
    torch.use_deterministic_algorithms(True, warn_only=True)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.fixture(autouse=True, params=[os.environ[CORE]] if CORE in os.environ else CORES)
def core(request, monkeypatch):
    needed = CORES[request.param]
    if needed is not None and torch.cuda.get_device_capability() != needed:
        pytest.skip(f"{request.param} needs compute capability {'.'.join(map(str, needed))}")
    monkeypatch.setenv(CORE, request.param)
    return request.param


def views(n, d, *, dtype=torch.float32, hard=0, seed=0):
    generator = torch.Generator("cuda").manual_seed(seed)
    z = torch.randn(2 * n + hard, d, generator=generator, device="cuda")
    z[n : 2 * n] += 0.3 * z[:n]
    blocks = z.to(dtype).split([n, n, hard] if hard else [n, n])
    return [block.clone().requires_grad_() for block in blocks]


def evaluate(blocks, *, impl="cuda", **options):
    hard = blocks[2] if len(blocks) == 3 else None
    options = {"temperature": 0.04, **options}
    loss = infonce(blocks[0], blocks[1], hard_negatives=hard, impl=impl, **options)
    return loss, torch.autograd.grad(loss, blocks)


def doubled(blocks):
    return [block.detach().double().requires_grad_() for block in blocks]


def relative(actual, expected):
    actual, expected = torch.cat(list(actual)).double(), torch.cat(list(expected))
    return float((actual - expected).norm() / expected.norm())


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize(
    ("n", "d", "temperature", "variant", "hard", "grouped"),
    [
        (3, 64, 0.2, "ntxent", 0, False),
        (97, 1, 0.2, "decoupled", 0, True),
        (401, 312, 0.04, "ntxent", 33, True),
        (200, 768, 0.04, "one_way", 70, False),
        (1025, 384, 0.04, "ntxent", 0, False),
        (130, 1024, 0.2, "one_way", 0, True),
    ],
)
def test_parity(dtype, n, d, temperature, variant, hard, grouped):
    blocks = views(n, d, dtype=dtype, hard=hard)
    ids = torch.arange(n, device="cuda") // 2 if grouped else None
    options = {"temperature": temperature, "variant": variant, "group_ids": ids}
    loss, grads = evaluate(blocks, **options)
    truth, expected = evaluate(doubled(blocks), impl="torch", **options)
    torch.testing.assert_close(loss.double(), truth, rtol=TOLERANCE[dtype] / 10, atol=1e-6)
    if d > 1:  # else the gradient is 0
        assert relative(grads, expected) < TOLERANCE[dtype]
    again_loss, again = evaluate(blocks, **options)
    assert torch.equal(loss, again_loss)
    assert all(torch.equal(x, y) for x, y in zip(grads, again, strict=True))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("n", [3, 150, 2000])
def test_soft_targets_are_those_of_the_processor(dtype, n):
    blocks = views(n, 384, dtype=dtype)
    teacher = torch.randn(n, 768, generator=torch.Generator().manual_seed(1))
    ids = torch.arange(n) // 2
    found = []
    for device in ("cuda", "cuda", "cpu"):
        own = [block.detach().to(device).requires_grad_() for block in blocks]
        loss = soft_targets(own, teacher.to(device), temperature=0.1, weight=0.5,
                            group_ids=ids.to(device))  # fmt: skip
        found.append((loss.cpu(), [g.cpu() for g in torch.autograd.grad(loss, own)]))
    (loss, grads), (again_loss, again), (truth, expected) = found
    torch.testing.assert_close(loss, truth, rtol=TOLERANCE[dtype], atol=1e-6)
    assert relative(grads, expected) < TOLERANCE[dtype]
    assert torch.equal(loss, again_loss)
    assert all(torch.equal(x, y) for x, y in zip(grads, again, strict=True))


@pytest.mark.parametrize("temperature", [0.2, 0.04, 0.02, 0.0195, 0.01])
def test_fp32_is_as_precise_as_torch(temperature):
    blocks = views(500, 768)
    truth, expected = evaluate(doubled(blocks), impl="torch", temperature=temperature)
    loss, grads = evaluate(blocks, temperature=temperature)
    plain_loss, plain_grads = evaluate(blocks, impl="torch", temperature=temperature)
    assert abs(loss - truth) <= 2 * abs(plain_loss - truth) + 2**-24 / temperature
    assert relative(grads, expected) <= 2 * relative(plain_grads, expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_many_waves(monkeypatch, dtype):
    waves = CudaKernel(panel_tiles=9, logsumexp_tiles=3)
    blocks = views(1000, 64, dtype=dtype, hard=300)
    loss, grads = evaluate(blocks)
    monkeypatch.setattr("mirror_train.loss.autograd.kernel_named", lambda name: waves)
    other_loss, others = evaluate(blocks)
    torch.testing.assert_close(loss, other_loss, rtol=1e-6, atol=1e-6)
    assert relative(grads, [grad.double() for grad in others]) < TOLERANCE[dtype]


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_what_is_not_finite_gives_nan(value):
    blocks = views(300, 64)
    with torch.no_grad():
        blocks[0][17, 3] = value
    loss, _ = evaluate(blocks)
    assert loss.isnan()


@pytest.mark.parametrize("grouped", [False, True])
def test_nothing_waits_for_the_device(grouped):
    blocks = views(300, 64)
    options = {"group_ids": torch.arange(300, device="cuda") // 2 if grouped else None}
    evaluate(blocks, **options)
    torch.cuda.set_sync_debug_mode("error")
    try:
        evaluate(blocks, **options)
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_five_launches_each_way():
    blocks = views(200, 768, dtype=torch.bfloat16)
    evaluate(blocks)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        loss, _ = evaluate(blocks)
        torch.cuda.synchronize()
    counts = [event.count for event in profile.key_averages() if "mirror_train" in event.key]
    assert loss.isfinite()
    assert 0 < sum(counts) <= 10


def test_autocast_and_grad_scaler():
    torch.manual_seed(0)
    encoder = nn.Linear(64, 48, device="cuda")
    x1, x2 = torch.randn(2, 100, 64, device="cuda")
    scaler = torch.amp.GradScaler("cuda", init_scale=1024.0)
    optimizer = torch.optim.SGD(encoder.parameters(), lr=0.0)
    gradients = []
    for impl in ("cuda", "torch"):
        optimizer.zero_grad()
        with torch.autocast("cuda", torch.float16):
            loss = infonce(encoder(x1), encoder(x2), temperature=0.2, impl=impl)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scaler.update()
        gradients.append([encoder.weight.grad.clone()])
    assert relative(gradients[0], [gradients[1][0].double()]) < 5e-3


def test_compile():
    blocks = views(100, 64, dtype=torch.bfloat16)
    compiled = torch.compile(
        lambda x, y: infonce(x, y, temperature=0.2, impl="cuda"), fullgraph=True
    )
    loss = compiled(*blocks)
    expected, expected_grads = evaluate(blocks, temperature=0.2)
    grads = torch.autograd.grad(loss, blocks)
    assert torch.equal(loss, expected)
    assert all(torch.equal(x, y) for x, y in zip(grads, expected_grads, strict=True))


def test_cuda_graph():
    blocks = views(150, 64, dtype=torch.bfloat16)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        evaluate(blocks)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        loss, grads = evaluate(blocks)
    with torch.no_grad():
        for block, new in zip(blocks, views(150, 64, dtype=torch.bfloat16, seed=1), strict=True):
            block.copy_(new)
    graph.replay()
    expected, expected_grads = evaluate(blocks)
    assert torch.equal(loss, expected)
    assert all(torch.equal(x, y) for x, y in zip(grads, expected_grads, strict=True))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_memory_at_65536_rows(dtype):
    blocks = views(32768, 768, dtype=dtype)
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    loss, grads = evaluate(blocks)
    results = sum(grad.numel() * grad.element_size() for grad in grads)
    assert loss.isfinite()
    assert torch.cuda.max_memory_allocated() - before - results < 1 << 30


def test_two_streams():
    """Calls on two streams at once use neither each other's memory nor each other's core."""
    inputs = [views(700, 384, dtype=torch.bfloat16, seed=seed) for seed in range(2)]
    expected = [evaluate(blocks) for blocks in inputs]
    streams = [torch.cuda.Stream() for _ in inputs]
    for stream in streams:
        stream.wait_stream(torch.cuda.current_stream())
    found = [[], []]
    for _ in range(20):
        for kept, stream, blocks in zip(found, streams, inputs, strict=True):
            with torch.cuda.stream(stream):
                kept.append(evaluate(blocks))
    torch.cuda.synchronize()
    for kept, (loss, grads) in zip(found, expected, strict=True):
        for other_loss, others in kept:
            assert torch.equal(loss, other_loss)
            assert all(torch.equal(x, y) for x, y in zip(grads, others, strict=True))


@pytest.mark.parametrize("dim", [64, 768])
def test_a_million_rows(dim):
    """Loss, weights and gradient, of some rows against float64; the memory of all."""
    n, temperature = 1 << 19, 0.04
    if torch.cuda.mem_get_info()[0] < 60 * n * dim + (4 << 30):
        pytest.skip(f"{2 * n} rows of {dim} dimensions need more memory than is free")
    blocks = views(n, dim, dtype=torch.bfloat16)
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    loss, grads = evaluate(blocks, temperature=temperature)
    # Rows in 16 bits and sums in 32, beside the gradients.
    assert torch.cuda.max_memory_allocated() - before < 2 * n * dim * (2 + 2 + 4 + 2) + (1 << 30)
    inputs = Inputs(*[block.detach() for block in blocks], None, None)
    _, weights, log_weights = CudaKernel().forward(inputs, Options(temperature, "ntxent", "cuda"))
    kept = weights.double().log() - log_weights.double()

    unit = torch.cat([nn.functional.normalize(block.detach().double(), dim=1) for block in blocks])
    sample = torch.arange(0, n, 1 << 12, device="cuda")
    index = torch.arange(len(sample), device="cuda")
    scores = unit[sample] @ unit.T / temperature
    negatives = scores.clone()
    negatives[index, sample] = negatives[index, sample + n] = -torch.inf
    logsumexp = negatives.logsumexp(1)
    torch.testing.assert_close(kept[sample].double(), logsumexp, rtol=0, atol=2e-3)
    # The loss is the mean over all rows; the derivative of a row's is a sigmoid.
    pairs = (unit[:n] * unit[n:]).sum(1).repeat(2) / temperature
    margins = kept.double() - pairs
    torch.testing.assert_close(
        loss.double(), nn.functional.softplus(margins).mean(), rtol=1e-4, atol=1e-6
    )
    log_weights = nn.functional.logsigmoid(margins) - kept.double()
    weights = negatives.add(log_weights).exp() + negatives.add(log_weights[sample, None]).exp()
    expected = weights @ unit
    slopes = margins.sigmoid()
    expected -= (slopes[sample] + slopes[sample + n])[:, None] * unit[sample + n]
    expected /= 2 * n * temperature
    expected -= unit[sample] * (expected * unit[sample]).sum(1, keepdim=True)
    expected /= blocks[0].detach()[sample].double().norm(dim=1, keepdim=True)
    assert relative([grads[0][sample]], [expected]) < TOLERANCE[torch.bfloat16]
    assert all(grad.isfinite().all() for grad in grads)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two cards")
def test_the_other_device():
    blocks = [block.detach().to("cuda:1").requires_grad_() for block in views(100, 64)]
    loss, grads = evaluate(blocks)
    truth, expected = evaluate(doubled(blocks), impl="torch")
    torch.testing.assert_close(loss.double(), truth, rtol=1e-6, atol=1e-6)
    assert relative(grads, expected) < 1e-5
