"""Which recipe `mirror-rt tune` takes where none is named."""

import pytest

from mirror_train.cli.tune import default_recipe
from mirror_train.data.training_data import TrainingData

SENTENCE = "The committee will meet again on Thursday to vote."


def data(strings, **more):
    return TrainingData(strings, strings, None, "a file", **more)


@pytest.mark.parametrize(
    ("strings", "recipe"),
    [
        (["river", "town", "old"], "word"),
        (["heart attack", "acute inflammation of the liver", "fever"], "word"),
        ([SENTENCE, "Nobody knew why the lights had gone out.", "yes"], "sentence"),
        (["河流", "心肌梗死", "发烧"], "word"),
        (["人人生而自由，在尊严和权利上一律平等。"] * 2, "sentence"),
        (["ทุกคนเกิดมามีอิสระและเสมอภาคกัน"], "sentence"),
    ],
)
def test_by_the_length_of_the_strings(strings, recipe):
    name, reason = default_recipe(data(strings), None)
    assert name == recipe
    assert "half of the strings have" in reason


def test_by_what_the_strings_come_with():
    assert default_recipe(data(["a"], hard_negatives=["b"]), "triplets")[0] == "simcse-nli"
    assert default_recipe(data(["a"]), "synonyms")[0] == "mirror-ms"


def test_the_command_says_which_and_why(succeed, tiny_bert, words_file, tmp_path):
    out = tmp_path / "out"
    result = succeed("tune", tiny_bert, "--data", words_file, "--lang", "en", "--epochs", 1,
                     "--out", out, "--quiet")  # fmt: skip
    assert (
        "recipe word, for words and phrases: half of the strings have 1 or fewer words"
        in result.out
    )
    assert '"language": "en"' in (out / "mirror.json").read_text()


def test_ctrl_c_says_what_is_kept(cli, tiny_bert, words_file, tmp_path, monkeypatch):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("mirror_train.training.run.Run.load", interrupted)
    line = ("tune", tiny_bert, "--data", words_file, "--out", tmp_path / "out")
    result = cli(*line)
    assert result.code == 130
    assert "interrupted: nothing was saved yet, start the same command again" in result.err
    (tmp_path / "out.checkpoints").mkdir()
    monkeypatch.setattr("mirror_train.training.tune.tune", interrupted)
    assert "out.checkpoints holds a checkpoint, continue with --resume" in cli(*line).err
