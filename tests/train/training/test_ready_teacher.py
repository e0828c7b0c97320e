"""The ready teacher: tuned where the cache does not have it, and kept there."""

import json
import shutil

import pytest

from mirror_train import TrainConfig, TrainingData, load_recipe, tune
from mirror_train.training import teacher_model
from mirror_train.training.loop import Trainer
from mirror_train.training.run_config import finished_run
from mirror_train.training.teacher_model import known_languages, teacher_folder
from mirror_train.training.tune import tune_teacher


@pytest.fixture(autouse=True)
def cache(tiny_roberta, tmp_path, monkeypatch):
    """A cache of one test, and a tiny model in the place of all-mpnet-base-v2."""
    monkeypatch.setenv("MIRROR_RT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(teacher_model, "_BASES", (str(tiny_roberta),) * 2)
    monkeypatch.setattr(teacher_model, "TOP", 60)
    monkeypatch.setattr(teacher_model, "_CHECKPOINT_EVERY", 1)
    return tmp_path / "cache/teachers"


@pytest.fixture
def steps(monkeypatch):
    """The numbers of the steps that are trained."""
    found, original = [], Trainer._step
    monkeypatch.setattr(Trainer, "_step", lambda self, n: found.append(n) or original(self, n))
    return found


@pytest.fixture
def run(words, tiny_bert, tmp_path):
    """run(out) tunes the tiny BERT, or does what `by` does with its data and settings."""

    def train(out, by=tune, **options):
        config = TrainConfig(
            out=tmp_path / out, teacher="auto", model=str(tiny_bert), precision="fp32",
            recipe=load_recipe("teacher").replace(batch_size=24), **options,
        )  # fmt: skip
        return by(TrainingData(words[:48], words[:48], None, "words"), config)

    return train


def weights(report):
    return (report.out / "model.safetensors").read_bytes()


def test_it_is_tuned_once_and_kept_by_identity(run, cache, steps, tiny_roberta, monkeypatch):
    first = run("first")
    assert steps == [0, 1, 0, 1]  # of the teacher, then of the student
    (kept,) = cache.iterdir()
    manifest = json.loads((kept / "mirror.json").read_text())
    assert manifest["language"] == "en"
    assert manifest["recipe"]["temperature"] == load_recipe("word").temperature
    found = first.manifest.training["teacher"]
    assert (found["name"], found["base_model"]) == ("auto", tiny_roberta.name)
    assert found["tuned_on"] == "wordfreq en top 60"
    assert weights(run("again")) == weights(first)
    assert steps[4:] == [0, 1]
    taken = run("first", resume=True, by=lambda data, own: finished_run(own, data.sha256()))
    assert taken == first.manifest
    monkeypatch.setattr(teacher_model, "TOP", 61)
    run("other")
    assert len([*cache.iterdir()]) == 2


def test_a_kill_while_it_is_tuned_or_teaches_changes_no_byte(run, cache, steps, crash_at):
    whole = weights(run("whole"))
    shutil.rmtree(cache)
    steps.clear()
    with crash_at(1):
        run("parts", checkpoint_every=1)
    assert [path.name.rpartition(".")[2] for path in cache.iterdir()] == ["checkpoints"]
    steps.clear()
    teacher = run("parts", by=lambda data, own: teacher_folder(own, tune_teacher))
    assert steps == [1]
    with crash_at(1):
        run("parts", checkpoint_every=1)
    assert weights(run("parts", checkpoint_every=1, resume=True)) == whole
    assert [*cache.iterdir()] == [teacher]


def test_offline_it_is_tuned_from_what_the_cache_has(run, tiny_roberta, caplog, monkeypatch):
    monkeypatch.setattr(teacher_model, "_BASES", ("all-mpnet-base-v2", str(tiny_roberta)))
    assert run("out", offline=True).manifest.training["teacher"]["base_model"] == tiny_roberta.name
    assert "all-mpnet-base-v2 is not in the cache, and the run is offline" in caplog.text


def test_a_folder_of_its_name_goes_first(run, tiny_bundle, tmp_path, monkeypatch):
    shutil.copytree(tiny_bundle("roberta"), tmp_path / "auto")
    monkeypatch.chdir(tmp_path)
    assert (
        run("out", by=lambda data, own: teacher_folder(own, tune_teacher)).resolve()
        == tmp_path / "auto"
    )


def test_it_knows_english():
    config = TrainConfig(out="x", recipe=load_recipe("teacher"), teacher="auto")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(teacher_model, "_BASES", ("all-mpnet-base-v2", "all-MiniLM-L6-v2"))
        assert known_languages(config) == {"en"}


def test_many_languages_are_tuned_into_one_encoder(
    succeed, tiny_bert, tiny_roberta, tmp_path, monkeypatch
):
    row = f'[bases.own]\nmodel = "{tiny_roberta}"\nlanguages = ["en"]\n'
    (tmp_path / "own.toml").write_text(row)
    monkeypatch.setenv("MIRROR_RT_RECIPES", str(tmp_path / "own.toml"))
    out = tmp_path / "out"
    result = succeed("tune", tiny_bert, "--lang", "en,fr", "--teacher", "auto", "--top", 60,
                     "--batch-size", 40, "--out", out)  # fmt: skip
    assert "recipe teacher, to follow a teacher" in result.out
    assert "the words of fr are left out, because they gain nothing beside a teacher" in result.out
    found = json.loads((out / "mirror.json").read_text())
    assert found["training"]["teacher"]["strings"] == found["data"]["strings"] == 60
