"""First dimensions that stand alone: the loss of a step, what is declared, what is refused."""

import json

import numpy as np
import pytest

from mirror_export import ExportConfig, export_bundle
from mirror_rt import ConfigError, Encoder, Manifest
from mirror_rt.bundle.model_card import model_card
from mirror_rt.server.models.service import ModelFacts
from mirror_train import TrainConfig, TrainingData, infonce, load_recipe, tune


@pytest.fixture
def run(words, tiny_bert, tmp_path):
    """run(out, ...) tunes the tiny BERT, of 32 dimensions, on words."""
    data = TrainingData(words[:48], words[:48], None, "words")

    def train(out="out", loss=None, **changes):
        recipe = load_recipe("word").replace(**{"batch_size": 24, "steps": 2} | changes)
        config = TrainConfig(
            recipe=recipe, out=tmp_path / out, model=str(tiny_bert), precision="fp32"
        )
        return tune(data, config, loss=loss)

    return train


def test_the_loss_is_the_sum_over_the_parts(run):
    seen = []

    def own(z1, z2):
        value = infonce(z1, z2, temperature=0.2)
        seen.append((z1.shape[1], value.item()))
        return value

    losses = run(matryoshka=(8, 16), loss=own).stats.losses
    assert [size for size, _ in seen] == [8, 16, 32] * 2
    assert losses[0] == pytest.approx(sum(value for _, value in seen[:3]), rel=1e-6)
    assert run("own", matryoshka=(8, 16)).stats.losses[0] == pytest.approx(losses[0], rel=1e-6)


def test_the_bundle_declares_the_parts(run, tmp_path, cli):
    out = run(matryoshka=(8, 16)).out
    config = json.loads((out / "config.json").read_text())
    assert (config["is_matryoshka"], config["matryoshka_dimensions"]) == (True, [8, 16, 32])
    assert Manifest.read(out, "mirror_rt encoder").matryoshka == [8, 16]
    for truncate_dim, kept in ((None, [8, 16]), (16, [8])):
        bundle = tmp_path / f"bundle-{truncate_dim}"
        export_bundle(ExportConfig(str(out), bundle, truncate_dim=truncate_dim))
        assert Manifest.read(bundle).matryoshka == kept
    whole = Manifest.read(tmp_path / "bundle-None")
    assert "The first 8 or 16 stand alone, too" in model_card(whole)
    assert (
        "32 dimensions, or its first 8 or 16, pooling" in cli("info", tmp_path / "bundle-None").out
    )
    with Encoder.load(tmp_path / "bundle-None") as encoder:
        assert ModelFacts.of(encoder).matryoshka == [8, 16]
        part, vector = (encoder.encode("a river", truncate_dim=size) for size in (8, None))
    np.testing.assert_allclose(part, vector[:8] / np.linalg.norm(vector[:8]), rtol=1e-5)


def test_a_recipe_of_ones_own_lists_them(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text('extends = "word"\nmatryoshka = [64, 128]\n')
    assert load_recipe(path) == load_recipe("word").replace(matryoshka=(64, 128))


def test_the_command_takes_them_by_commas(cli, file, tiny_bert, words, tmp_path):
    data = file("words.txt", *words[:30])
    done = cli("tune", tiny_bert, "--data", data, "--recipe", "word", "--steps", 1,
               "--batch-size", 10, "--matryoshka", "8,16", "--out", tmp_path / "out")  # fmt: skip
    assert done.code == 0, done.err
    assert Manifest.read(tmp_path / "out", "mirror_rt encoder").recipe["matryoshka"] == [8, 16]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"matryoshka": (16, 8)}, "matryoshka must be rising numbers of dimensions"),
        ({"matryoshka": 8}, "matryoshka must be rising numbers of dimensions"),
        ({"matryoshka": (0, 8)}, "matryoshka must be rising numbers of dimensions"),
        ({"matryoshka": (8, 32)}, "matryoshka must be less than the 32 dimensions of"),
        ({"matryoshka": (8,), "mlp": "training"}, "does not go with mlp='training'"),
    ],
)
def test_what_cannot_be_is_refused(changes, message, run):
    with pytest.raises(ConfigError, match=message):
        run(**changes)
