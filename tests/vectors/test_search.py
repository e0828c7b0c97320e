"""The nearest rows of a matrix, against plain numpy."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from mirror_rt import ConfigError, _core, calibration_ranges, quantize_embeddings, search
from mirror_rt.vectors import search as retrieval
from mirror_rt.vectors.search import cosine_similarity

ISAS = _core.vector_instruction_sets()


def unit(rng, rows, dimension):
    vectors = rng.standard_normal((rows, dimension)).astype(np.float32)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def best_in_numpy(scores, k):
    """The reference: highest scores first, of equal ones the first row."""
    order = np.argsort(-scores, axis=1, kind="stable")[:, :k]
    return np.take_along_axis(scores, order, 1), order


def check_best(found, exact, rounding):
    """What is found has its exact score, and none is better than it, but for the rounding."""
    scores, indices = found
    of_these = np.take_along_axis(exact, indices, 1)
    best, _ = best_in_numpy(exact, scores.shape[1])
    for wanted in (of_these, best):
        assert (abs(scores - wanted) <= rounding).all()
    assert (np.diff(scores) <= 0).all()
    assert all(len({*row}) == len(row) for row in indices.tolist())


def heaps(queries, k):
    return np.full((queries, k), -np.inf, np.float32), np.full((queries, k), -1, np.int64)


def in_order(scores, indices):
    order = np.lexsort((indices, -scores), axis=-1)
    return np.take_along_axis(scores, order, -1), np.take_along_axis(indices, order, -1)


@pytest.mark.parametrize("isa", ISAS)
@given(
    scores=hnp.arrays(np.float32, st.tuples(st.integers(1, 3), st.integers(1, 120)),
                      elements=st.integers(-4, 4)),
    k=st.integers(1, 40), cut=st.integers(0, 120),
)  # fmt: skip
def test_keep_best_equals_sorting(isa, scores, k, cut):
    best = heaps(len(scores), k)
    for part, first in ((scores[:, :cut], 0), (scores[:, cut:], min(cut, scores.shape[1]))):
        _core.keep_best(np.ascontiguousarray(part), first, *best, instruction_set=isa)
    expected_scores, expected = best_in_numpy(scores, k)
    found_scores, found = in_order(*best)
    n = expected.shape[1]
    np.testing.assert_array_equal(found[:, :n], expected)
    np.testing.assert_array_equal(found_scores[:, :n], expected_scores)
    assert (found[:, n:] == -1).all()


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("signed", [False, True])
@pytest.mark.parametrize("parts", [1, 3])
@pytest.mark.parametrize(("rows", "dimension"), [(1, 1), (37, 31), (200, 64), (97, 384)])
def test_native_codes_search_equals_numpy(rng, isa, signed, parts, rows, dimension):
    corpus = rng.integers(0, 256, (rows, dimension), dtype=np.uint8)
    queries = rng.integers(-8000, 8000, (5, dimension), dtype=np.int16)
    wide = (corpus.view(np.int8) if signed else corpus).astype(np.int64)
    expected = best_in_numpy(queries.astype(np.int64) @ wide.T, 7)
    scores, indices = _core.search_codes(
        queries, corpus, signed=signed, k=7, parts=parts, instruction_set=isa
    )
    assert scores.shape == indices.shape == (parts, 5, 7)
    found = retrieval._merge(scores, indices, expected[0].shape[1])
    for got, want in zip(found, expected, strict=True):
        np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("isa", ISAS)
def test_every_half_is_widened_exactly(isa):
    """By products with 1; as products with 0 are added, those of infinity and NaN stand alone."""
    halves = np.arange(1 << 16, dtype=np.uint16)
    options = {"parts": 3, "instruction_set": isa}
    for queries in (1, 9):  # a row is widened for each of a few queries, and once for many
        alone = _core.half_products(np.ones((queries, 1), np.float32), halves[:, None], **options)
        for found in alone:
            np.testing.assert_array_equal(found, halves.view(np.float16).astype(np.float32))
    finite = halves[np.isfinite(halves.view(np.float16))]
    for dimension in (16, 31):  # whole vectors, and what is left behind them
        rows = finite[: len(finite) // dimension * dimension].reshape(-1, dimension)
        for queries in (
            np.eye(dimension, dtype=np.float32),
            np.eye(3, dimension, dtype=np.float32),
        ):
            found = _core.half_products(queries, rows, **options)
            expected = rows.view(np.float16).astype(np.float32).T[: len(queries)]
            np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("parts", [1, 3])
@pytest.mark.parametrize("count", [3, 8, 35])
@pytest.mark.parametrize(("rows", "dimension"), [(1, 1), (37, 31), (200, 64), (97, 384)])
def test_native_half_products_equal_numpy(rng, isa, parts, rows, dimension, count):
    queries, corpus = unit(rng, count, dimension), unit(rng, rows, dimension).astype(np.float16)
    halves = corpus.view(np.uint16)
    found = _core.half_products(queries, halves, parts=parts, instruction_set=isa)
    exact = queries.astype(float) @ corpus.astype(float).T
    bound = abs(queries).astype(float) @ abs(corpus).astype(float).T * dimension * 2**-24
    assert (abs(found - exact) <= bound + 2**-24 * abs(exact)).all()
    least = 1 if count < 8 else 8
    last = _core.half_products(queries[-least:], halves[-1:], parts=1, instruction_set=isa)
    assert np.array_equal(last, found[-least:, -1:])  # the same beside any others


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("parts", [1, 3])
@pytest.mark.parametrize(("rows", "size"), [(1, 1), (90, 5), (333, 48), (40, 128)])
def test_native_bits_search_equals_numpy(rng, isa, parts, rows, size):
    corpus = rng.integers(0, 256, (rows, size), dtype=np.uint8)
    queries = rng.integers(0, 256, (4, size), dtype=np.uint8)
    different = np.unpackbits(queries[:, None] ^ corpus, axis=-1).sum(-1).astype(np.int64)
    expected = best_in_numpy(-different, 9)
    found = retrieval._merge(
        *_core.search_bits(queries, corpus, k=9, parts=parts, instruction_set=isa),
        expected[0].shape[1],
    )
    for got, want in zip(found, expected, strict=True):
        np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("precision", ["float64", "float32", "float16", "int8", "ubinary"])
def test_a_mask_is_a_search_among_its_rows(rng, precision):
    queries, vectors = unit(rng, 4, 48), unit(rng, 60, 48)
    floats = precision.startswith("float")
    corpus = vectors.astype(precision) if floats else quantize_embeddings(vectors, precision)
    mask = rng.random(60) < 0.3
    rows = np.flatnonzero(mask)
    found, alone = search(queries, corpus, 50, mask=mask), search(queries, corpus[rows], 50)
    np.testing.assert_array_equal(found.indices, rows[alone.indices])
    assert found.indices.shape == (4, len(rows))
    assert search(queries, corpus, 5, mask=np.zeros(60, bool)).indices.shape == (4, 0)


@pytest.mark.parametrize("mask", [np.ones(3), np.ones(3, bool), [0, 1]])
def test_a_mask_has_a_bool_for_each_row(mask):
    with pytest.raises(ConfigError, match=r"mask.*bool \[2\], one for each row"):
        search(np.ones(4), np.ones((2, 4)), mask=mask)


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize(("queries", "rows"), [(1, 40), (3, 20_000), (300, 700)])
def test_float_search_is_exact(rng, dtype, queries, rows):
    a, corpus = unit(rng, queries, 48), unit(rng, rows, 48).astype(dtype)
    found = search(a, corpus, 10)
    assert (found.scores.dtype, found.indices.dtype) == (np.float32, np.int64)
    # 48 products of unit vectors are added up, in any order.
    check_best(found, a.astype(float) @ corpus.astype(float).T, rounding=(48 + 2) * 2**-24)


@pytest.mark.parametrize("precision", ["int8", "uint8"])
@pytest.mark.parametrize("calibrated", [False, True])
@pytest.mark.parametrize("dimension", [24, 384, 1024])
def test_codes_search_scores_are_those_of_the_codes(rng, precision, calibrated, dimension):
    corpus, queries = unit(rng, 900, dimension), unit(rng, 6, dimension)
    ranges = calibration_ranges(corpus) if calibrated else retrieval.unit_ranges(dimension)
    codes = quantize_embeddings(corpus, precision, ranges if calibrated else None)
    offset = 128.5 if precision == "int8" else 0.5
    starts, steps = ranges[0].astype(float), (ranges[1] - ranges[0]).astype(float) / 255
    exact = queries.astype(float) @ (starts + (codes + offset) * steps).T
    found = search(queries, codes, 10, ranges=ranges if calibrated else None)
    # The weights of the codes are rounded to integers, whose sum of products has 31 bits; the rest
    # is computed in float32.
    code = 128 if precision == "int8" else 255
    limit = min(2**15 - 1, (2**31 - 1) // (code * dimension))
    integers = dimension * code / 2 * abs(queries * steps).max(axis=1, keepdims=True) / limit
    floats = abs(queries) @ (abs(starts) + 256 * steps)[:, None] * (dimension + 4) * 2**-24
    check_best(found, exact, rounding=integers + floats)


@pytest.mark.parametrize("precision", ["binary", "ubinary"])
@pytest.mark.parametrize("dimension", [30, 64, 384])
def test_bits_search_finds_the_source_of_a_noisy_query(rng, precision, dimension):
    corpus = unit(rng, 800, dimension)
    queries = corpus[:20] + 0.2 * unit(rng, 20, dimension)
    bits = quantize_embeddings(corpus, precision)
    scores, indices = search(queries, bits, 5)
    assert indices[:, 0].tolist() == list(range(20))
    signs = np.where(corpus > 0, 1, -1) / dimension**0.5
    exact = queries.astype(float) @ signs.T
    # Twice the sum of those with a 1, less the sum of all, over the root of their number.
    rounding = 3 * (dimension + 4) * 2**-24 * abs(queries).sum(1, keepdims=True) / dimension**0.5
    assert (abs(scores - np.take_along_axis(exact, indices, 1)) <= rounding).all()
    check_best(search(queries, bits, 5, rescore=200), exact, rounding)


@pytest.mark.parametrize("precision", ["float32", "float16", "int8", "uint8", "binary", "ubinary"])
def test_shapes(rng, precision):
    vectors = unit(rng, 6, 64)
    corpus = quantize_embeddings(vectors, precision)
    one = search(vectors[2], corpus, 3)
    assert one.indices.shape == (3,)
    assert one.indices[0] == 2
    assert search(vectors, corpus, 50).indices.shape == (6, 6)
    assert search(vectors, corpus[:0], 3).indices.shape == (6, 0)
    assert search(vectors[:0], corpus, 3).indices.shape == (0, 3)


def test_rows_of_nan_are_never_found(rng):
    corpus = unit(rng, 50, 16)
    query = corpus[4].copy()
    corpus[4:49] = np.nan
    scores, indices = search(query, corpus, 8)
    assert sorted(indices) == [0, 1, 2, 3, 49]
    assert np.isfinite(scores).all()


def test_a_corpus_on_disk(rng, tmp_path):
    np.save(tmp_path / "corpus.npy", unit(rng, 30, 16))
    corpus = np.load(tmp_path / "corpus.npy", mmap_mode="r")
    assert search(corpus[7], corpus, 1).indices.tolist() == [7]
    codes = quantize_embeddings(corpus, "int8")
    np.save(tmp_path / "codes.npy", codes)
    codes = np.load(tmp_path / "codes.npy", mmap_mode="r")
    assert search(corpus[7], codes, 1).indices.tolist() == [7]


def test_cosine_similarity(rng):
    a, b = rng.standard_normal((4, 9)), rng.standard_normal((3, 9)).astype(np.float16)
    expected = [[x @ y / np.linalg.norm(x) / np.linalg.norm(y) for y in b.astype(float)] for x in a]
    np.testing.assert_allclose(cosine_similarity(a, b), expected, atol=30 * 2**-24)  # 9 products
    assert cosine_similarity(a[0], b[0]).shape == (1, 1)
    assert not cosine_similarity(np.zeros((2, 9)), b).any()
    with pytest.raises(ConfigError, match="vectors of 9 and of 5 dimensions"):
        cosine_similarity(a, b[:, :5])
    with pytest.raises(ConfigError, match="b must be floating-point vectors, got int8"):
        cosine_similarity(a, np.zeros((2, 9), np.int8))


@pytest.mark.parametrize(
    ("corpus", "options", "message"),
    [
        (np.zeros((5, 16), np.float32), {"k": 0}, "k and rescore must be at least 1, got 0 and 4"),
        (np.zeros((5, 16), np.float32), {"rescore": 0}, "at least 1, got 10 and 0"),
        (np.zeros((5, 9), np.float32), {}, "vectors of 16 and of 9 dimensions"),
        (np.zeros((5, 9), np.int8), {}, "9 bytes a row is neither codes nor bits"),
        (np.zeros((5, 16), np.int32), {}, "must be floats, int8 or uint8, got int32"),
        (np.zeros(16, np.float32), {}, r"must be an array \[n, D\], got an array \[16\]"),
        ([[0.0]], {}, r"must be an array \[n, D\], got list"),
        (np.zeros((5, 16), np.int8), {"ranges": np.zeros((2, 3))}, r"ranges must be \[2, 16\]"),
    ],
)
def test_bad_arguments(corpus, options, message):
    with pytest.raises(ConfigError, match=message):
        search(np.ones((2, 16), np.float32), corpus, **options)


def test_bad_queries():
    corpus = np.ones((3, 4), np.float32)
    with pytest.raises(ConfigError, match="query 1 holds NaN or infinity"):
        search(np.array([[1, 1, 1, 1], [1, np.nan, 1, 1]], np.float32), corpus)
    with pytest.raises(ConfigError, match="queries must be floating-point vectors, got int8"):
        search(np.ones((2, 4), np.int8), corpus)
    with pytest.raises(ConfigError, match=r"queries must be \[n, D\] or \[D\], got \[1, 2, 4\]"):
        search(np.ones((1, 2, 4), np.float32), corpus)


def test_wrong_native_calls_raise_and_do_not_crash():
    bits = np.zeros((3, 4), np.uint8)
    with pytest.raises(ValueError, match="rows of one length"):
        _core.search_bits(bits, bits[:, :2].copy(), k=1, parts=1)
    with pytest.raises(ValueError, match="k and parts must be at least 1"):
        _core.search_bits(bits, bits, k=1, parts=0)
    with pytest.raises(ValueError, match=r"must be \[queries, k\]"):
        _core.keep_best(np.zeros((2, 3), np.float32), 0, *heaps(1, 4))
    halves, queries = np.zeros((3, 4), np.uint16), np.zeros((2, 4), np.float32)
    with pytest.raises(ValueError, match="queries and rows must have one length"):
        _core.half_products(queries[:, :2].copy(), halves, parts=1)
    with pytest.raises(ValueError, match="parts must be at least 1"):
        _core.half_products(queries, halves, parts=0)
    with pytest.raises(TypeError):
        _core.search_codes(bits.astype(np.float32), bits, signed=True, k=1, parts=1)
