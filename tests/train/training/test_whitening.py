"""The whitening layer: its definition, and a run with it from tuning to a bundle."""

import numpy as np
import pytest
import torch

from mirror_rt import Encoder
from mirror_rt.errors import ConfigError, ModelError, NonFiniteError
from mirror_train import TorchEncoder, TrainConfig, TrainingData, load_recipe, tune
from mirror_train.training.whitening import whitening_layer
from rounding import OTHER_TOOLS, RUN_ERROR, of_sums
from tiers import tiers

STRINGS = [f"{a}{b}" for a in ("river", "town", "old", "hall") for b in "abcdefghij"]


@pytest.fixture
def vectors():
    generator = np.random.default_rng(0)
    mixing = np.linalg.qr(generator.normal(size=(6, 6)))[0] * np.array([4, 3, 2, 1, 1, 0.5])
    return (generator.normal(size=(500, 6)) @ mixing.T + 4).astype(np.float32)


def apply(layer, vectors):
    return layer(torch.from_numpy(vectors)).numpy().astype(np.float64)


def rounding(layer, vectors):
    """The error of W v + b in float32, for the largest sum of absolute values."""
    weight, bias = (abs(one.detach().numpy()) for one in (layer.linear.weight, layer.linear.bias))
    return of_sums(vectors.shape[1] + 4) * float((abs(vectors) @ weight.T + bias).max())


def test_power_1_gives_equal_variances(vectors):
    layer = whitening_layer(vectors, 1.0)
    white, error = apply(layer, vectors), rounding(layer, vectors)
    covariance = np.cov(white, rowvar=False)
    np.testing.assert_allclose(covariance / covariance[0, 0], np.eye(6), atol=0.05)
    np.testing.assert_allclose(white.mean(axis=0), 0, atol=error)
    assert np.linalg.norm(white, axis=1).mean() == pytest.approx(1, abs=error * 6**0.5)


@pytest.mark.parametrize("power", [0.25, 0.5])
def test_a_power_goes_part_of_the_way(vectors, power):
    """Eigenvalue v becomes v^(1 - power) on its eigenvector; but for the ridge, and a scale."""
    layer = whitening_layer(vectors, power)
    white = apply(layer, vectors)
    values, directions = np.linalg.eigh(np.cov(vectors.astype(np.float64), rowvar=False))
    found = directions.T @ np.cov(white, rowvar=False) @ directions
    expected = values * (values + 1e-3 * values.mean()) ** -power
    error = 4 * rounding(layer, vectors) * abs(white).max() / found[-1, -1]
    np.testing.assert_allclose(found / found[-1, -1], np.diag(expected / expected[-1]), atol=error)


def test_power_0_only_centres(vectors):
    layer = whitening_layer(vectors, 0.0)
    white = apply(layer, vectors)
    centred = vectors.astype(np.float64) - vectors.mean(axis=0, dtype=np.float64)
    lengths = np.linalg.norm(white, axis=1)
    cosines = (white * centred).sum(axis=1) / lengths / np.linalg.norm(centred, axis=1)
    error = rounding(layer, vectors) * 6**0.5 / lengths.min()  # of a direction
    np.testing.assert_allclose(cosines, 1, atol=error**2)


def test_fewer_strings_than_dimensions(vectors):
    assert np.isfinite(apply(whitening_layer(vectors[:3], 1.0), vectors)).all()


def test_equal_vectors_are_refused(vectors):
    with pytest.raises(ModelError, match="every string the same vector"):
        whitening_layer(np.ones((5, 4), np.float32), 0.5)


def run(tiny_bert, out, *, whitening=0.5, **options):
    changes = {"whitening": whitening, "dropout": 0.0, "batch_size": 10, "epochs": 1}
    recipe = load_recipe("word").replace(**changes)
    data = TrainingData(STRINGS, STRINGS, None, "strings")
    return tune(data, TrainConfig(recipe=recipe, out=out, model=str(tiny_bert), **options))


@pytest.mark.full
def test_from_tuning_to_a_bundle(tiny_bert, succeed, tmp_path):
    from sentence_transformers import SentenceTransformer

    tuned, bundle = tmp_path / "tuned", tmp_path / "bundle"
    report = run(tiny_bert, tuned)
    assert report.manifest.recipe["whitening"] == 0.5
    encoder = TorchEncoder.load(tuned)
    expected = encoder.encode(STRINGS)
    (layer,) = encoder.head.layers
    raw = encoder.encode(STRINGS, normalize_embeddings=False)
    np.testing.assert_allclose(
        raw.mean(axis=0), 0, atol=RUN_ERROR * np.linalg.norm(raw, axis=1).max()
    )
    assert layer.linear.bias.abs().sum() > 0
    theirs = SentenceTransformer(str(tuned), device="cpu").encode(STRINGS)
    np.testing.assert_allclose(theirs, expected, atol=OTHER_TOOLS)
    succeed("export", tuned, "--out", bundle)
    np.testing.assert_allclose(Encoder.load(bundle).encode(STRINGS), expected, atol=OTHER_TOOLS)


def test_the_loss_sees_the_layer(tiny_bert, tmp_path):
    """Vectors in a cone are nearly alike: without noise, the loss is higher there."""
    losses = {}
    for power in (0.0, 0.5):
        out = tmp_path / str(power)
        losses[power] = run(tiny_bert, out, whitening=power).manifest.training["loss_first"]
    assert losses[0.5] < losses[0.0] - 0.1


def test_no_whitening_behind_mean_with_padding(tiny_bert, tmp_path):
    with pytest.raises(
        ConfigError, match="whitening does not go with the pooling mean-with-padding"
    ):
        run(tiny_bert, tmp_path / "out", pooling="mean-with-padding")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("fixture", tiers(["tiny_bert", "tiny_roberta"], fast=["tiny_bert"]))
def test_word_plus_from_strings_to_bundle(fixture, request, tmp_path, succeed):
    """Its pooling goes before what a base declares; other libraries refuse rather than differ."""
    strings = tmp_path / "words.txt"
    strings.write_text("\n".join(STRINGS))
    tuned, bundle = tmp_path / "tuned", tmp_path / "bundle"
    base = request.getfixturevalue(fixture)
    succeed("tune", "--recipe", "word-plus", "--model", base, "--data", strings,
            "--batch-size", "20", "--out", tuned)  # fmt: skip
    succeed("export", tuned, "--out", bundle)
    encoder = Encoder.load(bundle, providers="native")
    assert encoder.manifest.pooling == "mean-without-special"
    expected = TorchEncoder.load(tuned).encode(STRINGS)
    np.testing.assert_allclose(encoder.encode(STRINGS), expected, atol=OTHER_TOOLS)
    with Encoder.load(tuned) as same, Encoder.load(bundle, providers="cpu") as graph:
        assert same.manifest.pooling == "mean-without-special"
        alone = np.concatenate([same.encode([text]) for text in STRINGS])
        np.testing.assert_array_equal(alone, encoder.encode(STRINGS))
        np.testing.assert_allclose(alone, graph.encode(STRINGS), atol=RUN_ERROR)
        if fixture == "tiny_bert":  # whose tokenizer leaves nothing but the special tokens of this
            with pytest.raises(NonFiniteError):
                same.encode(["\u200b"])
    from sentence_transformers import SentenceTransformer

    with pytest.raises(ValueError, match="mean-without-special"):
        SentenceTransformer(str(tuned), device="cpu")
