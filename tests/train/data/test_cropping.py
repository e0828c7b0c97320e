"""Spans of a text as its two views."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirror_rt import ConfigError
from mirror_train import TrainConfig, TrainingData, load_recipe, tune
from mirror_train.compute.precision import resolve_device
from mirror_train.compute.processes import Processes
from mirror_train.data.batches import Batches
from mirror_train.data.views import crop_words

WORDS = st.lists(st.text("abc", min_size=1, max_size=6), max_size=12)


@given(WORDS, st.floats(0.01, 0.99), st.integers(0, 99))
def test_a_crop_is_a_run_of_words(words, share, seed):
    kept = crop_words(" ".join(words), share, np.random.default_rng(seed)).split()
    assert len(kept) == min(len(words), max(2, round(share * len(words))))
    assert any(words[i : i + len(kept)] == kept for i in range(len(words) + 1))


def test_scripts_without_spaces_are_cropped_by_characters(rng):
    text = "他们昨天在城里的老图书馆见面并且谈了很久"
    kept = crop_words(text, 0.5, rng)
    assert kept in text
    assert len(kept) == len(text) // 2


def test_every_place_is_drawn(rng):
    assert {crop_words("a b c d", 0.5, rng) for _ in range(100)} == {"a b", "b c", "c d"}


@pytest.fixture
def data(words):
    texts = [" ".join(words[i : i + 3 + i % 9]) for i in range(48)]
    return TrainingData(texts, texts, None, "texts")


@pytest.fixture
def run(data, tiny_bert, tmp_path):
    """run(out, ...) tunes the tiny BERT on crops of texts."""

    def train(out, changes=None, **options):
        recipe = load_recipe("sentence").replace(
            **{"batch_size": 12, "crop": 0.5, "span_length": 2} | (changes or {})
        )
        config = TrainConfig(
            recipe=recipe, out=tmp_path / out, model=str(tiny_bert), precision="fp32", **options
        )
        return tune(data, config)

    return train


def test_both_views_are_cropped_and_follow_from_the_seed(data):
    recipe = load_recipe("sentence").replace(batch_size=12, crop=0.5, span_length=0)

    def views(seed, step):
        processes = Processes(resolve_device("cpu"))
        options = {"loss_batch": 12, "seed": seed, "mask_token": None, "processes": processes}
        return Batches(data, recipe, **options)[step].texts

    texts = views(1, 2)
    assert texts == views(1, 2)
    assert texts != views(2, 2)
    first, second = texts[:12], texts[12:]
    assert first != second
    for view in texts:
        assert any(view in text and len(view) < len(text) for text in data.first)
    for one, other in zip(first, second, strict=True):
        assert any(one in text and other in text for text in data.first)


def test_a_killed_run_goes_on_to_the_same_bytes(run, crash_at):
    whole = run("whole")
    with crash_at(3):
        run("parts", checkpoint_every=1)
    parts = run("parts", checkpoint_every=1, resume=True)
    found, expected = ((one.out / "model.safetensors").read_bytes() for one in (parts, whole))
    assert found == expected
    assert parts.manifest.recipe["crop"] == 0.5


def test_what_cannot_be_is_refused(run, tiny_bundle):
    with pytest.raises(ConfigError, match="crop must be greater than 0 and less than 1"):
        run("out", {"crop": 1.0})
    with pytest.raises(ConfigError, match="does not go with crops"):
        run("out", teacher=tiny_bundle("roberta"))
