"""Task heads: every loss and prediction against its formula in float64; the files of heads."""

import json
import math

import numpy as np
import pytest
import torch

from mirror_rt import BundleError, ConfigError
from mirror_rt.heads.predictor import class_of, score_predictions
from mirror_rt.heads.task_heads import FEATURES, Heads, TaskHead
from mirror_train.model.task_layers import CosineLayer, SoftmaxLayer
from mirror_train.recipes.recipe import CONCATENATIONS
from rounding import DOUBLE, HALF_UNIT, of_statistics

D, N = 7, 12
LABELS = ("a", "b", "c")


@pytest.fixture
def z(rng):
    return rng.normal(size=(2 * N, D))


def weights(layer):
    linear = layer.linear
    return linear.weight.detach().double().numpy(), linear.bias.detach().double().numpy()


def made(layer):
    torch.manual_seed(0)
    torch.nn.init.normal_(layer.linear.weight)
    torch.nn.init.normal_(layer.linear.bias)
    return layer.double().eval()


def softmax(row):
    total = sum(math.exp(x) for x in row)
    return [math.exp(x) / total for x in row]


def features(u, v, name):
    parts = {
        "u": lambda a, b: a,
        "v": lambda a, b: b,
        "|u-v|": lambda a, b: abs(a - b),
        "u*v": lambda a, b: a * b,
    }
    return [parts[part](a, b) for part in name.split(",") for a, b in zip(u, v, strict=True)]


@pytest.mark.parametrize("concatenation", CONCATENATIONS)
def test_softmax_of_joined_features(z, rng, concatenation):
    """-log P(a | P, H), P = softmax(W^T [...] + b): BURT, section 3.2, and its table 4."""
    layer = made(SoftmaxLayer("nli", D, LABELS, features=concatenation.split(",")))
    targets = rng.integers(3, size=N)
    weight, bias = weights(layer)
    probabilities = [
        softmax([float(np.dot(w, features(z[i], z[N + i], concatenation)) + b)
                 for w, b in zip(weight, bias, strict=True)])
        for i in range(N)
    ]  # fmt: skip
    expected = -sum(math.log(probabilities[i][targets[i]]) for i in range(N)) / N
    loss = layer.loss(torch.from_numpy(z), torch.from_numpy(targets))
    assert loss.item() == pytest.approx(expected, rel=of_statistics(N * D, DOUBLE))
    found = layer.to_head()(z[:N], z[N:])
    np.testing.assert_allclose(found.scores, probabilities, atol=of_statistics(4 * D, HALF_UNIT))
    assert found.labels == [LABELS[int(np.argmax(p))] for p in probabilities]


def test_softmax_of_texts(z, rng):
    layer = made(SoftmaxLayer("sentiment", D, LABELS, dropout=0.5))
    targets = rng.integers(3, size=2 * N)
    weight, bias = weights(layer)
    logits = [[float(w @ x + b) for w, b in zip(weight, bias, strict=True)] for x in z]
    expected = -np.mean([math.log(softmax(r)[t]) for r, t in zip(logits, targets, strict=True)])
    loss = layer.loss(torch.from_numpy(z), torch.from_numpy(targets))
    assert loss.item() == pytest.approx(expected, rel=of_statistics(N * D, DOUBLE))
    probabilities = [softmax(r) for r in logits]
    found = layer.to_head()(z).scores
    np.testing.assert_allclose(found, probabilities, atol=of_statistics(4 * D, HALF_UNIT))


def similarities(layer, z, hinge):
    weight, bias = weights(layer)
    p = z @ weight.T + bias
    return [
        max(float(a @ b / math.sqrt(a @ a) / math.sqrt(b @ b)), hinge)
        for a, b in zip(p[:N], p[N:], strict=True)
    ]


@pytest.mark.parametrize("hinge", [0.7, 0.0, -0.5])
def test_cosine_of_classes(z, rng, hinge):
    """1 - y for paraphrases, y - hinge for others: BERT-CF, section 4.3; the middle decides."""
    z[N : N + 6] = z[:6] + 0.1 * z[N : N + 6]
    layer = made(CosineLayer("paraphrase", D, 9, hinge=hinge, labels=("no", "yes")))
    targets = rng.integers(2, size=N)
    y = similarities(layer, z, hinge)
    expected = sum(1 - s if t else s - hinge for s, t in zip(y, targets, strict=True)) / N
    loss = layer.loss(torch.from_numpy(z), torch.from_numpy(targets))
    assert loss.item() == pytest.approx(expected, rel=of_statistics(N * D, DOUBLE))
    found = layer.to_head()(z[:N], z[N:])
    np.testing.assert_allclose(found.scores, y, atol=of_statistics(4 * D, HALF_UNIT))
    assert found.labels == ["yes" if s >= (1 + hinge) / 2 else "no" for s in y]
    assert {"yes", "no"} == set(found.labels)


@pytest.mark.parametrize("hinge", [0.0, 0.4])
def test_cosine_of_values(z, rng, hinge):
    """Squared error of y and of values scaled to hinge .. 1; predictions are scaled back."""
    layer = made(CosineLayer("similarity", D, 9, hinge=hinge, scale=(0.0, 5.0)))
    targets = rng.uniform(0, 5, size=N)
    y = similarities(layer, z, hinge)
    wanted = [hinge + t / 5 * (1 - hinge) for t in targets]
    expected = sum((a - b) ** 2 for a, b in zip(y, wanted, strict=True)) / N
    loss = layer.loss(torch.from_numpy(z), torch.from_numpy(targets))
    assert loss.item() == pytest.approx(expected, rel=of_statistics(N * D, DOUBLE))
    found = layer.to_head()(z[:N], z[N:])
    np.testing.assert_allclose(found.scores, [(s - hinge) / (1 - hinge) * 5 for s in y],
                               atol=5 / (1 - hinge) * of_statistics(9, HALF_UNIT))  # fmt: skip
    assert found.labels == [None] * N


def test_dropout_is_in_training_alone(z):
    layer = SoftmaxLayer("sentiment", D, LABELS, dropout=0.3)
    x, targets = torch.from_numpy(z).float(), torch.zeros(2 * N, dtype=torch.int64)
    torch.manual_seed(0)
    layer.train()
    drawn = {layer.loss(x, targets).item() for _ in range(3)}
    layer.eval()
    assert len(drawn) == 3
    assert len({layer.loss(x, targets).item() for _ in range(3)}) == 1


@pytest.fixture
def heads(rng):
    def weight(*shape):
        return rng.normal(size=shape).astype(np.float32)

    sentiment = TaskHead("sentiment", "classifier", weight(3, D), weight(3), LABELS)
    pair = TaskHead(
        "nli", "classifier", weight(2, 3 * D), weight(2), ("x", "y"), ("u", "v", "|u-v|")
    )
    value = TaskHead("similarity", "cosine-regressor", weight(4, D), weight(4), scale=(0.0, 5.0))
    return Heads(D, "mean", {head.name: head for head in (sentiment, pair, value)})


def test_heads_are_written_and_read(heads, tmp_path, z):
    assert not Heads.present(tmp_path)
    heads.write(tmp_path)
    again = Heads.read(tmp_path)
    assert (again.dimension, again.pooling, list(again.by_name)) == (D, "mean", list(heads.by_name))
    for name, head in heads.by_name.items():
        sides = (z[:N], z[N:]) if head.takes_pairs else (z,)
        np.testing.assert_array_equal(again.get(name)(*sides).scores, head(*sides).scores)
    with pytest.raises(ConfigError, match="name the head: there are sentiment, nli, similarity"):
        again.get()
    with pytest.raises(ConfigError, match="no head 'other'"):
        again.get("other")
    with pytest.raises(ConfigError, match="takes pairs of texts"):
        again.get("nli")(z)
    with pytest.raises(ConfigError, match=r"takes vectors \[n, 7\], got \(24, 6\)"):
        again.get("sentiment")(z[:, :6])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: d.update(format="other"), "expected 'mirror_rt heads'"),
        (lambda d: d.update(format_version=9), "has format version 9"),
        (lambda d: d.pop("dimension"), "dimension"),
        (lambda d: d.update(dimension=5), "takes vectors of another length"),
        (lambda d: d.update(heads=[]), "damaged"),
        (
            lambda d: d["heads"]["sentiment"].update(kind="magic"),
            "kind is 'magic', expected",
        ),
        (lambda d: d["heads"]["sentiment"].update(labels=["a"]), "a label for each output"),
        (lambda d: d["heads"]["sentiment"].update(features=["w"]), "features"),
        (lambda d: d["heads"]["similarity"].update(scale=None), "a scale is needed"),
        (lambda d: d["heads"]["similarity"].update(hinge="x"), "hinge is 'x'"),
        (lambda d: d["heads"]["similarity"].update(hinge=1.0), "the hinge must be in -1 .. 1"),
        (lambda d: d["heads"].update({"../x": d["heads"]["nli"]}), "expected a name of a head"),
        (lambda d: d["heads"].update(absent=d["heads"]["nli"]), "cannot be read"),
    ],
)
def test_damaged_descriptions(heads, tmp_path, change, message):
    heads.write(tmp_path)
    path = tmp_path / "heads" / "heads.json"
    document = json.loads(path.read_text("utf-8"))
    change(document)
    path.write_text(json.dumps(document))
    with pytest.raises(BundleError, match=message):
        Heads.read(tmp_path)


def test_damaged_weights(heads, tmp_path):
    with pytest.raises(BundleError, match="has no task heads: mirror-rt train finetune"):
        Heads.read(tmp_path)
    heads.write(tmp_path)
    path = tmp_path / "heads" / "nli.npz"
    whole = path.read_bytes()
    for content in (b"", b"garbage", whole[:100]):
        path.write_bytes(content)
        with pytest.raises(BundleError, match=r"nli\.npz cannot be read"):
            Heads.read(tmp_path)
    for bad in (np.full((2, 3 * D), np.nan), np.ones((2, 5)), np.ones(4), np.array([{}])):
        np.savez(path, weight=bad, bias=np.zeros(2))
        with pytest.raises(BundleError, match=r"damaged|cannot be read"):
            Heads.read(tmp_path)


def test_what_a_label_may_be_written_as():
    labels = ("very negative", "negative")
    for cell, expected in [("0", 0), ("1.0", 1), (" Negative ", 1), ("2", None), ("-1", None),
                           ("0.5", None), ("good", None), ("", None), ("nan", None)]:  # fmt: skip
        assert class_of(cell, labels) == expected, cell


def test_scores_of_predictions(heads, z):
    head = heads.get("sentiment")
    found = head(z)
    said = np.array([LABELS.index(label) for label in found.labels])
    right = said.copy()
    right[:6] = (right[:6] + 1) % 3
    scores = score_predictions(head, found, right)
    assert scores["accuracy"] == pytest.approx(18 / 24)
    assert scores["majority"] == pytest.approx(np.bincount(right).max() / 24)
    value = heads.get("similarity")
    found = value(z[:N], z[N:])
    right = found.scores + np.linspace(0, 1, N)
    expected = np.corrcoef(found.scores, right)[0, 1]
    assert score_predictions(value, found, right)["pearson"] == pytest.approx(expected)
    assert score_predictions(value, found, np.full(N, 0.1))["pearson"] is None


def test_features_are_those_of_the_paper():
    assert {part for name in CONCATENATIONS for part in name.split(",")} == set(FEATURES)
    assert len(set(CONCATENATIONS)) == 7
