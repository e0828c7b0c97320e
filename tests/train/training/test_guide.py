"""A run with a guide: what it reads, what is kept, what the card says, and what is refused."""

import dataclasses
import json

import numpy as np
import pytest

from mirror_rt import ConfigError
from mirror_rt.bundle.manifest import Variant
from mirror_rt.bundle.model_card import model_card
from mirror_train import TrainConfig, TrainingData, load_recipe, tune
from mirror_train.training import guide as module


@pytest.fixture
def run(words, tiny_bert, tmp_path):
    """run(out, guide, ...) tunes the tiny BERT on pairs of words."""
    pairs = list(zip(words[:48], words[48:96], strict=True))
    data = TrainingData.of_pairs(pairs, "pairs")

    def train(out, guide, changes=None, data=data, **options):
        recipe = load_recipe("word").replace(
            **{"batch_size": 12, "epochs": 1, "guide_margin": 0.0} | (changes or {})
        )
        config = TrainConfig(
            out=tmp_path / out, teacher=guide, model=str(tiny_bert), recipe=recipe,
            precision="fp32", **options,
        )  # fmt: skip
        return tune(data, config)

    return train


def test_a_guide_reads_both_sides_and_filters(run, words, tiny_bundle, monkeypatch):
    seen = []
    original = module.guided

    def watched(z1, z2, g1, g2, **options):
        seen.append((len(g1), g1.shape == g2.shape, options["margin"]))
        return original(z1, z2, g1, g2, **options)

    monkeypatch.setattr(module, "guided", watched)
    report = run("out", tiny_bundle("roberta"), {"guide_margin": 0.1})
    assert seen == [(12, True, 0.1)] * 4
    made = json.loads((report.out / "mirror.json").read_text())
    assert made["recipe"]["guide_margin"] == 0.1
    assert made["training"]["teacher"]["strings"] == len(set(words[:96]))
    plain = run("plain", None, {"guide_margin": None})
    assert report.stats.losses[0] < plain.stats.losses[0]  # fewer in the denominator


def test_the_card_says_that_it_guided(run, bundle):
    manifest = run("out", bundle).manifest
    manifest = dataclasses.replace(
        manifest, variants={"fp32": Variant("model.onnx", "fp32", "cpu")}
    )
    assert f"guided by {bundle.as_posix()}" in model_card(manifest)


def test_a_killed_run_goes_on_to_the_same_bytes(run, tiny_bundle, tmp_path, crash_at):
    guide = tiny_bundle("roberta")
    whole = run("whole", guide)
    with crash_at(2):
        run("parts", guide, checkpoint_every=1)
    parts = run("parts", guide, checkpoint_every=1, resume=True)
    found, expected = ((one.out / "model.safetensors").read_bytes() for one in (parts, whole))
    assert found == expected
    assert not (tmp_path / "parts.teacher").exists()


def test_crops_are_guided_by_the_whole_strings(run, words, tiny_bundle):
    texts = [" ".join(words[i : i + 5]) for i in range(36)]
    data = TrainingData(texts, texts, None, "texts")
    losses = run("out", tiny_bundle("roberta"), {"crop": 0.5}, data=data).stats.losses
    assert np.isfinite(losses).all()


def test_settings_that_do_not_go_together_are_refused(run, tiny_bundle):
    guide = tiny_bundle("roberta")
    for given, changes, wrong in (
        (None, {}, "guide_margin goes with teacher"),
        (guide, {"teacher_weight": 0.5}, "is not followed, so has no weight"),
        (guide, {"loss": "one_way"}, "goes with the loss ntxent"),
        (guide, {"guide_margin": -0.1}, "guide_margin must be at least 0"),
    ):
        with pytest.raises(ConfigError, match=wrong):
            run("out", given, changes)
