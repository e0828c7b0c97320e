"""Compare a core of the CUDA kernels with the mma core on a device.

    python -m mirror_train.loss.cuda_check [DEVICE [CORE]]

The exit status is 0 if the losses and gradients of both agree and repeat bit for bit. This is what
decides which core becomes the default (`mirror_train.loss.cuda_cores`).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from mirror_train.loss.cuda_cores import VARIABLE
from mirror_train.loss.cuda_kernel import CudaKernel
from mirror_train.loss.cuda_waves import Waves
from mirror_train.loss.kernel import Inputs, Variant

# Norm of the difference to the norm: the cores round in other places, and round 16-bit weights.
_TOLERANCES = {torch.float32: 1e-5, torch.float16: 5e-3, torch.bfloat16: 5e-3}
_REPEATS = 4


class Case(NamedTuple):
    """A problem that both cores solve."""

    n: int
    dim: int
    dtype: torch.dtype
    temperature: float
    variant: Variant = "ntxent"
    hard: int = 0
    grouped: bool = False
    waves: Waves = Waves()


# Every kernel of the core: one part and two, bounded scores and any, across and down, many waves.
CASES = (
    Case(401, 200, torch.float32, 0.04, hard=33, grouped=True, waves=Waves(9, 3)),
    Case(401, 96, torch.float32, 0.01, "one_way", hard=70),
    Case(1025, 312, torch.bfloat16, 0.01, waves=Waves(9, 3)),
    Case(700, 384, torch.float16, 0.04, "one_way", grouped=True),
    Case(8192, 768, torch.bfloat16, 0.04),
)


def disagreement(
    device: torch.device, core: str, cases: Sequence[Case], module: Any = None
) -> str | None:
    """Return where a core disagrees with the mma core; None if it does not.

    Args:
        device: where to compute.
        core: "wgmma" or "tma".
        cases: the problems.
        module: as for `CudaKernel`.

    Raises:
        RuntimeError: a core cannot run there.
    """
    for case in cases:
        kernel, inputs = CudaKernel(module, waves=case.waves), _inputs(case, device)
        expected = _solve(kernel, inputs, case, "mma")
        first = _solve(kernel, inputs, case, core)
        for name, x, y in zip(("loss", "z1", "z2", "hard"), first, expected, strict=False):
            error = float((x.double() - y.double()).norm() / y.double().norm())
            if not error <= _TOLERANCES[case.dtype]:  # a NaN is an error, too
                return f"{case}: {name} differs by {error:.1e}"
        for _ in range(_REPEATS):
            again = _solve(kernel, inputs, case, core)
            if not all(torch.equal(x, y) for x, y in zip(first, again, strict=True)):
                return f"{case}: another result of the same call"
    return None


def _inputs(case: Case, device: torch.device) -> Inputs:
    generator = torch.Generator().manual_seed(0)
    z = torch.randn(2 * case.n + case.hard, case.dim, generator=generator)
    z[case.n : 2 * case.n] += 0.3 * z[: case.n]
    z = z.to(device, case.dtype)
    z1, z2, hard = z[: case.n], z[case.n : 2 * case.n], z[2 * case.n :]
    ids = torch.arange(case.n, device=device) // 2 if case.grouped else None
    return Inputs(z1, z2, hard if case.hard else None, ids)


def _solve(kernel: CudaKernel, inputs: Inputs, case: Case, core: str) -> list[Tensor]:
    os.environ[VARIABLE] = core
    options: dict[str, Any] = {"scale": 1 / case.temperature, "variant": case.variant}
    assert kernel.passes is not None
    loss, weights, log_weights = kernel.passes.forward(inputs, **options)
    given = (inputs, weights, log_weights, torch.ones_like(loss))
    return [loss, *kernel.passes.backward(*given, **options)]


def main() -> None:
    """Check a core, by default tma, on the device of this number, by default 0."""
    torch.set_num_threads(1)
    index = int(sys.argv[1]) if len(sys.argv) > 1 else 0
    core = sys.argv[2] if len(sys.argv) > 2 else "tma"
    failure = disagreement(torch.device("cuda", index), core, CASES)
    if failure is not None:
        raise SystemExit(failure)


if __name__ == "__main__":
    main()
