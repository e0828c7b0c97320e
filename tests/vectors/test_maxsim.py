"""MaxSim: the products of numpy, in every precision and instruction set, whatever is beside."""

from __future__ import annotations

import numpy as np
import pytest

from mirror_rt import ConfigError, _core, quantize_embeddings
from mirror_rt.vectors.maxsim import maxsim
from mirror_rt.vectors.normalization import normalize_rows

ISAS = _core.vector_instruction_sets()


def drawn(rng, *lengths: int, dimension: int = 20) -> list[np.ndarray]:
    return [
        normalize_rows(rng.normal(size=(length, dimension)).astype(np.float32))
        for length in lengths
    ]


def expected(queries, documents) -> np.ndarray:
    return np.array([
        [(q.astype(np.float64) @ d.astype(np.float64).T).max(axis=1).sum() for d in documents]
        for q in queries
    ])  # fmt: skip


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dimension", [1, 20, 128])
def test_scores_are_those_of_numpy(rng, isa, dimension):
    queries = drawn(rng, 1, 7, 32, 33, dimension=dimension)
    documents = drawn(rng, 1, 5, 11, 12, 13, 47, 48, 49, 100, dimension=dimension)
    found = _core.max_similarities(queries, documents, threads=2, instruction_set=isa)
    # Sums of unit vectors' products: each within dimension units of rounding.
    bound = 33 * dimension * 2.0**-24
    np.testing.assert_allclose(found, expected(queries, documents), rtol=0, atol=bound)
    alone = _core.max_similarities(queries[2:3], documents[7:8], threads=1, instruction_set=isa)
    assert alone == found[2, 7]


def test_documents_of_fewer_bytes(rng):
    queries, documents = drawn(rng, 5, 32, dimension=64), drawn(rng, 3, 60, 200, dimension=64)
    halves = [one.astype(np.float16) for one in documents]
    np.testing.assert_allclose(
        maxsim(queries, halves), expected(queries, halves), rtol=0, atol=33 * 64 * 2.0**-24
    )
    for precision in ("int8", "uint8"):
        codes = [quantize_embeddings(one, precision) for one in documents]
        # The middle of a step is within half of it, 1 / 255 in each of 64 dimensions at most.
        step = 2 / 255
        worst = np.array([[len(q)] for q in queries]) * 8 * step / 2
        assert (np.abs(maxsim(queries, codes) - expected(queries, documents)) < worst).all()
    ranges = np.stack([np.full(64, -0.5), np.full(64, 0.6)])
    coded = [quantize_embeddings(one, "int8", ranges) for one in documents]
    middles = [ranges[0] + (one.astype(np.float64) + 128.5) * (1.1 / 255) for one in coded]
    np.testing.assert_allclose(
        maxsim(queries, coded, ranges=ranges), expected(queries, middles), rtol=0, atol=1e-3
    )


def test_documents_may_be_views_and_empty(rng):
    queries, (tokens,) = drawn(rng, 4), drawn(rng, 30)
    views = [tokens[:10], tokens[10:10], tokens[10:], tokens[::2]]
    found = maxsim(queries, views)
    assert found[0, 1] == -np.inf
    kept = [views[i] for i in (0, 2, 3)]
    np.testing.assert_allclose(found[:, [0, 2, 3]], expected(queries, kept), rtol=0, atol=1e-5)
    assert maxsim([], views).shape == (0, 4)
    assert maxsim(queries, []).shape == (1, 0)


def test_a_token_of_nan_counts_as_none(rng):
    queries, (document,) = drawn(rng, 4), drawn(rng, 30)
    spoilt = np.insert(document, 7, np.nan, axis=0)
    assert maxsim(queries, [spoilt]) == maxsim(queries, [document])


@pytest.mark.parametrize(
    ("queries", "documents", "message"),
    [
        ([np.zeros((2, 4))], [np.zeros((3, 5), np.float32)], r"arrays \[t, 4\], got \[3, 5\]"),
        ([np.zeros(4)], [np.zeros((3, 4), np.float32)], r"query 0 is no finite array"),
        ([np.full((2, 4), np.nan)], [np.zeros((3, 4), np.float32)], "query 0 is no finite"),
        ([np.zeros((2, 4))], [np.zeros((3, 4))], "of float64, expected one of float32"),
        ([np.zeros((2, 4))], [np.zeros((3, 4), np.int8), np.zeros((3, 4), np.float16)],
         "of float16, int8, expected"),
        ([np.zeros((2, 4))], ["text"], "of str, expected"),
    ],
)  # fmt: skip
def test_wrong_arrays_are_refused(queries, documents, message):
    with pytest.raises(ConfigError, match=message):
        maxsim(queries, documents)


def test_ranges_are_for_codes(rng):
    with pytest.raises(ConfigError, match="ranges are for int8 and uint8, not float32"):
        maxsim(drawn(rng, 2), drawn(rng, 2), ranges=np.zeros((2, 20)))


def test_native_scores_check_what_they_get(rng):
    queries, documents = drawn(rng, 2), drawn(rng, 3)
    with pytest.raises(ValueError, match="one length"):
        _core.max_similarities(queries, [documents[0][:, :3].copy()], threads=1)
    with pytest.raises(ValueError, match="two dimensions"):
        _core.max_similarities([queries[0][0]], documents, threads=1)
    with pytest.raises(ValueError, match="threads"):
        _core.max_similarities(queries, documents, threads=0)
    with pytest.raises(ValueError, match="has no"):
        _core.max_similarities(queries, documents, threads=1, instruction_set="none")
