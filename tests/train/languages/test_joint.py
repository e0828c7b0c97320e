"""tune --lang TAG,TAG --joint: one encoder for many languages."""

import json
import math
import re

import numpy as np
import pytest
import torch

from command_errors import one_line_error
from mirror_rt import ConfigError
from mirror_train import load_recipe, word_list
from mirror_train.cli.tune_languages import language_tags
from mirror_train.compute.processes import Processes
from mirror_train.data.batches import Batches
from mirror_train.data.training_data import TrainingData
from mirror_train.languages.joint import hold_out, joint_data
from mirror_train.recipes.base_models import load_languages


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
    fewer = joint_data(sources, temperature=2, seed=0, pairs=400)
    assert fewer.source == "en 300, fr 100"
    assert balanced == joint_data(sources, temperature=2, seed=0)
    assert balanced.first != joint_data(sources, temperature=2, seed=1).first
    with pytest.raises(ConfigError, match=r"must be at least 1, got 0\.5"):
        joint_data(sources, temperature=0.5, seed=0)


def test_half_of_an_epoch_is_what_a_teacher_can_read():
    entries = [(f"mot{i}", f"word{i}") for i in range(100)]
    sources = {
        "en": word_list("en", top=300),
        "fr": word_list("fr", top=900),
        "fr-en.tsv": entries,
        "fr-enm.tsv": entries,
        "my.tsv": entries,
    }
    data = joint_data(sources, temperature=1, seed=0, known={"en"})
    assert data.source == "en 300, fr 327, fr-en.tsv 100, fr-enm.tsv 36, my.tsv 36"
    assert {*data.languages[300:627]} == {("fr", "fr")}
    assert {*data.languages[627:727]} == {("fr", "en")}
    assert {*data.languages[-36:]} == {(None, None)}
    fewer = joint_data(sources, temperature=1, seed=0, known={"en"}, pairs=400)
    assert fewer.source.startswith("en 150, fr 164, fr-en.tsv 50, ")
    assert joint_data({"en": sources["en"]}, temperature=1, seed=0, known={"en"}).source == "en 300"


def test_translations_and_repetitions_are_not_negatives():
    english, french = word_list("en", top=50), word_list("fr", top=50)
    entries = [("the", "le"), ("the", "la"), ("of", "de")]
    data = joint_data({"en": english, "fr": french, "en-fr": entries}, temperature=1, seed=0)
    group = dict(zip(data.first, data.group_ids, strict=True))
    assert group["the"] == group["le"] == group["la"] != group["of"]
    assert group["of"] == group["de"]
    assert data.first is not data.second


def test_a_chain_through_all_pairs_leaves_negatives():
    """Pairs of a long chain are negatives of each other, unless they meet in the batch."""
    chain = TrainingData.of_pairs([(f"w{i}", f"w{i + 1}") for i in range(400)], "chain")
    assert len({*chain.group_ids}) == 1
    batches = Batches(chain, load_recipe("word"), loss_batch=100, seed=0, mask_token="[MASK]",
                      processes=Processes(torch.device("cpu")))  # fmt: skip
    batch = batches[0]
    group = dict(zip(batch.texts[:100], batch.group_ids.tolist(), strict=True))
    assert len({*group.values()}) > 50
    neighbours = [int(word[1:]) for word in group if f"w{int(word[1:]) + 1}" in group]
    assert neighbours
    assert all(group[f"w{i}"] == group[f"w{i + 1}"] for i in neighbours)


def test_one_encoder_for_two_languages(succeed, tiny_bert, tmp_path):
    dictionary = tmp_path / "en-fr.tsv"
    entries = [("the", "le"), ("water", "eau"), ("water", "flot"), ("bread", "pain")]
    dictionary.write_text("".join(f"{a}\t{b}\n" for a, b in entries), encoding="utf-8")
    options = ("--recipe", "word", "--top", 120, "--batch-size", 40, "--epochs", 1, "--out")
    result = succeed("tune", tiny_bert, "--lang", "en,fr", "--joint", "--dictionary", dictionary,
                     *options, tmp_path / "out")  # fmt: skip
    manifest = json.loads((tmp_path / "out/mirror.json").read_text())
    assert manifest["language"] is None
    assert manifest["data"]["source"].startswith("en 11")
    assert "en-fr.tsv" in manifest["data"]["source"]
    assert manifest["training"]["steps"] == math.ceil(manifest["data"]["strings"] / 40)
    assert re.search(r"en-fr.tsv  +[12]  +[01]\.\d{3}  +[01]\.\d{3}\n", result.out)


@pytest.mark.full
def test_the_seed_decides_which_entries_are_held_out_and_taken(succeed, tiny_bert, tmp_path):
    """Without one it is the default, so that a run can be repeated and resumed."""
    dictionary = tmp_path / "en-fr.tsv"
    dictionary.write_text("".join(f"w{i}\tt{i}\n" for i in range(80)), encoding="utf-8")
    hashes = []
    for number, seed in enumerate(([], ["--seed", 42], ["--seed", 7])):
        out = tmp_path / f"out{number}"
        succeed("tune", tiny_bert, "--lang", "en,fr", "--joint", "--dictionary", dictionary,
                "--recipe", "word", "--top", 60, "--batch-size", 40, "--epochs", 1, *seed,
                "--out", out)  # fmt: skip
        hashes.append(json.loads((out / "mirror.json").read_text())["data"]["sha256"])
    assert hashes[0] == hashes[1] != hashes[2]


@pytest.mark.parametrize(
    ("entries", "recipe"),
    [("", "word-plus, for strings"), ("river\trivière\nhouse\tmaison\n", "joint, for pairs")],
)
def test_dictionaries_decide_the_recipe(succeed, tiny_bert, tmp_path, entries, recipe):
    dictionary = tmp_path / "en-fr.tsv"
    dictionary.write_text(entries * 40, encoding="utf-8")
    options = ("--top", 30, "--batch-size", 20, "--steps", 1, "--frozen-layers", 1)
    result = succeed("tune", tiny_bert, "--lang", "en,fr", "--joint", *options,
                     *(("--dictionary", dictionary) if entries else ()),
                     "--out", tmp_path / "out")  # fmt: skip
    assert f"recipe {recipe} of many languages (--recipe names another)" in result.out


@pytest.mark.full
def test_what_the_system_has(succeed, tiny_bert, tmp_path, monkeypatch, caplog):
    synonyms = "UTF-8\nbig|1\n-|large\nlarge|1\n-|big\nlittle|1\n-|small\nsmall|1\n-|little\n"
    (tmp_path / "th_en_US_v2.dat").write_text(synonyms)
    (tmp_path / "th_fr_FR_v2.dat").write_text("UTF-8\nbroken\n")
    monkeypatch.setenv("MIRROR_RT_THESAURI", str(tmp_path))
    monkeypatch.setenv("MIRROR_RT_DICTIONARIES", str(tmp_path))
    options = ("--joint", "--installed", "--recipe", "word", "--top", 60, "--batch-size", 40)
    result = succeed("tune", tiny_bert, "--lang", "en,fr", *options, "--epochs", 1,
                     "--out", tmp_path / "out", "--json")  # fmt: skip
    assert "fr synonyms left out: " in caplog.text
    (row,) = json.loads(result.out[result.out.index("[") :])
    assert row["source"] == "en synonyms"
    assert row["held_out"] == 1
    assert 0 < row["before"] <= 1
    assert 0 < row["after"] <= 1


def test_thesauri_and_a_teacher_in_one_run(succeed, tiny_bert, tiny_bundle, tmp_path, monkeypatch):
    teacher = tiny_bundle("roberta")
    base = json.loads((teacher / "mirror.json").read_text())["base_model"]["name"]
    (tmp_path / "own.toml").write_text(f'[bases.own]\nmodel = "{base}"\nlanguages = ["en"]\n')
    monkeypatch.setenv("MIRROR_RT_RECIPES", str(tmp_path / "own.toml"))
    synonyms = "UTF-8\ngros|1\n-|grand\ngrand|1\n-|gros\nfin|1\n-|bout\nbout|1\n-|fin\n"
    (tmp_path / "th_fr_FR_v2.dat").write_text(synonyms)
    monkeypatch.setenv("MIRROR_RT_THESAURI", str(tmp_path))
    options = ("--joint", "--thesaurus", "--teacher", teacher, "--top", 60, "--batch-size", 40)
    result = succeed("tune", tiny_bert, "--lang", "en,fr", *options, "--out", tmp_path / "out")
    assert (
        "recipe joint-teacher, to follow a teacher, and contrast pairs of all languages"
        in result.out
    )
    assert "the words of fr are left out, because they gain nothing beside a teacher" in result.out
    found = json.loads((tmp_path / "out/mirror.json").read_text())
    assert found["recipe"]["teacher_weight"] == 0.5
    english = int(re.match(r"en (\d+), fr synonyms \d+$", found["data"]["source"])[1])
    assert found["training"]["teacher"]["strings"] == english == found["data"]["strings"] // 2
    options = (*options, "--recipe", "joint-teacher", "--overwrite")
    succeed("tune", tiny_bert, "--lang", "en,fr", *options, "--out", tmp_path / "out")
    found = json.loads((tmp_path / "out/mirror.json").read_text())
    assert re.match(r"en \d+, fr \d+, fr synonyms \d+$", found["data"]["source"])


def test_held_out_words_are_in_no_pair_to_tune_on():
    entries = [(f"w{i}", f"t{i % 30}") for i in range(60)] + [("x", "w3"), ("y", "w7")]
    kept, held = hold_out("en-fr", entries, seed=1)
    words = {word for word, _ in held.entries}
    assert len(words) == 3
    assert not words & {word for pair in kept for word in pair}
    assert {*kept, *held.entries} <= {*entries}

    class Exact:
        """Gives each word of an entry and its translation one direction."""

        def encode(self, texts, **options):
            group = {word: row for row, (word, _) in enumerate(held.entries)}
            group |= {answer: row for row, (_, answer) in enumerate(held.entries)}
            return np.eye(len(entries))[[group.get(text, -1) for text in texts]]

    assert held.reciprocal_rank(Exact()) == 1


def test_all_means_the_languages_of_wordfreq():
    tags = language_tags("all", load_languages())
    assert len(tags) >= 40
    assert {"en", "fr", "zh", "ur"} <= {*tags}


@pytest.mark.parametrize(
    ("options", "contains"),
    [
        (["--joint", "--lang", "en"], "--joint needs two languages"),
        (["--joint", "--words", "en"], "--joint goes with --lang TAG,TAG"),
        (["--joint", "--lang", "en,fr", "--thesaurus", "x.dat"], "pass --thesaurus without a"),
        (["--joint", "--lang", "en,fr", "--words", "."], "--words . has no en.txt"),
        (["--joint", "--lang", "en,fr", "--seed", "-1"], "seed must be at least 0, got -1"),
        (
            ["--words", "en", "--dictionary", "x.tsv"],
            "--dictionary and --installed go with --joint",
        ),
    ],
)
def test_options_that_do_not_go_together(cli, tiny_bert, tmp_path, monkeypatch, options, contains):
    monkeypatch.chdir(tmp_path)
    result = cli("tune", tiny_bert, "--recipe", "word", *options, "--out", tmp_path / "out")
    one_line_error(result, code=2, contains=contains)
