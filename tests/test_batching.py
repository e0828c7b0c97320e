import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from mirror_rt.batching import plan_batches


@given(st.lists(st.integers(0, 300), max_size=80), st.integers(1, 500))
def test_every_row_once_and_within_the_budget(lengths, budget):
    lengths = np.array(lengths, dtype=np.int64)
    batches = list(plan_batches(lengths, token_budget=budget))
    assert sorted(np.concatenate(batches).tolist() if batches else []) == list(range(len(lengths)))
    for rows in batches:
        assert len(rows) == 1 or len(rows) * lengths[rows].max() <= budget


def test_little_padding_on_mixed_lengths(rng):
    lengths = np.minimum(rng.geometric(1 / 40, size=3000) + 2, 400)
    padded = sum(len(b) * lengths[b].max() for b in plan_batches(lengths, token_budget=2048))
    assert 1 - lengths.sum() / padded < 0.05
