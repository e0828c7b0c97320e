import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirror_rt import _core
from mirror_rt.tokens.padding import RaggedTokens

ragged = st.lists(st.lists(st.integers(0, 2**31 - 1), max_size=12), min_size=1, max_size=12)


def pad_with_numpy(sequences, rows, pad_id, length):
    """The reference: what the native code must equal."""
    ids = np.full((len(rows), length), pad_id, dtype=np.int64)
    mask = np.zeros_like(ids)
    for out, row in enumerate(rows):
        ids[out, : len(sequences[row])] = sequences[row]
        mask[out, : len(sequences[row])] = 1
    return ids, mask, np.zeros_like(ids)


@given(ragged, st.data())
def test_pad_equals_numpy(sequences, data):
    tokens = RaggedTokens.from_lists(sequences)
    rows = np.array(data.draw(st.lists(st.integers(0, len(sequences) - 1), max_size=8)), np.int64)
    longest = max((len(sequences[row]) for row in rows), default=0)
    extra = data.draw(st.integers(0, 3))
    batch = tokens.pad(rows, pad_id=7, length=longest + extra)
    for got, expected in zip(
        batch, pad_with_numpy(sequences, rows, 7, longest + extra), strict=True
    ):
        assert got.dtype == np.int64
        np.testing.assert_array_equal(got, expected)


def test_length_defaults_to_longest_chosen_row():
    tokens = RaggedTokens.from_lists([[1, 2, 3], [4], []])
    assert tokens.pad(np.array([1, 2]), pad_id=0).input_ids.tolist() == [[4], [0]]
    np.testing.assert_array_equal(tokens.lengths, [3, 1, 0])
    assert len(tokens) == 3


@pytest.mark.parametrize("rows", [[3], [-1]])
def test_row_out_of_range(rows):
    tokens = RaggedTokens.from_lists([[1], [2], [3]])
    with pytest.raises(IndexError, match=r"row -?\d is outside 0 .. 2"):
        tokens.pad(np.array(rows), pad_id=0)


def test_length_too_short():
    with pytest.raises(ValueError, match="length 1 is shorter than the longest row, 3"):
        RaggedTokens.from_lists([[1, 2, 3]]).pad(np.array([0]), pad_id=0, length=1)


@pytest.mark.parametrize("bad", [-1, 2**31, 2**40])
def test_id_out_of_range(bad):
    with pytest.raises(ValueError, match=f"token id {bad} in sequence 1"):
        RaggedTokens.from_lists([[1], [bad]])


def test_wrong_types_raise_and_do_not_crash():
    with pytest.raises(TypeError, match="sequence 0 must be a list of int, not tuple"):
        _core.flatten([(1, 2)])
    with pytest.raises(TypeError, match="a token id in sequence 0 must be int, not str"):
        _core.flatten([["a"]])
    with pytest.raises(ValueError, match="a token id in sequence 1 is outside"):
        _core.flatten([[1], [2**70]])
    with pytest.raises(ValueError, match="offsets must rise"):
        _core.pad_rows(np.zeros(2, np.int32), np.array([0, 5]), np.array([0]), pad_id=0)
    with pytest.raises(TypeError):
        _core.pad_rows(np.zeros(2, np.float32), np.array([0, 2]), np.array([0]), pad_id=0)
