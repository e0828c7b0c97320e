import numpy as np
import pytest
import scipy.stats

from mirror_rt import DataError, Encoder
from mirror_rt.evaluation import (
    cosine_pairs,
    evaluate_geometry,
    evaluate_similarity,
    read_scored_pairs,
    spearman,
)
from mirror_rt.evaluation.geometry import isotropy_score, mean_vector_norm, uniformity
from rounding import DOUBLE, of_statistics, of_sums


@pytest.mark.parametrize("ties", [1, 5, 1000])
def test_spearman_equals_scipy(rng, ties):
    a = np.round(rng.standard_normal(300) * ties)
    b = np.round(a + rng.standard_normal(300) * ties)
    assert spearman(a, b) == pytest.approx(
        scipy.stats.spearmanr(a, b).statistic, abs=of_statistics(300)
    )


@pytest.mark.parametrize(
    ("a", "b", "message"),
    [
        ([1, 1, 1], [1, 2, 3], "all values of one side are equal"),
        ([1], [1], "at least 2"),
        ([1, 2], [1, 2, 3], "two equal lists"),
        ([1, np.nan], [1, 2], "not finite"),
    ],
)
def test_spearman_undefined(a, b, message):
    with pytest.raises(DataError, match=message):
        spearman(a, b)


def test_isotropy_against_equation_2(rng):
    vectors = rng.standard_normal((40, 6)) + 0.5
    values, eigenvectors = np.linalg.eig(vectors.T @ vectors)
    sums = [np.exp(sign * vectors @ c).sum() for c in eigenvectors.T for sign in (1, -1)]
    # Directions turn by the rounding of the matrix in parts of the gap between two eigenvalues.
    turn = of_sums(40 + 6, DOUBLE) * values.max() / np.diff(np.sort(values)).min()
    error = of_statistics(40) + 4 * turn * np.linalg.norm(vectors, axis=1).max()
    assert isotropy_score(vectors) == pytest.approx(min(sums) / max(sums), rel=error)
    _, directions = np.linalg.eigh(vectors.T @ vectors)
    sums = np.exp(vectors @ directions).sum(axis=0)
    assert isotropy_score(vectors, both_signs=False) == pytest.approx(sums.min() / sums.max())
    assert isotropy_score(vectors * 200) >= 0  # no overflow
    cube = np.concatenate([np.eye(4), -np.eye(4)])
    assert isotropy_score(cube) == pytest.approx(1)


def test_mean_vector_norm_is_equation_3():
    assert mean_vector_norm(np.array([[3.0, 0.0], [0.0, 4.0]])) == pytest.approx(2.5)


def test_uniformity_against_its_formula(rng):
    unit = rng.standard_normal((1500, 5))
    unit /= np.linalg.norm(unit, axis=1, keepdims=True)
    i, j = np.triu_indices(len(unit), 1)
    expected = np.log(np.exp(-2 * ((unit[i] - unit[j]) ** 2).sum(1)).mean())
    assert uniformity(unit) == pytest.approx(expected, abs=of_statistics(len(i)))


def test_random_pairs_are_of_different_rows():
    assert cosine_pairs(np.eye(3), pairs=500, seed=0).max() == 0


def test_geometry_of_a_bundle(bundle, words):
    geometry = evaluate_geometry(Encoder.load(bundle), [*words, words[0]])
    assert geometry.n == len(words)
    assert 0 < geometry.isotropy_score_normalized <= 1
    assert geometry.alignment > 0
    assert geometry == evaluate_geometry(Encoder.load(bundle), words)
    with pytest.raises(DataError, match="at least 2 distinct texts, got 1"):
        evaluate_geometry(Encoder.load(bundle), ["a", "a"])


def write(tmp_path, text):
    path = tmp_path / "pairs.tsv"
    path.write_text(text, encoding="utf-8")
    return path


def test_similarity_orders_pairs(tmp_path, bundle):
    encoder = Encoder.load(bundle)
    texts = ["the river", "the rivers", "a doctor", "人生", "old town"]
    table = [
        (a, b, float(encoder.encode(a) @ encoder.encode(b)))
        for i, a in enumerate(texts)
        for b in texts[i + 1 :]
    ]
    rows = "".join(f"{i}\t{a}\t{b}\t{s**3}\n" for i, (a, b, s) in enumerate(table))
    pairs = read_scored_pairs(write(tmp_path, "pair_id\tword1\tword2\tscore\n" + rows))
    assert evaluate_similarity(encoder, pairs) == pytest.approx(1)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a\tb\n1\t2\n", "has no scores: expected a column 'score' .* its columns are a, b"),
        ("a,b,score\n1,2,3\n", "the only one is 'a,b,score'; tabs separate cells, "),
        ("id\ta\tb\tscore\n", "expected 'score' and two text columns"),
        ("text1\ttext2\tother\n1\t2\t3\n", "has no scores: expected a column 'score' or"),
        ("text1\ttext2\tscore\n", "a header but no pairs"),
        ("text1\ttext2\tscore\na\tb\thigh\n", "line 2: the score .* is not a finite number"),
        ("text1\ttext2\tscore\na\tb\t1\nc\td\t\n", "line 3: the score '' is not a finite number"),
        ("text1\ttext2\tscore\na\tb\tnan\n", "line 2: the score .* is not a finite number"),
        ("text1\ttext2\tscore\na\tb\t1\n\nc\t\t2\n", "line 4, column 'text2': the string is empty"),
        ("text1\ttext1\tscore\na\tb\t1\n", "the column 'text1' more than once"),
        ("text1\ttext2\tscore\n\t\t\n", "line 2: the score .* is not"),
        ("", "is empty"),
    ],
)
def test_unusable_pairs(tmp_path, text, message):
    with pytest.raises(DataError, match=message):
        read_scored_pairs(write(tmp_path, text))


def test_two_unnamed_text_columns_will_do(tmp_path):
    pairs = read_scored_pairs(write(tmp_path, "score\tleft\tright\n3\ta\tb\n"))
    assert (pairs.first, pairs.second, pairs.scores.tolist()) == (["a"], ["b"], [3.0])
