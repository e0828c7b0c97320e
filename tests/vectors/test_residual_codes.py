"""Residual codes: the numbers and bytes of ColBERT's index, and MaxSim as if decompressed."""

from __future__ import annotations

import numpy as np
import pytest

from mirror_rt import ConfigError, _core
from mirror_rt.vectors.maxsim import maxsim
from mirror_rt.vectors.normalization import normalize_rows
from mirror_rt.vectors.residual_codes import ResidualCodec

ISAS = _core.vector_instruction_sets()
BITS = [1, 2, 4]


def drawn(rng, *lengths: int, dimension: int = 64) -> list[np.ndarray]:
    """Draw documents whose tokens lie about 50 words, as those of texts do."""
    words = rng.normal(size=(50, dimension))
    return [
        normalize_rows(
            (words[rng.integers(0, 50, one)] + 0.5 * rng.normal(size=(one, dimension))).astype("f4")
        )
        for one in lengths
    ]


@pytest.fixture
def documents(rng):
    return drawn(rng, 1, 5, 11, 12, 47, 48, 49, 100, 300)


def parts(document: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The numbers of the centroids and the residuals, as the index of ColBERT has them."""
    return document[:, :4].copy().view(np.int32)[:, 0], document[:, 4:]


def of_colbert(codec: ResidualCodec, document: np.ndarray) -> np.ndarray:
    """Decompress as ColBERT's codec does on a CPU, by its tables, in PyTorch."""
    import torch

    bits, mask = codec.bits, (1 << codec.bits) - 1
    numbers, residuals = parts(document)
    reversed_bits = torch.tensor([
        sum(
            int(f"{byte >> shift & mask:0{bits}b}"[::-1], 2) << shift
            for shift in range(0, 8, bits)
        )
        for byte in range(256)
    ])  # fmt: skip
    buckets = torch.tensor([
        [byte >> shift & mask for shift in range(8 - bits, -1, -bits)] for byte in range(256)
    ])  # fmt: skip
    found = buckets[reversed_bits[torch.from_numpy(residuals).long()]]
    left = torch.from_numpy(codec.weights)[found.reshape(len(document), -1)]
    vectors = torch.from_numpy(codec.centroids)[torch.from_numpy(numbers).long()] + left
    return torch.nn.functional.normalize(vectors, dim=-1).numpy()


@pytest.mark.parametrize("bits", BITS)
def test_codes_are_those_of_colbert(rng, documents, bits):
    codec = ResidualCodec.train(np.concatenate(documents), bits)
    for vectors in documents:
        document = codec.compress(vectors)
        assert document.shape == (len(vectors), 4 + 64 * bits // 8)
        numbers, _ = parts(document)
        np.testing.assert_array_equal(
            numbers, (vectors @ codec.centroids.T).argmax(axis=1).astype(np.int32)
        )
        found = codec.decompress(document)
        np.testing.assert_allclose(found, of_colbert(codec, document), rtol=0, atol=1e-6)
        # A number of a bucket stands for a weight of it.
        left = vectors - codec.centroids[numbers]
        weights = codec.weights[np.searchsorted(codec.cutoffs, left)]
        expected = normalize_rows(codec.centroids[numbers] + weights)
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("dimension", [8, 24, 128])
def test_scores_are_those_of_decompressed_vectors(rng, isa, bits, dimension):
    documents = drawn(rng, 1, 5, 11, 12, 13, 47, 48, 49, 100, dimension=dimension)
    queries = drawn(rng, 1, 7, 32, 33, dimension=dimension)
    codec = ResidualCodec.train(np.concatenate(documents), bits)
    coded = [codec.compress(one) for one in documents]

    def score(queries, documents, threads):
        return _core.residual_similarities(
            queries, documents, codec.centroids, codec._table(), threads=threads,
            instruction_set=isa,
        )  # fmt: skip

    found = score(queries, coded, 2)
    decompressed = [codec.decompress(one).astype(np.float64) for one in coded]
    expected = [[(q @ one.T).max(axis=1).sum() for one in decompressed] for q in queries]
    np.testing.assert_allclose(found, expected, rtol=0, atol=33 * (dimension + 8) * 2.0**-24)
    assert score(queries[2:3], coded[7:8], 1) == found[2, 7]


def test_more_bits_and_centroids_are_closer(rng, documents):
    queries = drawn(rng, 32, 7)
    whole = np.concatenate(documents)
    exact = maxsim(queries, documents)

    def error(bits, centroids):
        codec = ResidualCodec.train(whole, bits, centroids=centroids)
        return np.abs(
            codec.maxsim(queries, [codec.compress(one) for one in documents]) - exact
        ).max()

    assert error(4, 64) < error(2, 64) < error(1, 64) < error(1, 2)
    assert error(4, 64) < 0.05 * np.abs(exact).max()


def test_documents_of_an_index_may_be_views_and_empty(rng, documents):
    codec = ResidualCodec.train(np.concatenate(documents))
    coded = codec.compress(documents[-1])
    cuts = [slice(0, 100), slice(100, 100), slice(100, None), slice(None, None, 2)]
    views = [coded[cut] for cut in cuts]
    queries = drawn(rng, 9)
    found = codec.maxsim(queries, views)
    assert found[0, 1] == -np.inf
    kept = [codec.decompress(views[i]) for i in (0, 2, 3)]
    np.testing.assert_allclose(found[:, [0, 2, 3]], maxsim(queries, kept), rtol=0, atol=1e-4)
    assert codec.maxsim(queries, []).shape == (1, 0)
    assert codec.maxsim([], views).shape == (0, 4)
    none = codec.compress(documents[0][:0])
    assert none.shape == (0, 20)
    assert codec.decompress(none).shape == (0, 64)
    assert codec.maxsim(queries, [none]) == -np.inf


def test_training_follows_from_the_seed(documents):
    whole = np.concatenate(documents)
    first, again, other = (ResidualCodec.train(whole, seed=seed) for seed in (3, 3, 4))
    np.testing.assert_array_equal(first.centroids, again.centroids)
    assert not np.array_equal(first.centroids, other.centroids)
    np.testing.assert_allclose(np.linalg.norm(first.centroids, axis=1), 1, atol=1e-6)
    assert (np.diff(first.cutoffs) > 0).all()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: d | np.uint8(128), "no such centroid"),  # negative
        (lambda d: d | np.array([0, 64, *[0] * 18], np.uint8), "no such centroid"),
        (lambda d: d[:, 1:], "one length"),
        (lambda d: d[0], "two dimensions"),
        (lambda d: d.astype(np.float64), "not of this codec"),
    ],
)
def test_documents_of_another_codec_are_refused(documents, change, message):
    codec = ResidualCodec.train(np.concatenate(documents))
    document = codec.compress(documents[3])
    with pytest.raises(ConfigError, match=message):
        codec.maxsim(documents[:1], [document, change(document)])


def test_wrong_arrays_are_refused(documents):
    whole = np.concatenate(documents)
    codec = ResidualCodec.train(whole)
    for arrays in [
        (codec.centroids[0], codec.cutoffs, codec.weights),
        (codec.centroids, codec.weights, codec.weights),
        (codec.centroids, codec.cutoffs[:2], codec.weights[:3]),
        (codec.centroids, np.arange(7), np.arange(8)),  # 3 bits
        (codec.centroids[:, :3], codec.cutoffs, codec.weights),
    ]:
        with pytest.raises(ConfigError, match="expected"):
            ResidualCodec(*arrays)
    for vectors, bits, centroids in ((whole, 3, 4), (whole[:1], 2, 4), (whole[:0], 2, None),
                                     (whole, 2, 0)):  # fmt: skip
        with pytest.raises(ConfigError, match="2 vectors or more"):
            ResidualCodec.train(vectors, bits, centroids=centroids)
    with pytest.raises(ConfigError, match="no finite array"):
        codec.compress(whole * np.nan)
    with pytest.raises(ConfigError, match=r"arrays \[t, 64\], got \[573, 63\]"):
        codec.compress(whole[:, :-1])
    with pytest.raises(ConfigError, match="one length"):
        codec.maxsim([whole[:, :-1]], [codec.compress(whole)])
