import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirror_rt import _core
from mirror_rt.tokens.batching import CPU_RUN_COST, plan_batches

lengths_lists = st.lists(st.integers(0, 300), max_size=60)


def least_cost(lengths, budget, run_cost):
    """The reference: the same dynamic program, in Python."""
    rows = sorted(max(1, n) for n in lengths)
    best = [0]
    for j in range(1, len(rows) + 1):
        longest = rows[j - 1]
        starts = [i for i in range(j) if j - i == 1 or (j - i) * longest <= budget]
        best.append(min(best[i] + (j - i) * longest + run_cost for i in starts))
    return best[-1]


@given(lengths_lists, st.integers(1, 500), st.integers(0, 100))
def test_every_row_once_within_the_budget_and_no_split_is_cheaper(lengths, budget, run_cost):
    lengths = np.array(lengths, dtype=np.int64)
    batches = list(plan_batches(lengths, token_budget=budget, run_cost=run_cost))
    assert sorted(np.concatenate(batches).tolist() if batches else []) == list(range(len(lengths)))
    for rows in batches:
        assert len(rows) == 1 or len(rows) * lengths[rows].max() <= budget
    longest = [int(max(1, lengths[rows].max())) for rows in batches]
    assert longest == sorted(longest, reverse=True)
    cost = sum(len(rows) * n + run_cost for rows, n in zip(batches, longest, strict=True))
    assert cost == least_cost(lengths.tolist(), budget, run_cost)


def test_equal_lengths_fill_the_budget():
    batches = list(plan_batches(np.full(96, 16), token_budget=512, run_cost=CPU_RUN_COST))
    assert [len(rows) for rows in batches] == [32, 32, 32]


def test_wrong_native_calls_raise_and_do_not_crash():
    for lengths in ([3, 1], [-1, 2], [2**62]):
        with pytest.raises(ValueError, match="lengths must rise from 0"):
            _core.plan_batches(np.array(lengths), token_budget=9, run_cost=0)
    assert _core.plan_batches(np.empty(0, np.int64), token_budget=9, run_cost=0).tolist() == []
    assert _core.plan_batches(np.array([4, 9]), token_budget=0, run_cost=2).tolist() == [1, 2]
