"""The budget of movement: how many steps a recipe takes, by its rates and the base's room."""

import json

import numpy as np
import pytest

from mirror_rt import ConfigError
from mirror_train import TrainingData, TuneConfig, load_recipe, tune
from mirror_train.data import installed_thesauri
from mirror_train.training.loop import rate_factor
from mirror_train.training.movement import mean_cosine, steps_within

WORDS = [f"{a}{b}" for a in ("river", "town", "old", "hall") for b in "abcdefghij"]
RECIPE = load_recipe("synonyms").replace(batch_size=10, epochs=5)


def moved(recipe, steps):
    factors = [
        rate_factor(step, steps, warm_up=recipe.warm_up, decay=recipe.decay)
        for step in range(steps)
    ]
    return recipe.learning_rate * sum(factors)


@pytest.mark.parametrize("schedule", [{}, {"warm_up": 0.2}, {"warm_up": 0.1, "decay": True}])
def test_the_largest_number_of_steps_within_the_budget(schedule):
    recipe = RECIPE.replace(learning_rate=2e-5, **schedule)
    for budget in (1e-4, 2.5e-4, 1e-3):
        steps = steps_within(budget, recipe, most=1000)
        assert moved(recipe, steps) <= budget * (1 + 1e-6) < moved(recipe, steps + 1)
    assert steps_within(1e-3, recipe, most=7) == 7
    assert steps_within(1e-6, recipe, most=7) == 0


def test_the_mean_cosine_is_that_of_all_pairs():
    rows = np.random.default_rng(0).normal(size=(20, 5)).astype(np.float32) + 1
    unit = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    above = np.triu_indices(20, 1)
    assert mean_cosine(rows) == pytest.approx((unit @ unit.T)[above].mean(), abs=1e-6)


def test_a_run_ends_where_its_budget_does(tiny_bert, tmp_path):
    """The same budget in half as many steps at twice the rate; without one, all epochs."""
    data = TrainingData(WORDS, WORDS, None, "words")
    steps = {}
    for rate, movement in ((1e-3, 0.02), (2e-3, 0.02), (1e-3, None)):
        recipe = RECIPE.replace(learning_rate=rate, movement=movement, steps=None)
        out = tmp_path / f"{rate}-{movement}"
        report = tune(data, TuneConfig(out=out, model=str(tiny_bert), recipe=recipe))
        steps[rate, movement] = len(report.stats.losses)
        made = json.loads((out / "mirror.json").read_text())
        assert made["training"]["movement"] == pytest.approx(report.stats.movement, rel=1e-3)
        assert report.stats.movement == pytest.approx(rate * len(report.stats.losses))
        assert made["recipe"]["movement"] == movement
    assert steps[1e-3, None] == 20
    assert 2 <= steps[1e-3, 0.02] < 20
    assert steps[2e-3, 0.02] == steps[1e-3, 0.02] // 2


def test_epochs_and_steps_go_before_the_budget(tiny_bert, tmp_path):
    assert load_recipe("synonyms").movement is not None
    assert load_recipe("synonyms").replace(epochs=2).movement is None
    assert RECIPE.replace(steps=9).replace(movement=1e-3).steps is None
    with pytest.raises(ConfigError, match="movement must be greater than 0, got 0"):
        RECIPE.replace(movement=0)
    data = TrainingData(WORDS, WORDS, None, "words")
    recipe = RECIPE.replace(movement=1e-9, steps=3)
    report = tune(data, TuneConfig(out=tmp_path / "out", model=str(tiny_bert), recipe=recipe))
    assert len(report.stats.losses) == 3


def test_all_thesauri_in_one_run(cli, tiny_bert, tmp_path, monkeypatch):
    """Each language has a row with its steps and what was held out; --resume keeps it."""
    monkeypatch.setattr(installed_thesauri, "_FOLDERS", ())
    monkeypatch.setattr(installed_thesauri, "_WORDNET", ())
    monkeypatch.setenv("MIRROR_RT_THESAURI", str(tmp_path / "thesauri"))
    run = ("tune", "--lang", "all", "--thesaurus", "--model", tiny_bert, "--batch-size", 10,
           "--out", tmp_path / "tuned", "--json")  # fmt: skip
    result = cli(*run)
    assert result.code == 2
    assert "no thesaurus is installed" in result.err
    (tmp_path / "thesauri").mkdir()
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
