"""Plan batches over texts sorted by length: little padding, few runs (csrc/tokens/batching.cpp)."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import numpy.typing as npt

from mirror_rt import _core

# The fixed cost of a run, expressed in tokens: benchmarks/encode/batching.py measures it on a CPU.
# A GPU computes some thousand tokens in the time that it takes to start the operators of a model.
CPU_RUN_COST, GPU_RUN_COST = 16, 2048


def plan_batches(
    lengths: npt.NDArray[np.int64], *, token_budget: int, run_cost: int = 0
) -> list[npt.NDArray[np.int64]]:
    """Group rows of similar length into the batches that are cheapest to run one by one.

    A batch of r rows of at most L tokens costs r * L + `run_cost`. Dynamic programming finds the
    split of the sorted rows with the smallest total cost. The longest rows come first, so that the
    largest buffers are allocated once, at the start. No batch has more than `token_budget` padded
    tokens (r * L), but for a longer row, which makes a batch of its own.

    The result has int64 [b] for each batch: the indices of its rows.
    """
    order = np.argsort(lengths, kind="stable")
    ends = _core.plan_batches(lengths[order], token_budget=token_budget, run_cost=run_cost)
    return [order[begin:end] for begin, end in pairwise([0, *ends.tolist()])][::-1]
