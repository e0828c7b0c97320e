from pathlib import Path

import pytest

from mirror_rt import ConfigError
from mirror_train import load_recipe, recipe_names
from mirror_train.systems import CfRecipe, TrainConfig


def test_the_shipped_recipes_are_the_papers():
    """EMNLP 2021, section 3 (Training Setup), appendices B and J."""
    assert {"phrase", "sentence", "word", "word-plus"} <= set(recipe_names())
    for name, (tau, k, epochs, length) in {
        "word": (0.2, 0, 2, 25),
        "phrase": (0.04, 2, 2, 25),
        "sentence": (0.04, 5, 1, 50),
    }.items():
        recipe = load_recipe(name)
        got = (recipe.temperature, recipe.span_length, recipe.epochs, recipe.max_length)
        assert got == (tau, k, epochs, length)
        assert (recipe.level, recipe.pooling, recipe.loss) == (name, "auto", "ntxent")
        assert (recipe.dropout, recipe.batch_size) == (0.1, 200)
        assert (recipe.learning_rate, recipe.weight_decay) == (2e-5, 0.01)


def test_the_first_step_of_bert_cf():
    """BERT-CF, sections 4.1 and 5.3."""
    recipe = load_recipe("cf")
    assert (recipe.span_mask, recipe.span_probability, recipe.span_length) == ("tokens", 0.3, 5)
    assert (recipe.batch_size, recipe.learning_rate, recipe.weight_decay) == (16, 1e-4, 0.01)
    assert (recipe.dropout, recipe.pooling, recipe.loss) == (0.1, "mean", "first_view")
    assert (recipe.steps, TrainConfig(out=Path("x"), recipe=CfRecipe()).seed) == (10_000, 11711)
    assert recipe.replace(epochs=2).steps is None  # an option that would be ignored otherwise


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"temperature": 0}, "temperature must be greater than 0, got 0"),
        ({"temperature": float("nan")}, "temperature must be a finite number, got nan"),
        ({"dropout": 1}, "dropout must be at least 0 and less than 1, got 1.0"),
        ({"batch_size": 1}, "batch_size must be at least 2: InfoNCE needs negatives, got 1"),
        ({"batch_size": 20.5}, "batch_size must be int, got 20.5"),
        ({"epochs": True}, "epochs must be int, got True"),
        ({"span_length": -1}, "span_length must be at least 0"),
        (
            {"pooling": "weightedmean"},
            "pooling must be one of cls, mean, max, mean-without-special, mean-with-padding, "
            "first-last-avg, lasttoken, auto, got 'weightedmean'",
        ),
        ({"loss": "triplet"}, "loss must be one of ntxent, decoupled"),
        ({"max_length": 2}, "max_length must be at least 3"),
        ({"learning_rate": -1}, "learning_rate must be greater than 0"),
    ],
)
def test_fields_are_checked(changes, message):
    with pytest.raises(ConfigError, match=message):
        load_recipe("word").replace(**changes)


def test_unknown_names_suggest_the_nearest(tmp_path):
    with pytest.raises(ConfigError, match=r"no recipe 'words' \(did you mean 'word'\?\)"):
        load_recipe("words")
    path = tmp_path / "mine.toml"
    path.write_text("temperatur = 0.2")
    with pytest.raises(
        ConfigError, match=r"unknown field 'temperatur' \(did you mean 'temperature'"
    ):
        load_recipe(path)
    path.write_text("level = 'word'")
    with pytest.raises(ConfigError, match=r'missing temperature, .*; extends = "word" takes'):
        load_recipe(path)
    path.write_text("level = ")
    with pytest.raises(ConfigError, match=r"mine.toml"):
        load_recipe(path)
    with pytest.raises(ConfigError, match="No such file"):
        load_recipe(tmp_path / "absent.toml")


def test_a_file_of_ones_own(tmp_path):
    from importlib import resources

    shipped = (resources.files("mirror_train") / "systems" / "word.toml").read_text()
    path = tmp_path / "mine.toml"
    path.write_text(shipped.replace("temperature = 0.2", "temperature = 0.1"))
    assert load_recipe(path).temperature == 0.1


def test_a_recipe_extends_a_shipped_one(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text('extends = "word"\ntemperature = 0.1\n')
    assert load_recipe(path) == load_recipe("word").replace(temperature=0.1)
    path.write_text('extends = "words"\n')
    with pytest.raises(ConfigError, match=r"extends.*one of .*word"):
        load_recipe(path)
