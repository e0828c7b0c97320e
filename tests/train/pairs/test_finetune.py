"""Fine-tuning with one decoding layer: its formulas, its files, and the head that it exports."""

import dataclasses

import numpy as np
import pytest
import torch

from mirror_rt import ConfigError, DataError, Predictor
from mirror_rt.heads.task_heads import Heads
from mirror_train import TorchEncoder, TrainConfig
from mirror_train.model.task_layers import RegressionLayer
from mirror_train.systems import FinetuneRecipe, TaskFiles, train
from rounding import ANY_BATCH, HALF_UNIT, of_correlation, of_statistics

GOOD, BAD = ["good", "best", "love"], ["bad", "lost", "death"]


@pytest.fixture
def configure(tiny_bert, tmp_path):
    def make(out="tuned", **recipe):
        recipe = FinetuneRecipe(**{"steps": 20, "batch_size": 8, "learning_rate": 1e-2} | recipe)
        return TrainConfig(
            out=tmp_path / out, model=str(tiny_bert), precision="fp32", recipe=recipe, task="own"
        )

    return make


def load(data, *, layer="softmax", **given):
    return TaskFiles(data=data, **given).load(layer=layer)


def divergence(y, p, low):
    """KL(t || p) of Tai et al. 2015, Eq. 15, written out, for one score and its probabilities."""
    total = 0.0
    for i, share in enumerate(p):
        floor = int(np.floor(y))
        t = y - floor if low + i == floor + 1 else floor - y + 1 if low + i == floor else 0.0
        total += t * (np.log(t) - np.log(share)) if t > 0 else 0.0
    return total


def test_the_regression_is_that_of_tai():
    """Features [u * v; |u - v|], p = softmax(W h + b), y^ = r p, and the mean divergence."""
    rng = np.random.default_rng(0)
    layer = RegressionLayer("own", 3, (1.0, 5.0), features=["u*v", "|u-v|"])
    u, v = rng.normal(size=(2, 6, 3)).astype(np.float32)
    scores = np.array([1.0, 5.0, 2.25, 3.5, 4.0, 4.9])
    weight, bias = (one.detach().double().numpy() for one in layer.linear.parameters())
    expected, values = 0.0, []
    for i, y in enumerate(scores):
        h = np.concatenate([u[i] * v[i], np.abs(u[i] - v[i])])
        p = np.exp(weight @ h + bias) / np.exp(weight @ h + bias).sum()
        expected += divergence(y, p, 1) / len(scores)
        values.append(np.arange(1, 6) @ p)
    z = torch.from_numpy(np.concatenate([u, v]))
    assert layer.loss(z, torch.from_numpy(scores)).item() == pytest.approx(
        expected, rel=of_statistics(len(h), HALF_UNIT)
    )
    np.testing.assert_allclose(
        layer.to_head()(u, v).scores, values, rtol=of_statistics(len(h), HALF_UNIT)
    )


def test_a_frozen_encoder_stays_as_it_is(file, configure, tiny_bert):
    """The layer alone learns; bundle and metrics are those of the weights that were written."""
    rows = [f"{w} day\t{i % 7}\t{5 * (w in GOOD)}.5" for i, w in enumerate((GOOD + BAD) * 8)]
    table = file("train.tsv", "sentence1\tsentence2\tscore", *rows)
    data = load(table, dev=table, test=table, layer="regression")
    report = train("finetune", data, configure(layer="regression", frozen=True))
    before, after = TorchEncoder.load(tiny_bert), TorchEncoder.load(report.out)
    np.testing.assert_array_equal(before.encode(GOOD), after.encode(GOOD))
    found = Predictor(after, Heads.read(report.out)).predict(None, data.test.items())
    training = report.manifest.training
    assert training["test"]["own"]["pearson"] == pytest.approx(
        np.corrcoef(found.scores, data.test.targets)[0, 1],
        abs=of_correlation(found.scores, 5 * ANY_BATCH),
    )
    assert training["metrics"]["own"]["spearman"] > 0.5
    assert report.manifest.recipe["system"] == "finetune"
    moved = train("finetune", data, configure("moved", layer="regression", steps=2))
    assert np.abs(TorchEncoder.load(moved.out).encode(GOOD) - before.encode(GOOD)).max() > 1e-4


@pytest.mark.parametrize("loss", ["cosent", "angle"])
def test_pairs_are_ranked_by_the_vectors_of_the_encoder(loss, file, configure, tiny_bert):
    """Without a projection, what is trained is the cosine of a bundle's own vectors."""
    rows = [f"{w} day\t{GOOD[0]}\t{w in GOOD:d}.5" for w in (GOOD + BAD) * 4]
    table = file("train.tsv", "sentence1\tsentence2\tscore", *rows)
    data = load(table, dev=table, layer="cosine")
    recipe = {"layer": "cosine", "projection": 0, "loss": loss, "hinge": -1.0}
    report = train("finetune", data, configure(**recipe, learning_rate=3e-3, steps=40))
    before, cosines = (
        np.einsum(
            "nd,nd->n", *map(TorchEncoder.load(one).encode, (data.dev.first, data.dev.second))
        )
        for one in (tiny_bert, report.out)
    )
    pearson = report.manifest.training["metrics"]["own"]["pearson"]
    assert pearson > np.corrcoef(before, data.dev.targets)[0, 1] + 0.05
    assert np.corrcoef(cosines, data.dev.targets)[0, 1] == pytest.approx(
        pearson, abs=of_correlation(cosines, ANY_BATCH)
    )
    np.testing.assert_array_equal(Heads.read(report.out).get("own").weight, np.eye(32))


def test_what_each_file_is_read_as(file):
    """Texts and pairs, classes and values; columns by name, or by number without a header."""
    single = file("a.csv", "id,text,label", *(f"{i},row {i},{'ba'[i % 2]}" for i in range(20)))
    train = load(single).train
    assert (train.second, train.labels, train.first[0][:3]) == (None, ("a", "b"), "row")
    # SemEval-2013 5(a) and the STS benchmark have no header.
    lines = [f"word{i}\tlong phrase{i}\t{i % 2}" for i in range(20)]
    numbered = {"fields": "1,2", "label_field": "3"}
    data = load(file("pairs.tsv", *lines), **numbered)
    assert len(data.train) + len(data.dev) == 20
    assert data.train.labels == ("0", "1")
    assert all(one.startswith("long phrase") for one in data.train.second)
    benchmark = [f'main-news\theadlines\t2015\t{i}\t{i % 6}.00\ta "{i}\tb {i}' for i in range(20)]
    columns = {"fields": "6,7", "label_field": "5", "layer": "regression"}
    sts = load(file("sts-train.csv", *benchmark), **columns).train
    assert (sts.first[0][:3], sts.scale()) == ('a "', (0.0, 5.0))
    values = load(file("v.tsv", *lines), layer="regression", **numbered)
    assert (values.train.labels, values.train.targets.dtype) == ((), np.float64)
    assert values.train.scale() == (0.0, 1.0)
    sick = file("s.tsv", "pair_ID\tsentence_A\tsentence_B\trelatedness_score\tentailment_judgment",
                *(f"{i}\ta{i}\tb{i}\t{1 + i % 5}.5\tNEUTRAL" for i in range(20)))  # fmt: skip
    assert load(sick, layer="cosine").train.scale() == (1.0, 6.0)
    ordered = load(single, labels="b,a", dev=single, test=single, top=5)
    assert [len(part) for part in ordered.parts] == [5, 5, 5]
    assert ordered.train.labels == ("b", "a")


def test_bad_input(file, configure):
    pairs = file("p.tsv", "text1\ttext2\tlabel", *(f"a{i}\tb{i}\t{'yn'[i % 2]}" for i in range(20)))
    texts = file("t.tsv", "text\tlabel", *(f"a{i}\t{i % 3}" for i in range(20)))
    other = file("o.tsv", "text\tlabel", "x\t3", "y\t1")
    large = file("l.tsv", "text1\ttext2\tscore", *(f"a{i}\tb{i}\t{i}000" for i in range(20)))
    same = file("e.tsv", "text\tlabel", *(f"a{i}\tsame" for i in range(20)))
    flat = file("f.tsv", "text1\ttext2\tscore", *(f"a{i}\tb{i}\t4" for i in range(20)))
    for error, message, arguments in [
        (ConfigError, "needs the labels in order", {"data": pairs, "layer": "cosine"}),
        (ConfigError, "takes pairs of texts, with two", {"data": texts, "layer": "cosine"}),
        (DataError, r"o\.tsv, line 2: the label '3', expected one of 0, 1, 2",
         {"data": texts, "dev": other}),
        (DataError, "p.tsv has no labels .see --label-field.: expected a column 'score'",
         {"data": pairs, "layer": "regression"}),
        (DataError, "3 cells, expected at least 4",
         {"data": pairs, "fields": "1,2", "label_field": "4"}),
        (ConfigError, "top must be at least 2", {"data": pairs, "top": 1}),
        (DataError, "all rows have the label 'same', so none is learnt", {"data": same}),
    ]:  # fmt: skip
        with pytest.raises(error, match=message):
            load(**arguments)
    for path, error, message in [
        (large, ConfigError, "an output for each whole number, 1000 at most"),
        (flat, DataError, "rows of f.tsv without 2 held out have the value 4"),
    ]:
        data = load(path, layer="regression")
        with pytest.raises(error, match=message):
            train("finetune", data, configure(layer="regression"))
    with pytest.raises(ConfigError, match="a name of a head"):
        dataclasses.replace(configure(), task="No Head")
    for recipe, message in [
        ({"hinge": 1.0}, "hinge must be in -1"),
        ({"loss": "cosent"}, "loss='cosent' goes with layer='cosine'"),
        ({"layer": "cosine", "frozen": True, "projection": 0}, "without a projection it has none"),
    ]:
        with pytest.raises(ConfigError, match=message):
            FinetuneRecipe(**recipe)
    data = load(pairs, layer="cosine", labels="n,y")
    with pytest.raises(ConfigError, match="loss='angle' ranks pairs by values"):
        train("finetune", data, configure(layer="cosine", loss="angle"))


def test_the_command(file, succeed, tiny_bert, tmp_path):
    rows = [
        f"{w} day {i}\t{'good' if w in GOOD else 'bad'}" for i, w in enumerate((GOOD + BAD) * 4)
    ]
    train = file("train.tsv", "text\tlabel", *rows)
    out = tmp_path / "tuned"
    done = succeed("train", "finetune", tiny_bert, "--data", train, "--dev", train, "--frozen",
                   "--steps", 4, "--batch-size", 8, "--out", out)  # fmt: skip
    assert "label: 24 rows to train on (train.tsv; 0 without" in done.out
    assert "label  accuracy" in done.out
    assert Heads.read(out).get().labels == ("bad", "good")
