"""tune --lang TAG,TAG --joint: one encoder for many languages."""

import json

import pytest

from command_errors import one_line_error
from mirror_rt import ConfigError
from mirror_train import word_list
from mirror_train.languages.joint import joint_data


def test_shares_follow_the_temperature():
    sources = {"en": word_list("en", top=900), "fr": word_list("fr", top=100)}
    kept = joint_data(sources, temperature=1, seed=0)
    assert len(kept) == 1000
    assert set(kept.first) == set(sources["en"].first) | set(sources["fr"].first)
    balanced = joint_data(sources, temperature=2, seed=0)
    assert balanced.source == "en 750, fr 250"
    only = set(sources["fr"].first) - set(sources["en"].first)
    assert {balanced.first.count(word) for word in only} == {2, 3}  # 250 of 100
    assert joint_data(sources, temperature=1e9, seed=0).source == "en 500, fr 500"
    assert balanced == joint_data(sources, temperature=2, seed=0)
    assert balanced.first != joint_data(sources, temperature=2, seed=1).first
    with pytest.raises(ConfigError, match=r"must be at least 1, got 0\.5"):
        joint_data(sources, temperature=0.5, seed=0)


def test_translations_and_repetitions_are_not_negatives():
    english, french = word_list("en", top=50), word_list("fr", top=50)
    entries = [("the", "le"), ("the", "la"), ("of", "de")]
    data = joint_data({"en": english, "fr": french, "en-fr": entries}, temperature=1, seed=0)
    group = dict(zip(data.first, data.group_ids, strict=True))
    assert group["the"] == group["le"] == group["la"] != group["of"]
    assert group["of"] == group["de"]
    assert data.first is not data.second


def test_one_encoder_for_two_languages(cli, tiny_bert, tmp_path):
    dictionary = tmp_path / "en-fr.tsv"
    dictionary.write_text("the\tle\nwater\teau\n", encoding="utf-8")
    options = ("--recipe", "word", "--top", 120, "--batch-size", 40, "--epochs", 1, "--out")
    result = cli("tune", tiny_bert, "--lang", "en,fr", "--joint", "--dictionary", dictionary,
                 *options, tmp_path / "out")  # fmt: skip
    assert result.code == 0, result.err
    manifest = json.loads((tmp_path / "out/mirror.json").read_text())
    assert manifest["language"] is None
    assert manifest["data"]["source"].startswith("en 114, fr 114, en-fr.tsv 15")
    assert manifest["training"]["steps"] == 6


@pytest.mark.parametrize(
    ("options", "contains"),
    [
        (["--joint", "--lang", "en"], "--joint needs two languages"),
        (["--joint", "--words", "en"], "--joint goes with --lang TAG,TAG"),
        (["--joint", "--lang", "en,fr", "--words", "."], "--words . has no en.txt"),
        (["--words", "en", "--dictionary", "x.tsv"], "--dictionary goes with --joint"),
    ],
)
def test_options_that_do_not_go_together(cli, tiny_bert, tmp_path, monkeypatch, options, contains):
    monkeypatch.chdir(tmp_path)
    result = cli("tune", tiny_bert, "--recipe", "word", *options, "--out", tmp_path / "out")
    one_line_error(result, code=2, contains=contains)
