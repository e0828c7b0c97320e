"""Every measure of the suites against an implementation of others, or its formula."""

import math

import numpy as np
import pytest
import scipy.linalg
import scipy.stats
import sklearn.metrics
import sklearn.neighbors

from mirror_rt import DataError
from mirror_rt.evaluation import bootstrap, evaluate_geometry
from mirror_rt.evaluation.geometry import masked_cosines
from mirror_rt.evaluation.induction import (
    Lexicon,
    csls_nearest,
    induce,
    normalized,
    orthogonal_procrustes,
    vecmap,
)
from mirror_rt.evaluation.models import EvaluatedModel
from mirror_rt.evaluation.plots import roc_curve
from mirror_rt.evaluation.readers.concepts import Names, split_ids
from mirror_rt.evaluation.readers.pairs import ScoredPairs
from mirror_rt.evaluation.statistics import RankCorrelation, RocAuc
from mirror_rt.evaluation.suites import SuiteOptions
from mirror_rt.evaluation.suites.linking import link
from mirror_rt.evaluation.suites.sentences import _labelled_set, _mean
from mirror_rt.evaluation.suites.words import align
from rounding import DOUBLE, HALF_UNIT, of_norms, of_statistics, of_sums


class Vectors:
    """An encoder of texts that have their vectors beforehand."""

    mask_token = "[MASK]"

    def __init__(self, table):
        self.table = table

    def encode(self, inputs, *, normalize_embeddings=True, show_progress_bar=None):
        rows = np.array([self.table[text] for text in inputs], dtype=np.float32)
        norms = np.linalg.norm(rows, axis=1, keepdims=True)
        return rows / norms if normalize_embeddings else rows


@pytest.mark.parametrize("decimals", [1, 8])
def test_roc_auc_equals_sklearn(rng, decimals):
    labels = rng.random(400) < 0.3
    scores = np.round(rng.standard_normal(400) + labels, decimals)  # rounded: ties
    expected = sklearn.metrics.roc_auc_score(labels, scores)
    assert RocAuc(scores, labels)() == pytest.approx(expected, abs=of_statistics(400))


def test_the_roc_curve_equals_sklearn(rng):
    labels = rng.random(200) < 0.4
    scores = np.round(rng.standard_normal(200) + labels, 1)
    false, true = roc_curve(scores[labels], scores[~labels])
    expected = sklearn.metrics.roc_curve(labels, scores, drop_intermediate=False)
    np.testing.assert_allclose(false, expected[0])
    np.testing.assert_allclose(true, expected[1])


def test_alignment_and_uniformity_of_labelled_pairs(tmp_path, rng):
    """BERT-CF, section 6.3, as the formulas are printed, over the pairs of the set."""
    path = tmp_path / "dev.tsv"
    rows = [f"a{i}\tb{i}\t{i % 3 == 0:d}" for i in range(30)]
    path.write_text("\n".join(["text1\ttext2\tlabel", *rows]))
    table = {f"{side}{i}": rng.standard_normal(4) for side in "ab" for i in range(30)}
    model = EvaluatedModel("m", lambda language: Vectors(table))
    found = {
        one.metric: one.value
        for one in _labelled_set("dev", path, None, SuiteOptions()).measure(model).outcomes
    }

    def f(text):
        return table[text] / np.linalg.norm(table[text])

    squares = [((f(f"a{i}") - f(f"b{i}")) ** 2).sum() for i in range(30)]
    alignment = sum(squares[::3]) / len(squares[::3])
    uniformity = math.log(sum(math.exp(-2 * one) for one in squares) / len(squares))
    assert found["alignment"] == pytest.approx(alignment, abs=of_statistics(30, HALF_UNIT))
    assert found["uniformity"] == pytest.approx(uniformity, abs=of_statistics(30, HALF_UNIT))


def test_roc_auc_counts_a_tie_as_half():
    assert RocAuc([1, 1], [True, False])() == 0.5
    with pytest.raises(DataError, match="same label"):
        RocAuc([1, 2], [True, True])()
    with pytest.raises(DataError, match="not finite"):
        RocAuc([np.nan, 2], [True, False])()
    with pytest.raises(DataError, match="a label for each score"):
        RocAuc([1.0, 2.0], [True])()


def test_weights_are_repetitions(rng):
    """The fast form, which the bootstrap uses, is the plain one on the repeated items."""
    a, b = np.round(rng.standard_normal((2, 60)), 1)
    labels = rng.random(60) < 0.5
    counts = rng.integers(0, 4, size=60)
    rows = np.repeat(np.arange(60), counts)
    rho = scipy.stats.spearmanr(a[rows], b[rows]).statistic
    assert RankCorrelation(a, b)(counts.astype(float)) == pytest.approx(rho, abs=of_statistics(120))
    area = sklearn.metrics.roc_auc_score(labels[rows], a[rows])
    assert RocAuc(a, labels)(counts.astype(float)) == pytest.approx(area, abs=of_statistics(120))


def test_mean_of_subsets_is_unweighted(rng):
    parts = [rng.standard_normal((2, n)) for n in (20, 50)]
    statistic = _mean([RankCorrelation(*part) for part in parts], [20, 50])
    expected = np.mean([scipy.stats.spearmanr(*part).statistic for part in parts])
    assert statistic(np.ones(70)) == pytest.approx(expected)


def test_bootstrap_interval_against_scipy(rng):
    a = rng.standard_normal(150)
    b = a + rng.standard_normal(150)
    ours = bootstrap.interval(
        bootstrap.replicates(RankCorrelation(a, b), 150, samples=2000, seed=0, name="x")
    )
    theirs = scipy.stats.bootstrap(
        (a, b),
        lambda x, y: scipy.stats.spearmanr(x, y).statistic,
        paired=True, vectorized=False, method="percentile", n_resamples=1000, rng=1,
    ).confidence_interval  # fmt: skip
    assert ours.low == pytest.approx(theirs.low, abs=0.02)
    assert ours.high == pytest.approx(theirs.high, abs=0.02)


def test_replicates_follow_from_seed_and_name():
    hits = np.arange(40) % 3 == 0

    def draw(**change):
        options = {"samples": 50, "seed": 0, "name": "a"} | change
        return bootstrap.replicates(lambda w: float(w @ hits), 40, **options)

    np.testing.assert_array_equal(draw(), draw())
    assert (draw() != draw(seed=1)).any()
    assert (draw() != draw(name="b")).any()
    groups = np.repeat([0, 1], [10, 30])
    sizes = bootstrap.replicates(lambda w: w[:10].sum(), 40, samples=20, seed=0, name="a",
                                 groups=groups)  # fmt: skip
    assert set(sizes.tolist()) == {10.0}


def test_pairing_shows_what_separate_intervals_hide(rng):
    """Two models that share most of their noise: intervals overlap, the paired one excludes 0."""
    noise = rng.random(500)
    first, second = noise < 0.60, noise < 0.56
    values = []
    for hits in (first, second):

        def accuracy(weights, hits=hits):
            return float(weights @ hits / weights.sum())

        values.append((
            float(hits.mean()),
            bootstrap.replicates(accuracy, 500, samples=1000, seed=0, name="set"),
        ))  # fmt: skip
    (a, drawn_a), (b, drawn_b) = values
    assert bootstrap.interval(drawn_a).low < bootstrap.interval(drawn_b).high
    assert bootstrap.difference(a, b, drawn_a, drawn_b).shown
    same = bootstrap.difference(a, a, drawn_a, drawn_a)
    assert (same.value, same.shown) == (0, False)
    unpaired = bootstrap.replicates(lambda w: float(w @ second / w.sum()), 500, samples=1000,
                                    seed=0, name="other")  # fmt: skip
    assert not bootstrap.difference(a, b, drawn_a, unpaired).shown


def test_an_undefined_sample_is_no_value():
    values = bootstrap.replicates(RankCorrelation([1, 2], [1, 2]), 2, samples=50, seed=0, name="x")
    assert np.isnan(values).any()
    assert set(values[np.isfinite(values)].round(12).tolist()) == {1.0}
    assert bootstrap.interval(np.array([np.nan, np.nan, 1.0])) is None
    assert not bootstrap.difference(1, 0, np.empty(0), np.empty(0)).shown


def conditioned(*matrices, times):
    """The error of results of `times` steps, by the condition numbers of what they begin with."""
    rows = max(map(len, matrices))
    return times * of_sums(rows, DOUBLE) * np.prod([np.linalg.cond(one) ** 2 for one in matrices])


def test_procrustes_equals_scipy(rng):
    x, z = rng.standard_normal((2, 50, 7))
    expected, _ = scipy.linalg.orthogonal_procrustes(x, z)
    np.testing.assert_allclose(orthogonal_procrustes(x, z), expected,
                               atol=conditioned(x.T @ z, times=2))  # fmt: skip


def test_normalized_is_unit_centred_unit(rng):
    vectors = rng.standard_normal((30, 5)) + 1
    unit = vectors / np.linalg.norm(vectors, axis=1)[:, None]
    centred = unit - unit.mean(axis=0)
    expected = centred / np.linalg.norm(centred, axis=1)[:, None]
    np.testing.assert_allclose(normalized(vectors), expected)


def test_vecmap_against_its_equations(rng):
    """The steps of Artetxe et al. 2018 with matrix functions of scipy in place of our SVD."""
    x, z = normalized(rng.standard_normal((80, 6))), normalized(rng.standard_normal((90, 6)))
    a, b = rng.integers(80, size=60), rng.integers(90, size=60)
    root_x = scipy.linalg.sqrtm(x[a].T @ x[a]).real
    root_z = scipy.linalg.sqrtm(z[b].T @ z[b]).real
    white_x, white_z = x @ np.linalg.inv(root_x), z @ np.linalg.inv(root_z)
    u, s, vt = scipy.linalg.svd(white_x[a].T @ white_z[b])
    expected_x = white_x @ u @ np.diag(np.sqrt(s)) @ u.T @ root_x @ u
    expected_z = white_z @ vt.T @ np.diag(np.sqrt(s)) @ vt @ root_z @ vt.T
    mapped_x, mapped_z = vecmap(x, z, a, b)
    # The sign of a dimension is arbitrary; products of the two sides are not.
    error = conditioned(x[a], z[b], times=12)
    np.testing.assert_allclose(mapped_x @ mapped_z.T, expected_x @ expected_z.T, atol=error)
    np.testing.assert_allclose(mapped_x @ mapped_x.T, expected_x @ expected_x.T, atol=error)


def test_vecmap_leaves_out_a_direction_without_content(rng):
    """A layer norm's outputs sum to 0: in 5 of 6 dimensions the result is that of those 5."""
    x, z = normalized(rng.standard_normal((80, 5))), normalized(rng.standard_normal((90, 5)))
    a, b = rng.integers(80, size=60), rng.integers(90, size=60)
    basis = scipy.linalg.null_space(np.ones((1, 6))).T  # 5 orthonormal rows that sum to 0
    expected_x, expected_z = vecmap(x, z, a, b)
    mapped_x, mapped_z = vecmap(x @ basis, z @ basis, a, b)
    error = conditioned(x[a], z[b], times=12)
    np.testing.assert_allclose(mapped_x @ mapped_z.T, expected_x @ expected_z.T, atol=error)


def test_vecmap_needs_a_dictionary_of_more_words_than_dimensions(rng):
    x = normalized(rng.standard_normal((20, 6)))
    with pytest.raises(DataError, match=r"6 different .* there are 4 .of 4 entries"):
        vecmap(x, x, np.arange(4), np.arange(4))


def test_csls_against_its_formula(rng):
    x, z = rng.standard_normal((40, 5)), rng.standard_normal((60, 5))
    queries = np.array([3, 17, 20])
    cosine = sklearn.metrics.pairwise.cosine_similarity(x, z)
    nearest_z = sklearn.neighbors.NearestNeighbors(n_neighbors=10, metric="cosine").fit(z)
    nearest_x = sklearn.neighbors.NearestNeighbors(n_neighbors=10, metric="cosine").fit(x)
    r_x = (1 - nearest_z.kneighbors(x)[0]).mean(axis=1)
    r_z = (1 - nearest_x.kneighbors(z)[0]).mean(axis=1)
    expected = (2 * cosine - r_x[:, None] - r_z[None, :])[queries].argmax(axis=1)
    np.testing.assert_array_equal(csls_nearest(x, z, queries), expected)
    np.testing.assert_array_equal(  # fewer rows than neighbours
        csls_nearest(x[:4], z, np.arange(4)),
        (2 * cosine[:4] - cosine[:4].mean(axis=0)).argmax(axis=1),
    )


def test_csls_in_chunks_is_csls(rng, monkeypatch):
    x, z = rng.standard_normal((50, 5)), rng.standard_normal((60, 5))
    whole = csls_nearest(x, z, np.arange(50))
    monkeypatch.setattr("mirror_rt.evaluation.induction._CHUNK", 7)
    np.testing.assert_array_equal(csls_nearest(x, z, np.arange(50)), whole)


def test_induction_of_a_rotated_language(rng):
    """A language that is another one rotated is translated without fault, by both maps."""
    x = rng.standard_normal((120, 8))
    rotation = scipy.stats.ortho_group.rvs(8, random_state=0)
    source = Vectors({f"s{i}": row for i, row in enumerate(x)})
    target = Vectors({f"t{i}": row for i, row in enumerate(x @ rotation)})
    entries = [(f"s{i}", f"t{i}") for i in range(120)]
    found = induce(source, target, Lexicon.make(entries[:60], entries[60:]))
    assert {name: hits.mean() for name, hits in found.items()} == {
        "procrustes": 1.0,
        "vecmap": 1.0,
    }
    # A second translation, that is wrong, does not take the first one away; a wrong one alone does.
    test = [*entries[60:], ("s60", "t0"), ("s1", "t5")]
    found = induce(source, target, Lexicon.make(entries[:60], test))
    assert {len(hits) for hits in found.values()} == {61}
    assert found["procrustes"].tolist() == [1.0] * 60 + [0.0]


def test_induction_of_spaces_of_different_size(rng):
    source = Vectors({"a": rng.standard_normal(4)})
    target = Vectors({"b": rng.standard_normal(5)})
    with pytest.raises(DataError, match="4 dimensions, the target vectors 5"):
        induce(source, target, Lexicon.make([("a", "b")], [("a", "b")]))


def test_linking_counts_rows_and_composite_ids(rng):
    """A name that may mean two concepts has two rows, the first one nearer."""
    angles = {"q": 0, "n1": 1, "n2": 2, "n3": 3, "n4": 4, "n5": 5, "n6": 6, "other": 90}
    model = Vectors({k: [np.cos(np.radians(v)), np.sin(np.radians(v))] for k, v in angles.items()})
    dictionary = Names(
        ["n1", "n2", "n3", "n4", "n5", "n6", "n6", "n1"],
        [frozenset([c]) for c in ("A", "B", "B", "C", "D", "E", "F", "Y")],
    )
    mentions = Names(
        ["q"] * 7 + ["other"],
        [split_ids(c) for c in ("A", "B", "D", "E", "Z+A", "Z|D", "Z", "F")],
    )
    linked = link(model, mentions, dictionary)
    assert linked.hits[1].tolist() == [1, 0, 0, 0, 1, 0, 0, 0]
    assert linked.hits[5].tolist() == [1, 1, 0, 0, 1, 0, 0, 1]
    assert linked.known == 7
    with pytest.raises(DataError, match=r"no name for any concept of the mentions .* D9"):
        link(model, Names(["q"], [frozenset(["D9"])]), dictionary)


def test_composite_mentions_as_sapbert_counts_them(rng):
    """A plain transcription of `evaluate_topk_acc` and `check_label` of SapBERT's code."""
    names = {f"n{i}": rng.standard_normal(3) for i in range(20)}
    ids = {name: f"D{i % 8}" for i, name in enumerate(names)}
    mentions = [f"q{i}|q{i + 1}" if i % 2 else f"q{i}" for i in range(30)]
    golden = [f"D{i % 8}|D{(i + 3) % 8}" if i % 2 else f"D{i % 8}" for i in range(30)]
    table = names | {f"q{i}": rng.standard_normal(3) for i in range(31)}
    linked = link(
        Vectors(table),
        Names(mentions, [split_ids(cell) for cell in golden]),
        Names(list(names), [frozenset([ids[name]]) for name in names]),
    )

    def nearest(text):
        def cosine(name):
            a, b = table[text], table[name]
            return -(a @ b) / (np.linalg.norm(a) * np.linalg.norm(b))

        return [ids[name] for name in sorted(names, key=cosine)]

    for k in (1, 5):
        for text, golden_cui, hit in zip(mentions, golden, linked.hits[k], strict=True):
            mention_hit = 0
            parts = text.replace("+", "|").split("|")
            for part in parts:
                labels = [int(bool({cui} & {*golden_cui.split("|")})) for cui in nearest(part)[:k]]
                mention_hit += np.any(labels)
            assert hit == (mention_hit == len(parts))
    assert len({*linked.hits[5].tolist()}) == 2


def test_alignment_is_the_squared_distance_of_positives(rng):
    class Fake(Vectors):
        def encode(self, inputs, *, normalize_embeddings=True):
            masked.extend(text for text in inputs if "[MASK]" in text)
            for text in inputs:
                self.table.setdefault(text, rng.standard_normal(5))
            return super().encode(inputs, normalize_embeddings=normalize_embeddings)

    masked = []
    model = Fake({})
    texts = [f"some text {i}" for i in range(20)]
    geometry = evaluate_geometry(model, texts)
    a, b = model.encode(texts), model.encode(masked[:20])
    assert geometry.alignment == pytest.approx(
        ((a - b) ** 2).sum(axis=1).mean(), abs=of_statistics(20, HALF_UNIT)
    )
    np.testing.assert_allclose(masked_cosines(model, texts), (a * b).sum(axis=1), atol=of_norms(5))


def test_cross_lingual_pairs_from_aligned_ones():
    english = (
        ["1", "2", "3"],
        ScoredPairs(["arm", "a", "x"], ["muscle", "b", "y"], np.array([1, 6, 2.0])),
    )
    french = (
        ["3", "1", "2"],
        ScoredPairs(["X", "bras", "A"], ["Y", "muscle", "B"], np.array([3.2, 2, 4.7])),
    )
    pairs = align(english, french)
    assert list(zip(pairs.first, pairs.second, pairs.scores.tolist(), strict=True)) == [
        ("arm", "muscle", 1.5), ("muscle", "bras", 1.5), ("x", "Y", 2.6), ("y", "X", 2.6),
    ]  # fmt: skip
    with pytest.raises(DataError, match="share no pair ids"):
        align(english, (["9"], french[1]))
