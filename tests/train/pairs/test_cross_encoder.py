"""Training a cross-encoder on labelled pairs: its losses, its folder, its files and its command."""

import json

import numpy as np
import pytest
import torch
from sentence_transformers import CrossEncoder
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from mirror_export import ExportConfig, export_bundle
from mirror_rt import ConfigError, DataError, ModelError, Reranker
from mirror_train import TorchEncoder, TrainConfig
from mirror_train.model.cross_encoder import TorchCrossEncoder
from mirror_train.systems import (
    CrossEncoderRecipe,
    read_labelled_pairs,
    train,
)
from mirror_train.systems.cross_encoder import binary_cross_entropy
from rounding import HALF_UNIT, LOGIT_ERROR, SCORE_ERROR, of_statistics
from tiers import tiers

PAIR_FAMILIES = ["bert", "roberta", "mpnet", "distilbert", "deberta-v2", "modernbert", "albert",
                 "electra", "qwen3", "eurobert"]  # fmt: skip
HEADER = "sentence1\tsentence2\tscore"
FIRST = ["the river", "a doctor and a physician met", "children were playing"]
SECOND = ["the old town by the river", "rain", "football in the rain"]


@pytest.fixture
def configure(tiny_bert, tmp_path):
    def make(out="cross", model=tiny_bert, select=None, **recipe):
        recipe = CrossEncoderRecipe(**{"steps": 3, "batch_size": 8, "learning_rate": 1e-3} | recipe)
        return TrainConfig(
            out=tmp_path / out, model=str(model), precision="fp32", recipe=recipe, select=select
        )

    return make


def scored(words, n=24):
    """Rows of pairs of equal words (5) and of different ones (0)."""
    return [f"{words[i]}\t{words[i + i % 2]}\t{5 * (1 - i % 2)}" for i in range(n)]


def reference(folder, first, second):
    """The logits of transformers on its own tokens of the same pairs."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForSequenceClassification.from_pretrained(folder).eval()
    given = tokenizer(first, second, padding=True, truncation=True, return_tensors="pt")
    with torch.no_grad():
        return model(**given).logits.numpy()


def test_the_loss_is_the_cross_entropy_of_soft_labels():
    """-(y log s(x) + (1 - y) log(1 - s(x))), Trans-Encoder, Eq. 1."""
    x, y = np.array([-2.0, 0.3, 4.0]), np.array([0.0, 0.25, 1.0])
    s = 1 / (1 + np.exp(-x))
    expected = -(y * np.log(s) + (1 - y) * np.log(1 - s)).mean()
    found = binary_cross_entropy(torch.from_numpy(x)[:, None].float(), torch.from_numpy(y))
    assert found.item() == pytest.approx(expected, rel=of_statistics(3, HALF_UNIT))


@pytest.mark.parametrize("family", tiers(PAIR_FAMILIES, fast=("bert", "modernbert")))
def test_the_peers_load_the_folder_with_the_same_scores(family, tiny_model, file, configure, words):
    pairs = read_labelled_pairs(file("train.tsv", HEADER, *scored(words)))
    report = train("cross-encoder", pairs, configure(model=tiny_model(family)))
    logits = TorchCrossEncoder.load(report.out).logits(FIRST, SECOND)
    assert logits.shape == (3, 1)
    np.testing.assert_allclose(logits, reference(report.out, FIRST, SECOND), atol=LOGIT_ERROR)
    peer = CrossEncoder(str(report.out), device="cpu")
    found = peer.predict(list(zip(FIRST, SECOND, strict=True)), show_progress_bar=False)
    np.testing.assert_allclose(found, 1 / (1 + np.exp(-logits[:, 0])), atol=SCORE_ERROR)


@pytest.mark.full
def test_its_bundle_has_the_same_scores(file, configure, words, tmp_path):
    pairs = read_labelled_pairs(file("train.tsv", HEADER, *scored(words)))
    out = train("cross-encoder", pairs, configure()).out
    manifest = export_bundle(ExportConfig(str(out), tmp_path / "bundle"))
    with Reranker.load(tmp_path / "bundle") as reranker:
        found = reranker.predict(list(zip(FIRST, SECOND, strict=True)))
    expected = TorchCrossEncoder.load(out).scores(FIRST, SECOND)
    np.testing.assert_allclose(found, expected, atol=SCORE_ERROR)
    assert (manifest.recipe["system"], manifest.data["rows"]) == ("cross-encoder", 24)


def test_it_learns_scores_and_keeps_a_head_that_is_there(file, configure, words):
    pairs = read_labelled_pairs(file("train.tsv", HEADER, *scored(words)))
    report = train("cross-encoder", pairs, configure(steps=60, dropout=0.0))
    scores = TorchCrossEncoder.load(report.out).scores(pairs.first, pairs.second)
    assert scores[::2].min() > scores[1::2].max()
    more = train("cross-encoder", pairs, configure("more", model=report.out, steps=1, dropout=0.0))
    assert more.stats.losses[0] < report.stats.losses[0] / 2
    with pytest.raises(ModelError, match="is a cross-encoder, which has no vectors of texts"):
        TorchEncoder.load(report.out)


def test_classes_get_a_logit_each(file, configure, words):
    rows = [f"{words[i]}\t{words[i + i % 3]}\t{'xyz'[i % 3]}" for i in range(24)]
    pairs = read_labelled_pairs(file("nli.tsv", "premise\thypothesis\tlabel", *rows))
    assert pairs.labels == ("x", "y", "z")
    report = train("cross-encoder", pairs, configure(dropout=0.0))
    logits = TorchCrossEncoder.load(report.out).logits(FIRST, SECOND)
    peer = CrossEncoder(str(report.out), device="cpu")
    found = peer.predict(list(zip(FIRST, SECOND, strict=True)), show_progress_bar=False)
    np.testing.assert_allclose(found, logits, atol=LOGIT_ERROR)
    assert peer.config.id2label == {0: "x", 1: "y", 2: "z"}
    with pytest.raises(ConfigError, match="lowest or highest goes with scores"):
        train("cross-encoder", pairs, configure("other", lowest=0.0))


def test_a_family_without_a_head_is_refused(tiny_model, file, configure, words):
    pairs = read_labelled_pairs(file("train.tsv", HEADER, *scored(words)))
    with pytest.raises(ModelError, match="no head for pairs is known for the family rembert"):
        train("cross-encoder", pairs, configure(model=tiny_model("rembert")))


def test_a_head_must_be_there_to_be_loaded(tiny_bert):
    with pytest.raises(ModelError, match="is no cross-encoder: it has no head for pairs"):
        TorchCrossEncoder.load(tiny_bert)


def test_bad_input(file, configure, words):
    wrong = read_labelled_pairs(file("train.tsv", HEADER, *scored(words), "a\tb\t7"))
    with pytest.raises(
        DataError, match=r"train.tsv: pair 25 \('a'\) has the score 7, expected 0 .. 5"
    ):
        train("cross-encoder", wrong, configure(lowest=0.0, highest=5.0))
    with pytest.raises(ConfigError, match="lowest 9 must be less than highest, 7"):
        train("cross-encoder", wrong, configure(lowest=9.0))
    flat = read_labelled_pairs(file("flat.tsv", HEADER, "a\tb\t3", "c\td\t3"))
    with pytest.raises(DataError, match=r"all 2 rows of flat\.tsv have the value 3"):
        train("cross-encoder", flat, configure())
    for name, lines, message in [
        ("none.tsv", ["sentence1\tsentence2", "a\tb"], "has no labels"),
        ("nan.tsv", [HEADER, "a\tb\tnan"], "the label 'nan', expected a finite number"),
        ("empty.tsv", [HEADER], "has no rows with a text and a label"),
    ]:
        with pytest.raises(DataError, match=message):
            read_labelled_pairs(file(name, *lines))
    with pytest.raises(ConfigError, match="has single texts"):
        read_labelled_pairs(file("texts.tsv", "text\tlabel", "a\tx", "b\ty"))


@pytest.mark.parametrize(
    ("header", "options", "labels", "targets"),
    [
        ("question1\tquestion2\tis_duplicate", {}, (), [1.0, 0.0]),
        ("question1\tquestion2\tlabel", {"labels": ("0", "1")}, ("0", "1"), [1, 0]),
        ("a\tb\tgrade", {"fields": ("a", "b"), "label_field": "grade"}, (), [1.0, 0.0]),
    ],
)
def test_numbers_are_scores_unless_they_are_named(file, header, options, labels, targets):
    found = read_labelled_pairs(file("pairs.tsv", header, "x y\ty z\t1", "y\tz\t0"), **options)
    assert (found.labels, found.targets.tolist()) == (labels, targets)


def test_the_command(file, cli, succeed, tiny_bert, tmp_path, words):
    train, out = file("train.tsv", HEADER, *scored(words)), tmp_path / "cross"
    line = ("train", "cross-encoder", tiny_bert, "--data", train, "--out", out)
    done = succeed(*line, "--steps", 4, "--batch-size", 8, "--both-orders", "--select", train,
                   "--evaluate-every", 2)  # fmt: skip
    assert "train.tsv: 24 pairs with scores (0 without a label or a text left out)" in done.out
    assert f"next: mirror-rt export {out}" in done.out
    training = json.loads((out / "mirror.json").read_text())["training"]
    best = f"; rho {training['spearman']:.4f} after step {training['best_step']}, the best\n"
    assert best in done.out
    for more, message in [
        (("--recipe", "word"), "there is no option --recipe"),
        (("--loss-batch", "400"), "there is no option --loss-batch"),
    ]:
        done = cli(*line, *more)
        assert done.code != 0
        assert message in done.err
