"""Strings that are not of the language named, and base models that do not know them."""

import re
import shutil
from itertools import chain
from types import SimpleNamespace

import pytest

from command_errors import one_line_error
from json_files import change
from mirror_export import ExportConfig
from mirror_rt import ConfigError
from mirror_rt.bundle.description import describe_folder
from mirror_rt.bundle.manifest import Manifest
from mirror_rt.errors import ModelError
from mirror_rt.evaluation import read_scored_pairs
from mirror_rt.languages.detection import language_shares
from mirror_train import (
    LanguageJob,
    TrainConfig,
    load_languages,
    load_recipe,
    load_training_data,
    tune,
    word_list,
)
from mirror_train.cli.tune_languages import with_base
from mirror_train.data.training_data import TrainingData
from mirror_train.training.fit import base_warning, script_warning, string_warnings, token_fit
from mirror_train.training.pooling import choose_pooling
from tiers import tiers

MINILM = "sentence-transformers/all-MiniLM-L6-v2"


@pytest.fixture(scope="module")
def table():
    return load_languages()


@pytest.fixture(scope="module")
def minilm(default_model):
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(default_model)


def without_language(language):
    words = word_list(language, top=500).first
    return TrainingData(words, words, None, "words.txt")


def test_one_rule_for_the_base_model(tmp_path):
    config = TrainConfig(recipe=load_recipe("word"), out=tmp_path)
    asked = [(None, None), (None, "en"), (None, "fr-CA"), (None, "iw"), ("mbert", "fr")]
    assert [with_base(config, *one).model for one in asked] == [
        MINILM, MINILM, "camembert-base", "bert-base-multilingual-uncased",
        "bert-base-multilingual-uncased"]  # fmt: skip
    folder = with_base(config, str(tmp_path), "xq")
    assert (folder.model, folder.pooling) == (str(tmp_path), "auto")
    with pytest.raises(ConfigError, match="no language 'xq'; mirror-rt recipes lists all"):
        with_base(config, None, "xq")


@pytest.fixture
def copy_of_e5(tiny_model, tmp_path):
    """A folder without a declaration of a pooling, whose model the table pools by the mean."""
    folder = shutil.copytree(tiny_model("bert"), tmp_path / "copy")
    change(folder / "config.json", _name_or_path="intfloat/multilingual-e5-small")
    return folder


def strings(tmp_path, words):
    path = tmp_path / "strings.txt"
    path.write_text("\n".join(words[:40]))
    return path


OFTEN = ("--recipe", "word", "--epochs", 1, "--batch-size", 20, "--device", "cpu")


def test_the_row_of_the_table_holds_for_a_copy_in_a_folder(copy_of_e5, tmp_path, words, succeed):
    path = strings(tmp_path, words)
    done = succeed("tune", copy_of_e5, "--data", path, *OFTEN, "--out", tmp_path / "out")
    assert "pooling mean, by the row multilingual-e5-small of the table\n" in done.out
    assert Manifest.read(tmp_path / "out", "mirror_rt encoder").pooling == "mean"


def test_a_folder_that_declares_its_pooling_keeps_it(copy_of_e5, tmp_path, words, succeed):
    path = strings(tmp_path, words)
    first = ("--pooling", "cls", "--whitening", 0.5, "--out", tmp_path / "first")
    done = succeed("tune", copy_of_e5, "--data", path, *OFTEN, *first)
    assert "pooling cls, as asked for; a whitening layer (whitening 0.5), by the recipe" in done.out
    config = TrainConfig(model=str(tmp_path / "first"), recipe=load_recipe("word"), out=tmp_path)
    described = SimpleNamespace(description=describe_folder(tmp_path / "first"))
    with pytest.raises(ModelError, match="declares the pooling cls and further modules"):
        choose_pooling(described, config)


def test_a_pooling_that_nobody_named_is_said(tiny_bert, tmp_path, words, caplog):
    """The library says what the command line says."""
    data = load_training_data(strings(tmp_path, words))
    tune(data, TrainConfig(model=str(tiny_bert), recipe=load_recipe("word"), out=tmp_path / "out"))
    assert "declares no pooling, and the table of base models has no row of it" in caplog.text


def test_paths_may_be_texts(tiny_bert, tmp_path, words):
    data = load_training_data(str(strings(tmp_path, words)))
    config = TrainConfig(
        model=str(tiny_bert), recipe=load_recipe("word"), out=str(tmp_path / "out")
    )
    assert config.out == tmp_path / "out"
    job = LanguageJob("en", config, strings=str(tmp_path / "strings.txt"))
    assert job.read()[0].first == data.first
    assert ExportConfig(str(tiny_bert), str(tmp_path / "b")).out == tmp_path / "b"
    (tmp_path / "p.tsv").write_text("text1\ttext2\tscore\na\tb\t1\n")
    assert len(read_scored_pairs(str(tmp_path / "p.tsv")).scores) == 1


def test_texts_that_lose_tokens_are_counted(tiny_bert, tmp_path, words, succeed):
    """One of 40 strings, in both of its views, is a line of 63,000 characters."""
    path = tmp_path / "strings.txt"
    path.write_text("\n".join([*words[:39], "river " * 10_500]))
    done = succeed("tune", tiny_bert, "--data", path, *OFTEN, "--out", tmp_path / "out")
    assert ", 2.5 % of the texts cut at 25 tokens" in done.out
    assert Manifest.read(tmp_path / "out", "mirror_rt encoder").training["cut_percent"] == 2.5


def test_vectors_that_end_worse_than_the_base_models_are_said(tiny_bert, tmp_path, words, caplog):
    recipe = load_recipe("word").replace(learning_rate=0.5, epochs=3)
    data = load_training_data(strings(tmp_path, words))
    report = tune(data, TrainConfig(model=str(tiny_bert), recipe=recipe, out=tmp_path / "out"))
    made = report.manifest.training
    assert made["isotropy_after"] < made["isotropy_before"]
    assert "less isotropic than those of the base model" in caplog.text
    assert "the loss has risen from " in caplog.text
    assert "try a lower learning rate than 0.5" in caplog.text


def test_the_language_names_the_base_whose_row_names_the_pooling(tmp_path, monkeypatch):
    (tmp_path / "own.toml").write_text('[languages]\npl = {base = "multilingual-e5-small"}\n')
    monkeypatch.setenv("MIRROR_RT_RECIPES", str(tmp_path / "own.toml"))
    config = with_base(TrainConfig(recipe=load_recipe("word"), out=tmp_path), None, "pl")
    assert (config.pooling, config.pooling_from) == (
        "mean", "by the row multilingual-e5-small of the table")  # fmt: skip


def test_strings_of_which_a_part_is_in_another_script_are_said():
    texts = [*word_list("pl", top=100).first, *word_list("ru", top=100).first]
    said = script_warning(texts, "pl", ["Latn"], "mixed.txt")
    assert re.search(r"mixed.txt: [45]\d% of its letters are of the script Cyrl, but pl is", said)


@pytest.mark.parametrize("order", ["in turn", "one after the other"])
def test_a_half_in_another_script_is_said_wherever_it_stands(table, order):
    """No row of a regular sample, and no limit of what is read, may hide it."""
    halves = [[f"{word} " * 10 for word in word_list(tag, top=1000).first] for tag in ("pl", "ru")]
    texts = [*chain(*zip(*halves, strict=True))] if order == "in turn" else [*chain(*halves)]
    (said,) = string_warnings(TrainingData(texts, texts, None, "mixed.txt", "pl"), table)
    assert "of its letters are of the script Cyrl, but pl is written in Latn" in said


def test_english_that_is_called_polish_is_said_without_an_extra(table, monkeypatch):
    monkeypatch.setattr("mirror_train.training.fit.language_shares", lambda texts: None)
    words = word_list("en", top=1000).first
    (said,) = string_warnings(TrainingData(words, words, None, "en.txt", "pl-PL"), table)
    assert re.fullmatch(r"en.txt: \d of 5,\d{3} letters are beyond ASCII, .* for 'pl-PL': .*", said)
    for tag in ("en", "pl", "de", "nb"):
        assert string_warnings(word_list(tag, top=1000), table) == []


def test_a_folder_goes_before_a_name_in_the_table(table, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mbert").mkdir()
    assert table.base("mbert").model == "mbert"
    assert table.recipe("fi", "word").base.model == "bert-base-multilingual-uncased"


@pytest.mark.parametrize(
    "options",
    [
        ("--words", "fr"),
        ("--data", "words.txt", "--lang", "fr"),
        ("--thesaurus", "pairs.tsv", "--lang", "fr"),
    ],
)
def test_a_language_brings_its_base_model(cli, tmp_path, monkeypatch, options):
    monkeypatch.chdir(tmp_path)
    words = word_list("fr", top=500).first
    (tmp_path / "words.txt").write_text("\n".join(words), encoding="utf-8")
    pairs = [f"{a}\t{b}\n" for a, b in zip(words[::2], words[1::2], strict=True)]
    (tmp_path / "pairs.tsv").write_text("".join(pairs), encoding="utf-8")
    result = cli("tune", *options, "--recipe", "word", "--offline", "--out", tmp_path / "out")
    assert result.code == 1
    assert "camembert-base" in result.err.splitlines()[-1]  # which is on no disk here
    assert "base model camembert-base, for fr (--model names another)" in result.out


def test_a_name_is_no_language(cli, tmp_path, words_file):
    result = cli("tune", "--data", words_file, "--lang", "french", "--out", tmp_path / "out")
    one_line_error(result, code=2, contains="'french' is not a language tag")
    assert "(did you mean fr?)" in result.err
    with pytest.raises(ConfigError, match=r"no word list for language 'german' \(did you mean de"):
        word_list("german")
    assert load_training_data(words_file, language="IW_il").language == "he-IL"


@pytest.mark.parametrize(
    ("language", "contains"),
    [
        ("en", None),
        ("ru", "unknown or bytes, so it hardly knows the language or the script: better is "
         "--model rubert (DeepPavlov/rubert-base-cased)"),
        ("zh", "hardly knows the language or the script: better is --model bert-chinese"),
        ("fr", "is a model of en, and wordfreq fr top 500 is 'fr': better is --model camembert"),
    ],
)  # fmt: skip
def test_a_base_that_does_not_know_the_strings(minilm, table, language, contains):
    data = word_list(language, top=500)
    found = base_warning(minilm, data, MINILM, table, "word")
    assert (found is None) == (contains is None)
    assert contains is None or contains in found
    assert token_fit(minilm, data.first).knows == (language in ("en", "fr"))


def test_strings_without_a_language(minilm, table):
    assert base_warning(minilm, without_language("en"), MINILM, table, "word") is None
    found = base_warning(minilm, without_language("el"), MINILM, table, "word")
    assert "better is --model bert-greek" in found
    found = base_warning(minilm, without_language("fr"), MINILM, table, "word")
    assert "words.txt is 'fr': better is --model camembert" in found


def test_another_language_than_was_said(table):
    words = word_list("fr", top=500).first
    found = string_warnings(TrainingData(words, words, None, "it.txt", "it"), table)
    assert len(found) == 1
    assert "it.txt: by py3langid" in found[0]
    assert "is 'fr', but its language was said to be 'it': is it the right file?" in found[0]
    russian = word_list("ru", top=500).first
    script = string_warnings(TrainingData(russian, russian, None, "it.txt", "it"), table)
    assert "of the script Cyrl, but it is written in Latn" in script[0]
    assert string_warnings(without_language("fr"), table) == []
    assert language_shares(words[:50]) is None  # too little


@pytest.mark.parametrize(
    "language",
    tiers(["bs", "ca", "da", "es", "hr", "id", "ms", "nb", "nl", "pt", "sk", "uk"], fast=["nb"]),
)
def test_word_lists_are_taken_for_what_they_are(table, language):
    assert string_warnings(word_list(language, top=1000), table) == []
