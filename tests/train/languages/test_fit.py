"""Strings that are not of the language named, and base models that do not know them."""

import pytest

from command_errors import one_line_error
from mirror_rt import ConfigError
from mirror_rt.languages.detection import language_shares
from mirror_train import TuneConfig, load_languages, load_recipe, load_training_data, word_list
from mirror_train.cli.tune_languages import with_base
from mirror_train.data.training_data import TrainingData
from mirror_train.languages.fit import base_warning, string_warnings, token_fit
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
    config = TuneConfig(recipe=load_recipe("word"), out=tmp_path)
    asked = [(None, None), (None, "en"), (None, "fr-CA"), (None, "iw"), ("mbert", "fr")]
    assert [with_base(config, *one).model for one in asked] == [
        MINILM, MINILM, "camembert-base", "bert-base-multilingual-uncased",
        "bert-base-multilingual-uncased"]  # fmt: skip
    folder = with_base(config, str(tmp_path), "xq")
    assert (folder.model, folder.pooling) == (str(tmp_path), "auto")
    with pytest.raises(ConfigError, match="no language 'xq'; mirror-rt recipes lists all"):
        with_base(config, None, "xq")


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
    pytest.importorskip("py3langid")
    assert base_warning(minilm, without_language("en"), MINILM, table, "word") is None
    found = base_warning(minilm, without_language("el"), MINILM, table, "word")
    assert "better is --model bert-greek" in found
    found = base_warning(minilm, without_language("fr"), MINILM, table, "word")
    assert "words.txt is 'fr': better is --model camembert" in found


def test_another_language_than_was_said(table):
    pytest.importorskip("py3langid")
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
    pytest.importorskip("py3langid")
    assert string_warnings(word_list(language, top=1000), table) == []
