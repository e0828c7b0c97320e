"""Compare the core tma of the CUDA kernels with the core mma on a device.

    python -m mirror_train.loss.cuda_check [DEVICE]

The last line says what differs, as JSON: {"failure": null} if the losses and gradients of both
agree and repeat bit for bit. Then the exit status is 0. Without such a line there is no verdict, as
where the device's memory is taken. This decides which core becomes the default
(`mirror_train.loss.cuda_device`).
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import sys
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from mirror_train.loss.cuda_device import VARIABLE
from mirror_train.loss.cuda_kernel import CudaKernel
from mirror_train.loss.kernel import Inputs, Options, Variant

# Of a result: the norm of the difference to the norm. The cores round in other places, and round
# 16-bit weights.
_TOLERANCES = {torch.float32: 1e-5, torch.float16: 5e-3, torch.bfloat16: 5e-3}
# Of every row of the gradients: among all rows those of one wrong tile would hardly show.
_ROW_TOLERANCES = {torch.float32: 1e-4, torch.float16: 5e-3, torch.bfloat16: 5e-3}
_COSINE_TOLERANCE = 1e-5  # divided by the temperature, the tolerance of a score
_REPEATS = 4
_NO_MEMORY = re.compile("out of memory|cudaErrorMemoryAllocation", re.IGNORECASE)


class Case(NamedTuple):
    """A problem that both cores solve; the tiles are those of `CudaKernel`.

    With `alike` both views are the same, and their pull on each other, which exceeds all the rest
    in a large batch, vanishes: the products of the tiles are left of a gradient.
    """

    n: int
    dim: int
    dtype: torch.dtype
    temperature: float
    variant: Variant = "ntxent"
    hard: int = 0
    grouped: bool = False
    panel_tiles: int = 0
    logsumexp_tiles: int = 0
    alike: bool = False


# Every kernel of the core: one part and two, bounded scores and any, sums 128, 192 and 256 wide,
# across and down, many waves.
CASES = (
    Case(401, 200, torch.float32, 0.04, hard=33, grouped=True, panel_tiles=9, logsumexp_tiles=3),
    Case(401, 96, torch.float32, 0.01, "one_way", hard=70),
    Case(1025, 312, torch.bfloat16, 0.01, panel_tiles=9, logsumexp_tiles=3),
    Case(300, 100, torch.float16, 0.04),
    Case(700, 384, torch.float16, 0.04, "one_way", grouped=True),
    Case(8192, 768, torch.bfloat16, 0.04, "decoupled", alike=True),
)


def disagreement(device: torch.device, cases: Sequence[Case], module: Any = None) -> str | None:
    """Return where tma disagrees with mma in some problems; None if it does not.

    `module` is as for `CudaKernel`. A RuntimeError says that a core cannot run on the device.
    """
    with _poisoned_memory():
        for case in cases:
            waves = {"panel_tiles": case.panel_tiles, "logsumexp_tiles": case.logsumexp_tiles}
            kernel, inputs = CudaKernel(module, **waves), make_inputs(case, device)
            expected = _solve(kernel, inputs, case, "mma")
            first = _solve(kernel, inputs, case, "tma")
            if (difference := _difference(first, expected, case)) is not None:
                return f"{case}: {difference}"
            for _ in range(_REPEATS):
                again = _solve(kernel, inputs, case, "tma")
                if not all(torch.equal(x, y) for x, y in zip(first, again, strict=True)):
                    return f"{case}: another result of the same call"
    return None


def _difference(found: Sequence[Tensor], expected: Sequence[Tensor], case: Case) -> str | None:
    """Return which of the results of `_solve` differs by how much; None if they agree."""
    names = ("loss", "weights of rows", "z1", "z2", "hard")
    for name, x, y in zip(names, found, expected, strict=False):
        x, y = (z.double().reshape(-1, z.shape[1] if z.ndim == 2 else 1) for z in (x, y))
        if name == "weights of rows":
            whole, of_rows = math.inf, _COSINE_TOLERANCE / case.temperature
        else:
            whole, of_rows = _TOLERANCES[case.dtype], _ROW_TOLERANCES[case.dtype]
        difference = x - y
        for error, tolerance in [
            (difference.norm() / y.norm(), whole),
            ((difference.norm(dim=1) / y.norm(dim=1)).max(), of_rows),
        ]:
            if not error <= tolerance:  # a NaN is an error, too
                return f"{name} differs by {error:.1e}"
    return None


@contextlib.contextmanager
def _poisoned_memory() -> Iterator[None]:
    """Let `torch.empty` give NaN: memory used again would hold the other core's right answer."""
    before = torch.are_deterministic_algorithms_enabled()
    warns = torch.is_deterministic_algorithms_warn_only_enabled()
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before, warn_only=warns)


def make_inputs(case: Case, device: torch.device) -> Inputs:
    """Return the embeddings of a case, the same on every device."""
    generator = torch.Generator().manual_seed(0)
    z = torch.randn(2 * case.n + case.hard, case.dim, generator=generator)
    if case.alike:
        z[case.n : 2 * case.n] = z[: case.n]
    else:
        z[case.n : 2 * case.n] += 0.3 * z[: case.n]
    z = z.to(device, case.dtype)
    z1, z2, hard = z[: case.n], z[case.n : 2 * case.n], z[2 * case.n :]
    ids = torch.arange(case.n, device=device) // 2 if case.grouped else None
    return Inputs(z1, z2, hard if case.hard else None, ids)


def _solve(kernel: CudaKernel, inputs: Inputs, case: Case, core: str) -> list[Tensor]:
    """Return the loss, the weights of the rows that the tiles are given, and the gradients."""
    os.environ[VARIABLE] = core
    options = Options(case.temperature, case.variant, "cuda")
    loss, weights, log_weights = kernel.forward(inputs, options)
    given = (inputs, weights, log_weights, torch.ones_like(loss))
    return [loss, log_weights.double().exp(), *kernel.backward(*given, options)]


def _start(device: torch.device) -> None:
    torch.zeros(1, device=device)


def main() -> int:
    """Check the device of the number that was given, by default 0."""
    torch.set_num_threads(1)
    device = torch.device("cuda", int(sys.argv[1]) if len(sys.argv) > 1 else 0)
    _start(device)  # an error here is no verdict
    try:
        failure = disagreement(device, CASES)
    except RuntimeError as error:
        if _NO_MEMORY.search(str(error)):
            raise
        failure = str(error).splitlines()[0]
    sys.stdout.write(json.dumps({"failure": failure}) + "\n")
    return int(failure is not None)


if __name__ == "__main__":
    sys.exit(main())
