"""Implementations of one loss, NT-Xent over cosines: ours, and the ways people compute it today.

    python benchmarks/infonce_contenders.py NAME --device cpu --dtype float32 --rows 8192 --dim 768

prints the peak memory of one forward and backward pass in MB, beside what holds the input.
"""

from __future__ import annotations

import argparse
import functools
import importlib.util
from pathlib import Path

import torch
from torch.nn import functional

from mirror_train import infonce

TEMPERATURE = 0.04


def ours(z1, z2, **options):
    return infonce(z1, z2, temperature=TEMPERATURE, **options)


def unfused(z1, z2):
    """A matrix of all cosines, self masked, into cross-entropy: the usual few lines of PyTorch."""
    n = len(z1)
    unit = functional.normalize(torch.cat([z1, z2]), dim=1)
    logits = (unit @ unit.T / TEMPERATURE).fill_diagonal_(float("-inf"))
    rows = torch.arange(2 * n, device=z1.device)
    return functional.cross_entropy(logits, (rows + n) % (2 * n))


@functools.cache
def compiled():
    return torch.compile(unfused)


def metric_learning(z1, z2):
    """The library that the code of the Mirror-BERT paper uses; memory O(N^3)."""
    from pytorch_metric_learning.losses import NTXentLoss

    labels = torch.arange(len(z1), device=z1.device).repeat(2)
    return NTXentLoss(temperature=TEMPERATURE)(torch.cat([z1, z2]), labels)


def liger(z1, z2):
    """Liger's fused linear cross-entropy, as `one_way`: view 1 classified among rows of view 2."""
    from liger_kernel.transformers import LigerFusedLinearCrossEntropyLoss

    queries, keys = functional.normalize(z1, dim=1) / TEMPERATURE, functional.normalize(z2, dim=1)
    target = torch.arange(len(z1), device=z1.device)
    return LigerFusedLinearCrossEntropyLoss()(keys, queries, target)


def cut_cross_entropy(z1, z2):
    """Apple's Cut Cross-Entropy, as `one_way`."""
    from cut_cross_entropy import linear_cross_entropy

    queries, keys = functional.normalize(z1, dim=1) / TEMPERATURE, functional.normalize(z2, dim=1)
    return linear_cross_entropy(queries, keys, torch.arange(len(z1), device=z1.device))


CONTENDERS = {
    "mirror_rt": ours,
    "mirror_rt, impl=torch": functools.partial(ours, impl="torch"),
    "PyTorch": unfused,
    "torch.compile": lambda z1, z2: compiled()(z1, z2),
    "pytorch-metric-learning": metric_learning,
    "mirror_rt, one_way": functools.partial(ours, variant="one_way"),
    "Liger, one_way": liger,
    "Cut Cross-Entropy, one_way": cut_cross_entropy,
}
_PACKAGES = {
    "pytorch-metric-learning": "pytorch_metric_learning",
    "Liger, one_way": "liger_kernel",
    "Cut Cross-Entropy, one_way": "cut_cross_entropy",
}


def why_not(name, device, rows, dim, available):
    """Why a contender cannot run; None if it can. `available` bytes of memory."""
    package = _PACKAGES.get(name)
    if package and importlib.util.find_spec(package) is None:
        return "not installed"
    if name.startswith(("Liger", "Cut")) and device == "cpu":
        return "GPU only"
    if name == "mirror_rt, one_way" and device == "cpu":
        return "for comparison with GPU kernels"
    # float32 values alive at once: copies of the cosines, or triples of rows.
    copies = {"PyTorch": 5, "torch.compile": 4, "pytorch-metric-learning": 3 * rows}
    needed = 4 * rows * rows * copies.get(name, 0)
    return f"needs {needed / 1e9:.0f} GB" if needed > 0.8 * available else None


def make_views(device, dtype, rows, dim):
    """Two leaves [rows / 2, dim]; a view and a noisy copy of it."""
    generator = torch.Generator().manual_seed(0)
    z1 = torch.randn(rows // 2, dim, generator=generator)
    z2 = z1 + torch.randn(rows // 2, dim, generator=generator)
    return [z.to(device, dtype).requires_grad_() for z in (z1, z2)]


def _resident(field):
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(field)) * 1024


def peak_bytes(name, device, dtype, rows, dim):
    """Peak memory of forward and backward beyond what was held before, gradients included."""
    contender = CONTENDERS[name]
    if not (name == "torch.compile" and rows > 256):  # compiling is not what is measured
        contender(*make_views(device, dtype, 256, dim)).backward()
    views = make_views(device, dtype, rows, dim)
    if device == "cpu":
        Path("/proc/self/clear_refs").write_text("5")  # resets the high-water mark
        before = _resident("VmRSS")
        contender(*views).backward()
        return _resident("VmHWM") - before
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    contender(*views).backward()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("name", choices=CONTENDERS)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--rows", type=int, required=True)
    parser.add_argument("--dim", type=int, required=True)
    a = parser.parse_args()
    print(peak_bytes(a.name, a.device, getattr(torch, a.dtype), a.rows, a.dim) / 1e6)


if __name__ == "__main__":
    main()
