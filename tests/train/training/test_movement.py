"""Where a run ends before its epochs: by the sum of its rates, or by neighbours that are lost."""

import dataclasses
import json

import numpy as np
import pytest
import torch

from mirror_rt import ConfigError
from mirror_train import TrainConfig, TrainingData, load_recipe, tune
from mirror_train.compute.processes import Processes
from mirror_train.data import installed_thesauri
from mirror_train.data.batches import Batches
from mirror_train.training.movement import Neighbours, common_words, planned_steps, rate_factor

WORDS = [f"{a}{b}" for a in ("river", "town", "old", "hall") for b in "abcdefghij"]
DATA = TrainingData(WORDS, WORDS, None, "words")
RECIPE = load_recipe("synonyms").replace(batch_size=10, epochs=5)


@pytest.fixture
def run(tiny_bert, tmp_path):
    """Tune on 40 strings, and return what mirror.json records of the training."""

    def tuned(name="out", **changes):
        recipe = RECIPE.replace(**changes)
        config = TrainConfig(
            out=tmp_path / name, model=str(tiny_bert), precision="fp32", recipe=recipe
        )
        report = tune(DATA, config)
        made = json.loads((config.out / "mirror.json").read_text())["training"]
        assert made["steps"] == len(report.stats.losses)
        assert made["movement"] == pytest.approx(report.stats.movement, rel=1e-3)
        return made

    return tuned


def moved(recipe, steps):
    factors = [
        rate_factor(step, steps, warm_up=recipe.warm_up, decay=recipe.decay)
        for step in range(steps)
    ]
    return recipe.learning_rate * sum(factors)


@pytest.mark.parametrize("schedule", [{}, {"warm_up": 0.2}, {"warm_up": 0.1, "decay": True}])
def test_the_largest_number_of_steps_within_the_budget(schedule):
    for budget in (1e-4, 2.5e-4, 1e-3):
        recipe = RECIPE.replace(learning_rate=2e-5, epochs=1000, **schedule)
        recipe = recipe.replace(movement=budget)
        steps, ended_by = planned_steps(recipe, 4)
        assert ended_by == "movement"
        assert moved(recipe, steps) <= budget * (1 + 1e-6) < moved(recipe, steps + 1)
    assert planned_steps(recipe.replace(epochs=2, movement=1e-3), 4) == (8, "epochs")
    assert planned_steps(recipe.replace(movement=1e-6), 4) == (1, "movement")
    assert planned_steps(recipe.replace(steps=3), 4) == (3, "steps")


def test_a_run_ends_where_its_budget_does(run):
    """The same budget in half as many steps at twice the rate; without one, all epochs."""
    made = run(learning_rate=1e-4, movement=6e-4)
    assert (made["steps"], made["movement"]) == (6, 6e-4)
    assert "kept_neighbours" not in made
    assert run("twice", learning_rate=2e-4, movement=6e-4)["steps"] == 3
    assert run("epochs", learning_rate=1e-4)["steps"] == 20


def test_tiers_of_pairs_come_one_after_another():
    def batches(data):
        processes = Processes(torch.device("cpu"))
        return Batches(data, RECIPE, loss_batch=5, seed=1, mask_token=None, processes=processes)

    tiered = batches(dataclasses.replace(DATA, tiers=[1] * 25 + [0] * 15))
    assert tiered.tier_starts == (3,)  # of 8 steps
    for epoch in range(2):
        seen = [word for step in range(8) for word in tiered[8 * epoch + step].texts[:5]]
        assert {*seen[:15]} == {*WORDS[25:]}
        assert sorted(seen[15:]) == sorted(WORDS[:25])
        assert seen[15:] != WORDS[:25]
    assert batches(DATA).tier_starts == ()


@pytest.mark.full
def test_a_run_ends_where_neighbours_are_lost(run):
    """At a high rate after a few steps, at a low one not at all."""
    made = run(learning_rate=3e-2, kept_neighbours=0.9)
    assert 2 <= made["steps"] < 20
    assert made["steps"] % 2 == 0
    assert made["kept_neighbours"] < 0.9
    slow = run("slow", learning_rate=1e-9, kept_neighbours=0.9)
    assert slow["steps"] == 20
    assert slow["kept_neighbours"] > 0.9


class Fixed:
    """Gives each text the row of a table, which a test changes."""

    def __init__(self, rows):
        self.rows = rows

    def encode(self, texts, **options):
        return self.rows[: len(texts)]


def test_neighbours_are_the_nearest_without_the_mean():
    rows = np.random.default_rng(0).normal(size=(40, 8)).astype(np.float32)
    encoder = Fixed(rows)
    watched = Neighbours(encoder, WORDS, least=0.5)
    encoder.rows = 3 * rows + 7  # neither the scale nor a direction that all share
    assert not watched.lost(2)
    assert watched.kept == 1
    encoder.rows = np.random.default_rng(1).normal(size=(40, 8)).astype(np.float32)
    assert watched.lost(2)
    assert 0 < watched.kept < 0.5
    few = Neighbours(Fixed(rows[:3]), WORDS[:3], least=0.5)
    assert not few.lost(2)


def test_a_tier_of_pairs_begins_where_more_neighbours_are_left():
    rows = np.random.default_rng(0).normal(size=(40, 8)).astype(np.float32)
    encoder = Fixed(rows)
    watched = Neighbours(encoder, WORDS, least=0.0, tier_starts=(3,))
    encoder.rows = np.where(np.arange(8) < 6, rows, np.random.default_rng(1).normal(size=(40, 8)))
    watched.lost(2)
    share = watched.kept  # of 1
    watched.least = share - 0.01
    assert not watched.lost(2)
    assert watched.lost(3)
    watched.least = 0.0
    assert not watched.lost(3)


def test_frequent_words_of_the_language_are_watched():
    import wordfreq

    data = TrainingData(WORDS, WORDS, None, "words", "fr")
    assert common_words(data) == wordfreq.top_n_list("fr", 1000)
    assert common_words(DATA) == WORDS
    assert common_words(TrainingData(WORDS, WORDS, None, "words", "gl")) == WORDS


def test_epochs_and_steps_on_the_command_line_go_first():
    recipe = load_recipe("synonyms")
    assert (recipe.movement, recipe.kept_neighbours) != (None, None)
    for changes in ({"epochs": 2}, {"steps": 9}):
        changed = recipe.replace(**changes)
        assert (changed.movement, changed.kept_neighbours) == (None, None)
    assert recipe.replace(steps=9).replace(movement=1e-3).steps is None
    for name, message in (("movement", "greater than 0"), ("kept_neighbours", "in 0 .. 1")):
        with pytest.raises(ConfigError, match=f"{name} must be {message}, got -1"):
            recipe.replace(**{name: -1})


@pytest.mark.full
def test_all_thesauri_in_one_run(cli, tiny_bert, tmp_path, monkeypatch):
    """Each language has a row with its steps and what was held out; --resume keeps it."""
    monkeypatch.setattr(installed_thesauri, "_FOLDERS", ())
    monkeypatch.setattr(installed_thesauri, "_WORDNET", ())
    monkeypatch.setenv("MIRROR_RT_THESAURI", str(tmp_path / "thesauri"))
    run = ("tune", "--lang", "all", "--thesaurus", "--model", tiny_bert, "--batch-size", 10,
           "--out", tmp_path / "tuned", "--json")  # fmt: skip
    result = cli(*run)
    assert result.code == 2
    assert "which is no folder" in result.err
    (tmp_path / "thesauri").mkdir()
    result = cli(*run)
    assert result.code == 2
    assert "no thesaurus is installed" in result.err
    entries = "".join(
        f"{a}|1\n-|{b}\n{b}|1\n-|{a}\n" for a, b in zip(WORDS[::2], WORDS[1::2], strict=True)
    )
    for name in ("th_gl_ES_v2.dat", "th_nb_NO_v2.dat"):
        (tmp_path / "thesauri" / name).write_text(f"UTF-8\n{entries}")
    result = cli(*run, "--top", 60, "--resume")
    assert result.code == 1  # none of these words is a frequent one in Norwegian
    rows = {row["language"]: row for row in json.loads(result.out[: result.out.rindex("]") + 1])}
    assert [*rows] == ["gl", "nb"]
    assert "no two frequent words list each other" in rows["nb"]["error"]
    row = rows["gl"]
    assert (row["status"], row["strings"]) == ("tuned", 19)
    assert 1 <= row["steps"] <= 3
    assert 0 < row["before"]["synonyms"] <= 1
    assert 0 < row["after"]["synonyms"] <= 1
    again = json.loads(cli(*run, "--top", 60, "--resume").out)
    assert again[0] == row | {"status": "kept"}
