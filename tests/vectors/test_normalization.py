"""Rows of unit length, and rows that have none."""

import numpy as np
import pytest

from mirror_rt import _core
from mirror_rt.vectors.normalization import normalize_rows
from rounding import of_norms


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_rows_have_unit_length_and_zeros_stay(rng, dtype):
    rows = rng.standard_normal((5, 7)).astype(dtype)
    rows[2] = 0
    before = rows.copy()
    unit = normalize_rows(rows)
    assert unit.dtype == dtype
    np.testing.assert_allclose(np.linalg.norm(unit, axis=1), [1, 1, 0, 1, 1], atol=of_norms(7))
    np.testing.assert_allclose(unit[0] * np.linalg.norm(rows[0]), rows[0], rtol=of_norms(7))
    np.testing.assert_array_equal(rows, before)
    assert normalize_rows(rows[:0]).shape == (0, 7)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_rows_that_are_not_finite_are_found(rng, bad):
    rows = rng.standard_normal((6, 33)).astype(np.float32)
    rows[0] = np.finfo(np.float32).max  # large, and finite
    assert _core.non_finite_rows(rows) == []
    rows[1, 0] = rows[4, 32] = bad
    assert _core.non_finite_rows(rows) == [1, 4]
    assert _core.non_finite_rows(rows[:, 1:]) == [4]  # not contiguous
    assert _core.non_finite_rows(rows[:0]) == []
    with pytest.raises(ValueError, match="vectors must have two dimensions"):
        _core.non_finite_rows(rows[0])
