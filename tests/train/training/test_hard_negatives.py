"""A run with mined negatives: who finds them, what is kept, and in which batches they are."""

import json

import numpy as np
import pytest

from mirror_train import TrainConfig, TrainingData, load_recipe, tune
from mirror_train.training import hard_negatives as module
from mirror_train.training.kept_vectors import kept_vectors


@pytest.fixture
def run(words, tiny_bert, tmp_path):
    """run(out, ...) tunes the tiny BERT on pairs of words, with two mined negatives of each."""
    pairs = list(zip(words[:48], words[48:96], strict=True))

    def train(out, changes=None, **options):
        recipe = load_recipe("word").replace(
            **{"batch_size": 12, "epochs": 1, "mined_negatives": 2} | (changes or {})
        )
        config = TrainConfig(
            out=tmp_path / out, model=str(tiny_bert), recipe=recipe, precision="fp32", **options
        )
        return tune(TrainingData.of_pairs(pairs, "pairs"), config)

    return train


@pytest.fixture
def mined(monkeypatch):
    """Return the arguments and the results of every search for negatives."""
    calls = []
    original = module.nearest_negatives

    def watched(units, sides, count, **options):
        found = original(units, sides, count, **options)
        calls.append((units.shape, count, options, found))
        return found

    monkeypatch.setattr(module, "nearest_negatives", watched)
    return calls


def test_the_encoder_before_tuning_finds_them(run, mined):
    report = run("out")
    (shape, count, options, found), *more = mined
    assert (shape[0], count, options["group_ids"].shape, more) == (96, 2, (48,), [])
    assert (found >= 0).all()
    assert report.manifest.recipe["mined_negatives"] == 2
    plain = run("plain", {"mined_negatives": 0})
    assert len(mined) == 1
    assert report.stats.losses[0] != plain.stats.losses[0]  # other strings are in a batch


def test_a_guide_finds_them_and_leaves_out_false_ones(run, mined, tiny_bundle):
    run("out", {"guide_margin": 0.1}, teacher=tiny_bundle("roberta"))
    assert [options["margin"] for _, _, options, _ in mined] == [0.1]


def test_a_teacher_is_followed_on_them(run, mined, tiny_bundle, tmp_path):
    report = run("out", {"teacher_weight": 0.5}, teacher=tiny_bundle("roberta"))
    assert np.isfinite(report.stats.losses).all()
    assert len(mined) == 1
    assert "margin" not in mined[0][2]
    assert [one.name for one in tmp_path.iterdir() if one.name.startswith("out.")] == []


def test_a_killed_run_goes_on_to_the_same_bytes(run, tmp_path, monkeypatch, crash_at):
    whole = run("whole")
    with crash_at(2):
        run("parts", checkpoint_every=1)
    assert json.loads((tmp_path / "parts.neighbours" / "identity.json").read_text())["strings"]

    def refused(texts):
        raise AssertionError(f"{len(texts)} strings were encoded again")

    monkeypatch.setattr(
        module,
        "kept_vectors",
        lambda run, name, encode, *others: kept_vectors(run, name, refused, *others),
    )
    parts = run("parts", checkpoint_every=1, resume=True)
    found, expected = ((one.out / "model.safetensors").read_bytes() for one in (parts, whole))
    assert found == expected
    assert not (tmp_path / "parts.neighbours").exists()
