"""BERT-flow and BERT-CF: from strings to a folder, a bundle, and back after Ctrl-C."""

import dataclasses
import json
import math
import re
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from mirror_rt import ConfigError, DataError, Encoder, ModelError, OutputExistsError
from mirror_rt.bundle.manifest import Manifest
from mirror_train import TorchEncoder, TrainConfig, TrainingData, load_recipe, tune
from mirror_train.compute.precision import resolve_device
from mirror_train.compute.processes import Processes
from mirror_train.data.batches import Batches
from mirror_train.model.glow import Flow
from mirror_train.model.pretrained import load_pretrained
from mirror_train.systems import CfRecipe, FlowRecipe, train
from mirror_train.systems.cf import cf_trainer
from mirror_train.systems.flow import initial_flow
from mirror_train.training.checkpoint import CheckpointStore
from mirror_train.training.run import Run
from rounding import FLOW_ERROR, OTHER_TOOLS, RUN_ERROR

STRINGS = [f"{a} {b}" for a in ("old river", "town hall", "doctor", "rain") for b in "abcdefghij"]
DATA = TrainingData(STRINGS, STRINGS, None, "strings", language="en")
FLOW = FlowRecipe(steps=20, batch_size=8, learning_rate=1e-3)
MIRROR = load_recipe("cf").replace(batch_size=8, epochs=1)
PROBES = ["the river", "old town hall", "doctor"]


def flow_config(tiny_bert, out, **options):
    options = {"recipe": FLOW, "model": str(tiny_bert)} | options
    return TrainConfig(out=out, **options)


def cf_config(tiny_bert, out, *, resume=False, overwrite=False, seed=42, **recipe):
    recipe = CfRecipe(**({"mirror": MIRROR, "flow": FLOW} | recipe))
    return TrainConfig(
        out=out,
        model=str(tiny_bert),
        recipe=recipe,
        precision="fp32",
        resume=resume,
        overwrite=overwrite,
        seed=seed,
    )


def vectors(folder, texts=PROBES):
    return TorchEncoder.load(folder).encode(texts, normalize_embeddings=False)


def encoder_weights(folder):
    return load_pretrained(folder).model.state_dict()


def same_weights(one, other):
    return all(torch.equal(value, other[name]) for name, value in one.items())


@pytest.fixture(scope="module")
def flowed(tiny_bert, tmp_path_factory):
    """A flow behind the tiny model, from 40 strings."""
    return train("flow", DATA, flow_config(tiny_bert, tmp_path_factory.mktemp("flow") / "out"))


@pytest.fixture(scope="module")
def cf(tiny_bert, tmp_path_factory):
    """BERT-CF on them."""
    return train("cf", DATA, cf_config(tiny_bert, tmp_path_factory.mktemp("cf") / "out"))


def test_a_flow_follows_the_unchanged_encoder(flowed, tiny_bert):
    assert same_weights(encoder_weights(tiny_bert), encoder_weights(flowed.out))
    encoder = TorchEncoder.load(flowed.out)
    (flow,) = encoder.head.layers
    assert isinstance(flow, Flow)
    before = TorchEncoder.load(tiny_bert, pooling="mean").encode(PROBES, normalize_embeddings=False)
    expected = flow(torch.from_numpy(before)).numpy()
    np.testing.assert_allclose(vectors(flowed.out), expected, atol=FLOW_ERROR)


def test_a_flow_spreads_the_vectors(flowed, tiny_bert):
    def mean_cosine(rows):
        rows = rows / np.linalg.norm(rows, axis=1, keepdims=True)
        return (rows @ rows.T)[~np.eye(len(rows), dtype=bool)].mean()

    before = TorchEncoder.load(tiny_bert, pooling="mean").encode(STRINGS)
    assert mean_cosine(vectors(flowed.out, STRINGS)) < 0.05 < mean_cosine(before)


def test_what_mirror_json_says(flowed, cf):
    for report, system in ((flowed, "flow"), (cf, "cf")):
        manifest = Manifest.read(report.out, "mirror_rt encoder")
        manifest.verify(report.out)
        assert (manifest.dimension, manifest.pooling, manifest.language) == (32, "mean", "en")
        assert manifest.recipe["system"] == system
        assert manifest.data["strings"] == 40
        assert (manifest.training["steps"], manifest.training["seed"]) == (20, 42)
    assert cf.manifest.recipe["flow_blocks"] == 3
    assert (cf.manifest.recipe["span_mask"], cf.manifest.recipe["mirror_weight"]) == ("tokens", 0.3)
    assert cf.manifest.training["mirror_steps"] == 5
    assert cf.manifest.level == "sentence"


def test_sentence_transformers_refuses_it(flowed):
    from sentence_transformers import SentenceTransformer

    modules = json.loads((flowed.out / "modules.json").read_text())
    assert [module["type"].rpartition(".")[2] for module in modules] == [
        "Transformer", "Pooling", "Flow", "Normalize",
    ]  # fmt: skip
    assert modules[2]["type"] == "mirror_train.glow.Flow"
    with pytest.raises(
        ValueError, match=r"the module class 'mirror_train.glow.Flow', which is not"
    ):
        SentenceTransformer(str(flowed.out), device="cpu")
    with pytest.raises(ModelError, match="no module of sentence-transformers"):
        SentenceTransformer(str(flowed.out), device="cpu", trust_remote_code=True)


@pytest.mark.full
def test_a_flow_behind_a_whitening_layer_keeps_it(tiny_bert, tmp_path):
    recipe = load_recipe("word").replace(whitening=0.5, batch_size=10, epochs=1)
    tune(DATA, TrainConfig(recipe=recipe, out=tmp_path / "white", model=str(tiny_bert)))
    train("flow", DATA, flow_config(tmp_path / "white", tmp_path / "out"))
    encoder = TorchEncoder.load(tmp_path / "out")
    dense, flow = encoder.head.layers
    assert encoder.head.pooling == "cls"
    expected = flow(torch.from_numpy(vectors(tmp_path / "white"))).numpy()
    np.testing.assert_allclose(vectors(tmp_path / "out"), expected, atol=FLOW_ERROR)
    assert Manifest.read(tmp_path / "out", "mirror_rt encoder").level == "word"
    assert dense.linear.bias.abs().sum() > 0


@pytest.mark.full
def test_the_first_step_is_mirror_bert_and_the_second_leaves_it(cf, tiny_bert, tmp_path):
    config = TrainConfig(recipe=MIRROR, out=tmp_path / "mirror", model=str(tiny_bert),
                        precision="fp32")  # fmt: skip
    tune(DATA, config)
    assert same_weights(encoder_weights(tmp_path / "mirror"), encoder_weights(cf.out))
    assert not same_weights(encoder_weights(tiny_bert), encoder_weights(cf.out))
    assert [path.name for path in cf.out.parent.iterdir()] == [cf.out.name]


@pytest.mark.full
def test_without_the_regulariser_it_is_mirror_bert_and_then_bert_flow(tiny_bert, tmp_path):
    train("cf", DATA, cf_config(tiny_bert, tmp_path / "cf", mirror_weight=0))
    config = TrainConfig(recipe=MIRROR, out=tmp_path / "mirror", model=str(tiny_bert),
                        precision="fp32")  # fmt: skip
    tune(DATA, config)
    train("flow", DATA, flow_config(tmp_path / "mirror", tmp_path / "flow"))
    np.testing.assert_array_equal(vectors(tmp_path / "cf"), vectors(tmp_path / "flow"))


def naive_mirror(z, temperature):
    """L_mirror as it is written down, in float64: the first view's rows among all others."""
    z = z / z.norm(dim=1, keepdim=True)
    s, n = (z @ z.T / temperature).tolist(), len(z)
    terms = []
    for i in range(n // 2):
        others = [math.exp(s[i][j]) for j in range(n) if j != i]
        terms.append(-math.log(math.exp(s[i][i + n // 2]) / sum(others)))
    return sum(terms) / len(terms)


def regularised(tiny_bert, recipe):
    """A trainer before its first step, its batches, its encoder and its flow."""
    device = resolve_device("cpu")
    base = load_pretrained(tiny_bert, dropout=recipe.mirror.dropout)
    x = TorchEncoder.load(tiny_bert, pooling="mean").encode(STRINGS, normalize_embeddings=False)
    flow = initial_flow(32, recipe.flow, seed=3, vectors=x)
    batches = Batches(
        DATA, recipe.mirror, loss_batch=8, seed=1, mask_token="[MASK]", processes=Processes(device)
    )
    config = TrainConfig(recipe=recipe, out=Path("unused"), seed=1)
    trainer = cf_trainer(Run(config, Processes(device), "fp32"), base, flow, batches, recipe)
    return trainer, batches, base, flow


@pytest.mark.parametrize("joint", [False, True])
def test_the_joint_loss_is_the_formula(tiny_bert, tmp_path, joint):
    """L = lambda L_mirror + L_flow, both from their definitions; no dropout, nothing masked."""
    mirror = MIRROR.replace(dropout=0.0, span_length=0)
    recipe = CfRecipe(mirror, dataclasses.replace(FLOW, steps=1), mirror_weight=0.7, joint=joint)
    trainer, batches, _, flow = regularised(tiny_bert, recipe)
    texts = batches[0].texts
    x = TorchEncoder.load(tiny_bert, pooling="mean").encode(texts, normalize_embeddings=False)
    flow = flow.double()
    z = flow(torch.from_numpy(x).double()).detach()
    density = -0.5 * (z[:8] ** 2).sum(dim=1) - 16 * math.log(2 * math.pi)
    nats = -(density + flow.log_determinant().detach()).mean()
    expected = 0.7 * naive_mirror(z, mirror.temperature) + float(nats) / (32 * math.log(2))
    flow.float()
    losses = trainer.run(CheckpointStore(tmp_path, {})).losses
    # Of cosines of what the flow, which is exact to FLOW_ERROR, makes of the encoder's vectors.
    error = 2 * (RUN_ERROR + FLOW_ERROR) / mirror.temperature
    assert losses[0] == pytest.approx(expected, abs=error)


def test_the_likelihood_does_not_move_the_encoder(tiny_bert, monkeypatch):
    monkeypatch.setattr("mirror_train.training.mirror.contrast", lambda z, *_, **__: 0 * z.sum())
    trainer, _, base, flow = regularised(tiny_bert, CfRecipe(MIRROR, FLOW, joint=True))
    (part,) = trainer.steps.parts(0)
    forward = trainer.forward
    part.loss(forward.embed(part.inputs, forward.chunks(part.inputs))).backward()
    assert all(not p.grad.any() for p in base.model.parameters() if p.grad is not None)
    assert any(p.grad.any() for p in flow.parameters())


@pytest.mark.full
def test_joint_has_no_first_step(tiny_bert, tmp_path):
    report = train("cf", DATA, cf_config(tiny_bert, tmp_path / "joint", joint=True))
    assert not same_weights(encoder_weights(tiny_bert), encoder_weights(report.out))
    assert report.manifest.recipe["joint"] is True
    assert "mirror_steps" not in report.manifest.training


@pytest.fixture
def interrupted(tiny_bert, tmp_path, monkeypatch):
    """A run that was stopped in its second step."""
    with monkeypatch.context() as patch:
        path = "mirror_train.systems.cf.cf_trainer"
        patch.setattr(path, lambda *_, **__: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(
            KeyboardInterrupt, match=r"out.mirror holds the tuned encoder: continue"
        ):
            train("cf", DATA, cf_config(tiny_bert, tmp_path / "out"))
    return tmp_path / "out"


def test_resuming_gives_the_same(interrupted, cf, tiny_bert):
    assert not interrupted.exists()
    with pytest.raises(
        OutputExistsError, match="left of an earlier run: continue it with --resume"
    ):
        train("cf", DATA, cf_config(tiny_bert, interrupted))
    with pytest.raises(ConfigError, match="of another run: seed was 42, now 7"):
        train("cf", DATA, cf_config(tiny_bert, interrupted, resume=True, seed=7))
    other = MIRROR.replace(temperature=0.05)
    with pytest.raises(ConfigError, match=r"of another run: temperature was 0.04, now 0.05"):
        train("cf", DATA, cf_config(tiny_bert, interrupted, resume=True, mirror=other))
    train("cf", DATA, cf_config(tiny_bert, interrupted, resume=True))
    np.testing.assert_array_equal(vectors(interrupted), vectors(cf.out))
    assert [path.name for path in interrupted.parent.iterdir()] == ["out"]


def test_the_disk_must_hold_what_is_still_to_be_written(interrupted, tiny_bert, monkeypatch):
    """The tuned encoder too, but not where there is none, or where it is there already."""
    asked = []

    def ask(out, needed):
        asked.append(needed)
        raise OSError("full")

    monkeypatch.setattr(sys.modules["mirror_train.training.run"], "check_space", ask)
    for out, options in [("new", {}), ("joint", {"joint": True}), ("out", {"resume": True})]:
        with pytest.raises(OSError, match="full"):
            train("cf", DATA, cf_config(tiny_bert, interrupted.parent / out, **options))
    assert asked == [2 * asked[1], asked[1], asked[1]]


@pytest.mark.full
def test_overwriting_forgets_the_first_step(interrupted, tiny_bert):
    train("cf", DATA, cf_config(tiny_bert, interrupted, overwrite=True, seed=7))
    assert Manifest.read(interrupted, "mirror_rt encoder").training["seed"] == 7


def test_from_the_command_line_to_a_bundle(cli, succeed, tiny_bert, tmp_path):
    lines, out, bundle = tmp_path / "lines.txt", tmp_path / "out", tmp_path / "bundle"
    lines.write_text("\n".join(STRINGS) + "\n")
    done = succeed("train", "cf", "--model", tiny_bert, "--data", lines, "--out", out, "--steps",
                   12, "--batch-size", 8, "--mirror-batch-size", 10, "--views", "simcse",
                   "--mirror-steps", 3, "--longer-than", 0)  # fmt: skip
    assert "12 steps, learning rates adding up to" in done.out
    assert f"next: mirror-rt export {out} --out BUNDLE" in done.out
    recipe = Manifest.read(out, "mirror_rt encoder").recipe
    assert (recipe["span_length"], recipe["batch_size"], recipe["flow_steps"]) == (0, 10, 12)
    succeed("export", out, "--out", bundle)
    manifest = Manifest.read(bundle)
    assert manifest.variant("fp32").parity["max_difference"] < OTHER_TOOLS
    expected = TorchEncoder.load(out).encode(STRINGS)
    np.testing.assert_allclose(Encoder.load(bundle).encode(STRINGS), expected, atol=OTHER_TOOLS)
    card = (bundle / "README.md").read_text()
    assert "a normalising flow" in card
    assert "SentenceTransformer" not in card
    assert re.search(r"^recipe +cf, ", cli("info", bundle).out, re.MULTILINE)


@pytest.mark.full
def test_flow_from_the_command_line(cli, succeed, tiny_bert, tmp_path):
    lines, out = tmp_path / "lines.txt", tmp_path / "out"
    lines.write_text("\n".join(STRINGS) + "\n")
    line = ["train", "flow", "--model", tiny_bert, "--data", lines, "--out", out, "--steps", 5,
            "--batch-size", 8, "--blocks", 2, "--hidden-size", 4]  # fmt: skip
    succeed(*line)
    (flow,) = TorchEncoder.load(out).head.layers
    assert (len(flow.blocks), flow.hidden_size) == (2, 4)
    done = cli(*line)
    assert done.code == 1
    assert "already exists" in done.err
    for pooling in ("cls", "first-last-avg"):
        assert cli(*line, "--overwrite", "--pooling", pooling).code == 0
        assert Manifest.read(out, "mirror_rt encoder").pooling == pooling
        assert TorchEncoder.load(out).head.pooling == pooling


@pytest.fixture(scope="module")
def odd_bert(tiny_bert, tmp_path_factory):
    """A tiny BERT of 33 dimensions."""
    from transformers import AutoConfig, AutoModel

    folder = tmp_path_factory.mktemp("odd") / "odd"
    shutil.copytree(tiny_bert, folder)
    config = AutoConfig.from_pretrained(folder)
    config.hidden_size, config.num_attention_heads = 33, 3
    AutoModel.from_config(config).save_pretrained(folder)
    return folder


@pytest.mark.parametrize("command", ["flow", "cf"])
def test_an_odd_dimension_is_refused_before_the_work(cli, odd_bert, tmp_path, command):
    lines = tmp_path / "lines.txt"
    lines.write_text("\n".join(STRINGS) + "\n")
    done = cli("train", command, "--model", odd_bert, "--data", lines, "--out", tmp_path / "out")
    assert done.code == 2
    assert "a flow needs vectors of an even number of dimensions, got 33" in done.err
    assert [path.name for path in tmp_path.iterdir()] == ["lines.txt"]


@pytest.mark.parametrize(("options", "code", "message"), [
    (["flow"], 2, "pass one of --data FILE and --words LANG"),
    (["cf", "--data", "DATA", "--words", "en"], 2, "pass one of --data FILE and --words LANG"),
    (["flow", "--data", "DATA", "--batch-size", 100], 1, "pass --batch-size 40 or less"),
    (["cf", "--data", "DATA", "--mirror-batch-size", 100], 1, "pass --mirror-batch-size 40 or"),
    (["flow", "--data", "DATA", "--longer-than", 99], 1, "no string has more than 99 words"),
    (["flow", "--words", "en", "--longer-than", 5], 2, "--longer-than and --lang go with --data"),
    (["flow", "--data", "DATA", "--select", "none.tsv"], 1, "none.tsv"),
    (["flow", "--data", "DATA", "--steps", 0], 2, "steps must be at least 1, got 0"),
    (["flow", "--data", "DATA", "--learning-rate", -1], 2, "learning-rate must be greater than 0"),
    (["flow", "--data", "DATA", "--weight-decay", -1], 2, "weight-decay must be at least 0"),
    (["flow", "--data", "DATA", "--blocks", 0], 2, "blocks must be at least 1, got 0"),
    (["flow", "--data", "DATA", "--seed", -1], 2, "seed must be at least 0, got -1"),
    (["cf", "--data", "DATA", "--batch-size", 1], 2, "at least 2: InfoNCE needs negatives"),
    (["cf", "--data", "DATA", "--mirror-weight", -1], 2, "mirror-weight must be at least 0"),
    (["cf", "--data", "DATA", "--no-regulariser", "--mirror-weight", 1], 2, "leave out"),
    (["cf", "--data", "DATA", "--no-regulariser", "--joint"], 2, "joint needs the regulariser"),
    (["cf", "--data", "DATA", "--overwrite", "--resume"], 2, "choose one"),
    (["cf", "--data", "DATA", "--recipe", "cff"], 2, "did you mean 'cf'"),
])  # fmt: skip
def test_wrong_options(cli, tiny_bert, tmp_path, options, code, message):
    lines = tmp_path / "lines.txt"
    lines.write_text("\n".join(STRINGS) + "\n")
    options = [lines if option == "DATA" else option for option in options]
    done = cli("train", *options, "--model", tiny_bert, "--out", tmp_path / "out")
    assert done.code == code
    assert message in done.err
    assert [path.name for path in tmp_path.iterdir()] == ["lines.txt"]


def test_a_flow_cannot_follow_every_pooling(tiny_bert, tmp_path):
    recipe = load_recipe("word").replace(batch_size=10, epochs=1, pooling="mean-with-padding")
    config = TrainConfig(recipe=recipe, out=tmp_path / "padded", model=str(tiny_bert))
    tune(DATA, config)
    with pytest.raises(ModelError, match="pooling mean-with-padding, which a flow cannot follow"):
        train("flow", DATA, flow_config(tmp_path / "padded", tmp_path / "out"))
    with pytest.raises(
        ConfigError, match="a flow follows neither the pooling mean-with-padding nor"
    ):
        train("cf", DATA, cf_config(tmp_path / "padded", tmp_path / "out"))


def test_too_few_strings(tiny_bert, tmp_path):
    one = TrainingData(["one"], ["one"], None, "strings")
    with pytest.raises(
        DataError, match=r"strings has too few different strings, 1.*give at least 2"
    ):
        train("flow", one, flow_config(tiny_bert, tmp_path / "out"))
