"""Implement one loss, NT-Xent over cosines, by our kernels and by the usual alternatives.

    python benchmarks/loss/contenders.py NAME --device cpu --dtype float32 --rows 8192 --dim 768

This prints the peak memory of one forward and backward pass in MB, without that of the input.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import importlib.util
import itertools
import os
import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # for the other folders

from loss.cores import CORES, VARIABLE
from torch.nn import functional

from mirror_train import infonce

TEMPERATURE = 0.04
# The allowed error of the gradient against float64; 16-bit cosines give no better.
_AGREES = {"float32": 1e-4, "float16": 0.02, "bfloat16": 0.03}


def ours(z1, z2, *, temperature=TEMPERATURE, **options):
    return infonce(z1, z2, temperature=temperature, **options)


def unfused(z1, z2):
    """Compute cross-entropy over a matrix of all cosines, itself masked: the usual few lines."""
    n = len(z1)
    unit = functional.normalize(torch.cat([z1, z2]), dim=1)
    logits = (unit @ unit.T / TEMPERATURE).fill_diagonal_(float("-inf"))
    rows = torch.arange(2 * n, device=z1.device)
    return functional.cross_entropy(logits, (rows + n) % (2 * n))


@functools.cache
def compiled():
    return torch.compile(unfused)


def metric_learning(z1, z2):
    """Use the library that the code of the Mirror-BERT paper uses; its memory is O(N^3)."""
    from pytorch_metric_learning.losses import NTXentLoss

    labels = torch.arange(len(z1), device=z1.device).repeat(2)
    return NTXentLoss(temperature=TEMPERATURE)(torch.cat([z1, z2]), labels)


def liger(z1, z2):
    """Use Liger's fused linear cross-entropy, as `one_way`: view 1 classified among view 2."""
    from liger_kernel.transformers import LigerFusedLinearCrossEntropyLoss

    queries, keys = functional.normalize(z1, dim=1) / TEMPERATURE, functional.normalize(z2, dim=1)
    target = torch.arange(len(z1), device=z1.device)
    return LigerFusedLinearCrossEntropyLoss()(keys, queries, target)


def cut_cross_entropy(z1, z2):
    """Use Apple's Cut Cross-Entropy, as `one_way`."""
    from cut_cross_entropy import linear_cross_entropy

    queries, keys = functional.normalize(z1, dim=1) / TEMPERATURE, functional.normalize(z2, dim=1)
    return linear_cross_entropy(queries, keys, torch.arange(len(z1), device=z1.device))


def inf_cl(z1, z2):
    """Use the float32 Triton kernels of Inf-CL (Cheng et al., 2024), as `one_way`."""
    from inf_cl import cal_flash_loss

    queries, keys = functional.normalize(z1, dim=1), functional.normalize(z2, dim=1)
    width = next(width for width in (256, 128, 64) if z1.shape[1] % width == 0)
    return cal_flash_loss(queries, keys, scale=1 / TEMPERATURE, head_dim=width).mean()


CONTENDERS = {
    "mirror_rt": ours,
    **{f"mirror_rt, core {core}": ours for core in CORES},
    "mirror_rt, impl=torch": functools.partial(ours, impl="torch"),
    "PyTorch": unfused,
    "torch.compile": lambda z1, z2: compiled()(z1, z2),
    "pytorch-metric-learning": metric_learning,
    "mirror_rt, one_way": functools.partial(ours, variant="one_way"),
    "Liger, one_way": liger,
    "Cut Cross-Entropy, one_way": cut_cross_entropy,
    "Inf-CL, one_way": inf_cl,
}
_PACKAGES = {
    "pytorch-metric-learning": "pytorch_metric_learning",
    "Liger, one_way": "liger_kernel",
    "Cut Cross-Entropy, one_way": "cut_cross_entropy",
    "Inf-CL, one_way": "inf_cl",
}


@contextlib.contextmanager
def core_of(name):
    """Let the kernels use the core that a contender's name contains, within this context."""
    core = name.partition(", core ")[2]
    before = os.environ.get(VARIABLE)
    if core:
        os.environ[VARIABLE] = core
    try:
        yield
    finally:
        os.environ.pop(VARIABLE, None)
        if before is not None:
            os.environ[VARIABLE] = before


@functools.cache
def disagreement(name, device, dtype, dim):
    """Return how a contender's gradient differs, or fails, on a few rows; None if it agrees."""
    # The positives are hardly the nearest rows; otherwise the gradient would be almost 0.
    views = make_views(device, getattr(torch, dtype), 512, dim, likeness=0.2)
    exact = [view.detach().double().requires_grad_() for view in views]
    variant = "one_way" if "one_way" in name else "ntxent"
    (512 * ours(*exact, variant=variant, impl="torch")).backward()
    try:
        with core_of(name):
            (512 * CONTENDERS[name](*views)).backward()
    except Exception as error:  # noqa: BLE001 - whatever it is, the others go on
        return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0][:200]}"
    got, expected = (torch.cat([view.grad.double() for view in both]) for both in (views, exact))
    error = float((got - expected).norm() / expected.norm())
    return None if error <= _AGREES[dtype] else f"its gradient differs by {error:.2g}"


def why_not(name, device, dtype, rows, available):
    """Return why a contender cannot run in `available` bytes of memory; None if it can."""
    package = _PACKAGES.get(name)
    if package and importlib.util.find_spec(package) is None:
        return "not installed"
    if name.startswith(("Liger", "Cut", "Inf", "mirror_rt, core")) and device == "cpu":
        return "GPU only"
    if name == "mirror_rt, one_way" and device == "cpu":
        return "for comparison with GPU kernels"
    # The number of values alive at once: copies of the cosines, or triples of rows.
    copies = {"PyTorch": 5, "torch.compile": 4, "pytorch-metric-learning": 3 * rows}
    needed = getattr(torch, dtype).itemsize * rows * rows * copies.get(name, 0)
    return f"needs {needed / 1e9:.0f} GB" if needed > 0.8 * available else None


def make_views(device, dtype, rows, dim, likeness=1.0):
    """Return two leaf tensors [rows / 2, dim]: a view, and `likeness` times it plus noise."""
    generator = torch.Generator(device).manual_seed(0)
    z1, noise = (torch.randn(rows // 2, dim, generator=generator, device=device) for _ in range(2))
    z2 = likeness * z1 + noise
    return [z.to(device, dtype).requires_grad_() for z in (z1, z2)]


def _resident(field):
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(field)) * 1024


def peak_bytes(name, device, dtype, rows, dim, **options):
    """Return the peak memory of forward and backward beyond that before, gradients included.

    Only kernels of mirror_rt take options.
    """
    contender = functools.partial(CONTENDERS[name], **options)
    with core_of(name):
        # Compiling is not measured, and torch compiles anew for another number of rows.
        warm_up = rows if name == "torch.compile" else 256
        contender(*make_views(device, dtype, warm_up, dim)).backward()
        views = make_views(device, dtype, rows, dim)
        if device == "cuda":
            return peak_bytes_on_card(contender, views)
        Path("/proc/self/clear_refs").write_text(
            "5", encoding="utf-8"
        )  # resets the high-water mark
        before = _resident("VmRSS")
        contender(*views).backward()
        return _resident("VmHWM") - before


def peak_bytes_on_card(contender, views):
    """Return the same on a GPU, as torch's allocator counts it."""
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    contender(*views).backward()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("name", choices=CONTENDERS)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", nargs="+", default=["float32"])
    parser.add_argument("--rows", type=int, required=True)
    parser.add_argument("--dim", type=int, required=True)
    parser.add_argument("--temperatures", type=float, nargs="+", help="of mirror_rt alone")
    a = parser.parse_args()
    each = [{"temperature": t} for t in a.temperatures or ()] or [{}]
    for dtype, options in itertools.product(a.dtype, each):
        found = peak_bytes(a.name, a.device, getattr(torch, dtype), a.rows, a.dim, **options)
        print(found / 1e6)


if __name__ == "__main__":
    main()
