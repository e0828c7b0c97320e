"""Fewer bytes: the native codes against numpy and against sentence-transformers."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from mirror_rt import ConfigError, _core, calibration_ranges, quantize_embeddings
from mirror_rt.vectors.quantization import unit_ranges

PRECISIONS = ["float32", "float16", "int8", "uint8", "binary", "ubinary"]


@pytest.fixture
def vectors(rng):
    vectors = rng.standard_normal((60, 37)).astype(np.float32)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def codes_in_numpy(x, starts, steps, signed):
    codes = np.clip(np.floor((x - starts) / steps), 0, 255)
    return (codes - 128).astype(np.int8).view(np.uint8) if signed else codes.astype(np.uint8)


@pytest.mark.parametrize("isa", _core.vector_instruction_sets())
@pytest.mark.parametrize("signed", [False, True])
@given(
    x=hnp.arrays(np.float32, st.tuples(st.integers(0, 5), st.integers(1, 40)),
                 elements=st.floats(-3, 3, width=32)),
    step=st.floats(1 / 1024, 1, width=32),
)  # fmt: skip
def test_native_codes_equal_numpy(isa, signed, x, step):
    starts = np.linspace(-1, 0, x.shape[1], dtype=np.float32)
    steps = np.full(x.shape[1], step, dtype=np.float32)
    found = _core.quantize_rows(x, starts, steps, signed=signed, instruction_set=isa)
    np.testing.assert_array_equal(found, codes_in_numpy(x, starts, steps, signed))


@pytest.mark.parametrize("precision", ["float32", "int8", "uint8", "binary", "ubinary"])
def test_the_codes_are_those_of_sentence_transformers(vectors, precision):
    from sentence_transformers.util.quantization import quantize_embeddings as theirs

    sample = vectors[:20]
    for options in ({"ranges": calibration_ranges(sample)}, {"calibration_embeddings": sample}):
        if not precision.endswith("int8"):
            options = {}
        found = quantize_embeddings(vectors, precision, **options)
        expected = theirs(vectors, precision, **options)
        assert found.dtype == expected.dtype
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_shapes_and_one_vector(vectors, precision):
    whole = quantize_embeddings(vectors, precision)
    assert whole.shape == (60, 5 if "binary" in precision else 37)
    assert whole.dtype == {"binary": "int8", "ubinary": "uint8"}.get(precision, precision)
    np.testing.assert_array_equal(quantize_embeddings(vectors[3], precision), whole[3])
    assert quantize_embeddings(vectors[:0], precision).shape == (0, whole.shape[1])


def test_int8_of_unit_vectors_keeps_cosines_without_calibration(rng):
    for dimension in (64, 384, 1024):
        vectors = rng.standard_normal((50, dimension)).astype(np.float32)
        vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
        codes = quantize_embeddings(vectors, "int8").astype(np.float32) + 0.5
        codes /= np.linalg.norm(codes, axis=1, keepdims=True)
        assert np.einsum("nd,nd->n", codes, vectors).min() > 0.999
        np.testing.assert_allclose(codes @ codes.T, vectors @ vectors.T, atol=0.03)


def test_values_out_of_range_get_the_last_code():
    x = np.array([[-9, 9]], dtype=np.float32)
    ranges = np.array([[-1, -1], [1, 1]], dtype=np.float32)
    assert quantize_embeddings(x, "int8", ranges).tolist() == [[-128, 127]]
    assert quantize_embeddings(x, "uint8", ranges).tolist() == [[0, 255]]


def test_a_dimension_that_never_varies(vectors):
    vectors[:, 3] = 0.25
    codes = quantize_embeddings(vectors, "uint8", calibration_embeddings=vectors)
    assert not codes[:, 3].any()


@pytest.mark.parametrize("precision", PRECISIONS[2:])
def test_nan_has_no_code(vectors, precision):
    vectors[[7, 9], 20] = np.nan
    ranges = unit_ranges(37) if precision.endswith("int8") else None
    with pytest.raises(ConfigError, match=f"no {precision} code for NaN: row 7 holds NaN"):
        quantize_embeddings(vectors, precision, ranges)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("int4",), "precision must be one of float32, .*, got 'int4'"),
        (("float32", np.zeros((2, 37))), "ranges are for int8 and uint8, not float32"),
        (("int8", np.zeros((2, 9))), r"ranges must be \[2, 37\], got \[2, 9\]"),
        (("int8", np.array([[1.0] * 37, [0.0] * 37])), "no lower bound above its upper bound"),
        (("int8", np.full((2, 37), np.nan)), "ranges must be finite"),
        (("int8", np.zeros((2, 37)), np.zeros((3, 37))), "not both"),
        (("int8", None, np.zeros((1, 37))), r"with n of at least 2, got \[1, 37\]"),
        (("int8", None, np.zeros((9, 37), int)), "must be floating-point numbers, got int64"),
    ],
)
def test_bad_arguments(vectors, arguments, message):
    with pytest.raises(ConfigError, match=message):
        quantize_embeddings(vectors, *arguments)


def test_bad_embeddings(vectors):
    with pytest.raises(ConfigError, match="not of unit length needs ranges"):
        quantize_embeddings(vectors * 3, "int8")
    with pytest.raises(ConfigError, match=r"embeddings must be \[n, D\] or \[D\], got \[1, 60, 37"):
        quantize_embeddings(vectors[None], "int8")
    with pytest.raises(ConfigError, match="floating-point numbers, got int8"):
        quantize_embeddings(np.zeros((2, 3), np.int8), "int8")


def test_wrong_native_calls_raise_and_do_not_crash(vectors):
    ones = np.ones(37, np.float32)
    with pytest.raises(ValueError, match="one entry a dimension"):
        _core.quantize_rows(vectors, ones[:5], ones, signed=True)
    with pytest.raises(ValueError, match="two dimensions"):
        _core.quantize_rows(ones, ones, ones, signed=True)
    with pytest.raises(ValueError, match="this processor has no mmx"):
        _core.quantize_rows(vectors, ones, ones, signed=True, instruction_set="mmx")
