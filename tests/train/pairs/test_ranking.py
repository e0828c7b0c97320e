"""SPLADE and ColBERT: their losses by hand, and folders that the runtime and others read alike."""

import itertools
import math

import numpy as np
import pytest
import torch

from mirror_export import ExportConfig, export_bundle
from mirror_rt import ConfigError, DataError, ModelError, MultiVectorEncoder, SparseEncoder
from mirror_rt.bundle.manifest import Manifest
from mirror_train import TrainConfig, TrainingData
from mirror_train.model.token_head import TorchMultiVector, maxsim
from mirror_train.systems import ColbertRecipe, SpladeRecipe, train
from mirror_train.systems.splade import flops
from mirror_train.training.ranking import ranking_loss
from rounding import GATE, OTHER_TOOLS

TEXTS = ["the river", "an old, small town! by the river.", "doctor"]
RECIPES = {
    "splade": SpladeRecipe(steps=12, batch_size=8, learning_rate=2e-3, max_length=24),
    "colbert": ColbertRecipe(
        steps=12, batch_size=8, learning_rate=2e-3, max_length=24, query_length=12, dimension=8
    ),
}


@pytest.fixture(scope="module")
def data(words):
    pairs = [(a, f"{b} {a}") for a, b in zip(words[:160], words[160:320], strict=True)]
    return TrainingData.of_pairs(pairs, "pairs")


@pytest.fixture
def run(data, tmp_path):
    def make(system, model, out="out", *, recipe=None, given=None):
        changed = RECIPES[system].replace(**(recipe or {}))
        config = TrainConfig(out=tmp_path / out, model=str(model), precision="fp32", recipe=changed)
        return train(system, given or data, config)

    return make


def test_the_ranking_loss_by_hand():
    scores = torch.tensor([[2.0, 1.0, 5.0, 0.0, 1.0, 3.0],
                           [0.5, 1.0, 4.0, 1.0, 0.0, 2.0],
                           [9.0, 2.0, 1.0, 0.5, 1.0, 0.0]])  # fmt: skip
    own, negatives = [2.0, 1.0, 1.0], [[1.0, 0.0, 1.0], [0.5, 1.0, 0.0], [2.0, 1.0, 0.0]]
    # The first query and the third one are of one group: their documents are no negatives of each
    # other's, nor are their hard negatives; the second one has all.
    negatives[1] += [4.0, 2.0]
    expected = [-own[i] + math.log(sum(map(math.exp, [own[i], *negatives[i]]))) for i in range(3)]
    found = ranking_loss(scores, torch.tensor([7, 3, 7]))
    assert found.item() == pytest.approx(np.mean(expected), rel=1e-6)


def test_the_regulariser_and_maxsim_by_hand():
    weights = torch.tensor([[1.0, 0.0, 3.0], [3.0, 0.0, 0.0]])
    assert flops(weights).item() == pytest.approx(2.0**2 + 1.5**2)
    q, d = torch.randn(2, 3, 4), torch.randn(3, 5, 4)
    kept, of_documents = torch.rand(2, 3) > 0.3, torch.rand(3, 5) > 0.3
    kept[:, 0] = of_documents[:, 0] = True
    found = maxsim(q, kept, d, of_documents)
    for i, j in itertools.product(range(2), range(3)):
        products = q[i][kept[i]] @ d[j][of_documents[j]].T
        assert found[i, j].item() == pytest.approx(products.amax(1).sum().item(), abs=1e-5)


def test_the_regulariser_rises_quadratically(run, tiny_sparse):
    still = {"learning_rate": 1e-12, "dropout": 0.0, "steps": 6}
    found = {}
    for name, weight, warm_up in (("none", 0, 0), ("whole", 1e-2, 0), ("rising", 1e-2, 0.5)):
        changes = {"query_flops": weight, "document_flops": weight, "flops_warm_up": warm_up}
        report = run("splade", tiny_sparse("bert"), name, recipe=still | changes)
        found[name] = np.array(report.stats.losses)
    shares = (found["rising"] - found["none"]) / (found["whole"] - found["none"])
    np.testing.assert_allclose(shares, [1 / 9, 4 / 9, 1, 1, 1, 1], rtol=1e-3)


@pytest.mark.parametrize("masked", [True, False], ids=["with a head", "without one"])
def test_a_sparse_folder(masked, run, tiny_sparse, tiny_model, tmp_path, caplog):
    from sentence_transformers import SparseEncoder as Theirs

    base = tiny_sparse("distilbert") if masked else tiny_model("bert")
    report = run("splade", base)
    losses = report.stats.losses
    assert np.mean(losses[-4:]) < np.mean(losses[:4])
    assert ("has no head of a masked language model" in caplog.text) == (not masked)
    with SparseEncoder.load(report.out) as encoder:
        mine = encoder.encode(TEXTS).toarray()
        assert encoder.manifest.recipe["system"] == "splade"
    theirs = Theirs(str(report.out), device="cpu").encode(TEXTS).to_dense().numpy()
    np.testing.assert_allclose(mine, theirs, atol=OTHER_TOOLS)
    export_bundle(ExportConfig(str(report.out), tmp_path / "bundle"))
    with SparseEncoder.load(tmp_path / "bundle", providers="cpu") as encoder:
        np.testing.assert_allclose(encoder.encode(TEXTS).toarray(), mine, atol=GATE)
    assert Manifest.read(tmp_path / "bundle", None).recipe["query_flops"] == 0.02


def test_a_new_head_begins_sparse(run, tiny_model, data):
    still = {"learning_rate": 1e-12, "steps": 1}
    with SparseEncoder.load(run("splade", tiny_model("bert"), recipe=still).out) as encoder:
        weights = encoder.encode(data.second).toarray()
    # Of each word, the logits above the mean by two standard deviations: 1/4 at most (Chebyshev),
    # and of most distributions a few in a hundred.
    assert 0 < (weights > 0).mean() < 0.1


@pytest.mark.parametrize("family", ["bert", "qwen3"])
def test_a_folder_of_late_interaction(family, run, tiny_model, tmp_path, monkeypatch):
    from sentence_transformers import MultiVectorEncoder as Theirs

    found, original = [], TorchMultiVector.__init__

    def made(self, *given):
        original(self, *given)
        found.append(self)

    monkeypatch.setattr(TorchMultiVector, "__init__", made)
    report = run("colbert", tiny_model(family))
    losses = report.stats.losses
    assert np.mean(losses[-4:]) < np.mean(losses[:4])
    theirs = Theirs(str(report.out), device="cpu")
    with MultiVectorEncoder.load(report.out) as encoder:
        assert encoder.dimension == 8
        assert encoder.manifest.prompts == {"query": "query: ", "document": "document: "}
        mine = encoder.encode_query(TEXTS), encoder.encode_document(TEXTS)
        scores = encoder.similarity(*mine)
    for a, b in zip(mine, (theirs.encode_query(TEXTS), theirs.encode_document(TEXTS)), strict=True):
        for one, other in zip(a, b, strict=True):
            np.testing.assert_allclose(one, np.asarray(other), atol=OTHER_TOOLS)
    # What is trained is what is saved.
    np.testing.assert_allclose(found[0].scores(TEXTS, TEXTS), scores.diagonal(), atol=GATE)
    export_bundle(ExportConfig(str(report.out), tmp_path / "bundle", targets=("cpu",)))
    with MultiVectorEncoder.load(tmp_path / "bundle") as encoder:
        both = encoder.encode_query(TEXTS), encoder.encode_document(TEXTS)
        np.testing.assert_allclose(encoder.similarity(*both), scores, atol=GATE)


@pytest.mark.parametrize("system", RECIPES)
def test_bad_input(system, run, data, tiny_model, words):
    model = tiny_model("bert")
    with pytest.raises(DataError, match="single strings, expected pairs of a query and a doc"):
        run(system, model, given=TrainingData.of_strings(words[:40]))
    few = TrainingData.of_pairs([("a", "b"), ("c", "d")], "few")
    with pytest.raises(DataError, match="few has 2 pairs, expected a batch of 8 at least"):
        run(system, model, given=few)
    with pytest.raises(ConfigError, match="more than the 128 positions"):
        run(system, model, recipe={"max_length": 200})
    with pytest.raises(ConfigError, match="batch_size must be at least 2"):
        RECIPES[system].replace(batch_size=1)


def test_bases_that_do_not_go(run, tiny_model):
    with pytest.raises(ModelError, match="qwen3, whose head of words is not known: choose one of"):
        run("splade", tiny_model("qwen3"))
    late = run("colbert", tiny_model("bert"), "late").out
    with pytest.raises(ModelError, match="has a projection already"):
        run("colbert", late, "again")


@pytest.mark.parametrize("system", RECIPES)
def test_the_command(system, tiny_model, data, file, succeed, cli, tmp_path):
    rows = [f"{a}\t{b}" for a, b in zip(data.first[:64], data.second[:64], strict=True)]
    pairs, out = file("pairs.tsv", *rows), tmp_path / "out"
    said = succeed("train", system, "--model", tiny_model("bert"), "--data", pairs, "--steps", 2,
                   "--batch-size", 8, "--max-length", 24, "--out", out).out  # fmt: skip
    assert "64 strings" in said
    assert f"mirror-rt export {out}" in said
    assert system in succeed("info", out).out
    assert f"train {system} needs --data" in cli("train", system, "--out", tmp_path / "other").err
