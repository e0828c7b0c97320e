"""A student that follows a teacher: what it learns, what is kept, and what is refused."""

import json
import shutil

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from transformers import AutoConfig, AutoModel

from mirror_rt import ConfigError, Encoder, ModelError
from mirror_train import TrainConfig, TrainingData, load_recipe, tune
from mirror_train.data.batches import StepBatch
from mirror_train.training.run_config import finished_run
from mirror_train.training.teacher import Teacher
from tiers import tiers


@pytest.fixture
def run(words, tiny_bert, tmp_path):
    """run(out, teacher, ...) tunes the tiny BERT on words, or on the data given."""

    def train(out, teacher, *, data=None, changes=None, by=tune, **options):
        texts = words[:96]
        data = data or TrainingData(texts, texts, None, "words")
        recipe = load_recipe("teacher").replace(**{"batch_size": 24} | (changes or {}))
        config = TrainConfig(
            out=tmp_path / out,
            teacher=teacher,
            **{"model": str(tiny_bert), "recipe": recipe, "precision": "fp32"} | options,
        )
        return by(data, config)

    return train


def manifest(report):
    return json.loads((report.out / "mirror.json").read_text())


def declared(folder, out, width=32):
    """Copy the folder of a model, and declare that the mean is its pooling."""
    shutil.copytree(folder, out)
    kinds = {"Transformer": "", "Pooling": "1_Pooling"}
    modules = [
        {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for i, (kind, path) in enumerate(kinds.items())
    ]
    (out / "modules.json").write_text(json.dumps(modules))
    (out / "1_Pooling").mkdir()
    pooling = {"word_embedding_dimension": width, "pooling_mode_mean_tokens": True}
    (out / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    return out


def cosines(vectors):
    vectors = vectors - vectors.mean(0)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    return (vectors @ vectors.T)[np.triu_indices(len(vectors), 1)]


@pytest.mark.parametrize("family", tiers(["roberta", "deberta-v2"], fast=("roberta",)))
def test_a_teacher_of_another_tokenizer_and_pooling_is_followed(
    family, run, words, tiny_bert, tiny_bundle, tmp_path
):
    teacher = tiny_bundle(family)
    report = run(
        "out",
        teacher,
        changes={"epochs": 60, "learning_rate": 2e-3, "dropout": 0, "batch_size": 96},
    )
    wanted, before, after = (
        cosines(Encoder.load(one, **options).encode(words[:96]))
        for one, options in ((teacher, {}), (tiny_bert, {"pooling": "cls"}), (report.out, {}))
    )
    assert np.corrcoef(after, wanted)[0, 1] > np.corrcoef(before, wanted)[0, 1] + 0.1
    assert report.stats.losses[-1] < report.stats.losses[0]
    found = manifest(report)["training"]["teacher"]
    assert found["name"] == teacher.as_posix()
    assert found["strings"] == 96
    assert not (tmp_path / "out.teacher").exists()


def test_a_teacher_of_another_width_in_a_folder_of_weights(run, tiny_bert, tmp_path):
    folder = declared(tiny_bert, tmp_path / "wide", width=48)
    config = AutoConfig.from_pretrained(tiny_bert)
    config.hidden_size = 48
    AutoModel.from_config(config).save_pretrained(folder)
    report = run("out", folder)
    assert manifest(report)["training"]["teacher"]["dimension"] == 48
    assert report.manifest.dimension != 48


def test_pairs_of_which_the_teacher_reads_the_first(run, words, tiny_bundle, monkeypatch):
    read = []
    encode = Encoder.encode
    monkeypatch.setattr(
        Encoder, "encode", lambda self, texts, **o: read.extend(texts) or encode(self, texts, **o)
    )
    pairs = list(zip(words[:40], words[40:80], strict=True))
    data = TrainingData.of_pairs(pairs, "pairs")
    report = run("out", tiny_bundle("roberta"), data=data, changes={"teacher_weight": 0.5})
    assert read == words[:40]
    assert manifest(report)["recipe"]["teacher_weight"] == 0.5
    run("follows", tiny_bundle("roberta"), data=data)


def test_strings_have_one_view_unless_they_are_contrasted():
    teacher = Teacher(np.arange(2), None, {})
    batch = StepBatch(["a", "b", "a", "b"], 2, None, np.arange(2))
    recipe = load_recipe("teacher")
    assert teacher.views_of(batch, recipe).texts == ["a", "b"]
    assert teacher.views_of(batch, recipe.replace(teacher_weight=0.5)) is batch
    pairs = batch._replace(texts=["a", "b", "c", "d"])
    assert teacher.views_of(pairs, recipe) is pairs


def test_a_killed_run_goes_on_to_the_same_bytes(run, tiny_bundle, tmp_path, monkeypatch, crash_at):
    monkeypatch.setattr("mirror_train.training.kept_vectors._PART", 40)
    teacher = tiny_bundle("roberta")
    whole = run("whole", teacher)
    original = Encoder.encode
    calls = []

    def killed(self, texts, **options):
        calls.append(len(texts))
        if len(calls) == 2:
            raise MemoryError("simulated")
        return original(self, texts, **options)

    with monkeypatch.context() as patch, pytest.raises(MemoryError):
        patch.setattr(Encoder, "encode", killed)
        run("parts", teacher)
    calls.clear()
    with monkeypatch.context() as patch, crash_at(2):
        patch.setattr(
            Encoder,
            "encode",
            lambda *given, **o: calls.append(len(given[1])) or original(*given, **o),
        )
        run("parts", teacher, checkpoint_every=1)
    assert calls == [40, 16]  # the first part was finished
    parts = run("parts", teacher, checkpoint_every=1, resume=True)
    assert (parts.out / "model.safetensors").read_bytes() == (
        whole.out / "model.safetensors"
    ).read_bytes()
    assert not (tmp_path / "parts.teacher").exists()


def test_a_finished_run_of_a_teacher_that_is_another_now_is_refused(run, tiny_bundle, tmp_path):
    teacher = tmp_path / "teacher"
    shutil.copytree(tiny_bundle("roberta"), teacher)
    report = run("out", teacher)

    def kept():
        return run("out", teacher, by=lambda data, c: finished_run(c, data.sha256()), resume=True)

    assert kept() == report.manifest
    (teacher / "mirror.json").write_text((teacher / "mirror.json").read_text() + "\n")
    with pytest.raises(ConfigError, match="is of another run: teacher's hash was"):
        kept()


def test_vectors_of_another_teacher_or_other_strings_are_not_taken(
    run, words, tiny_bundle, tmp_path, crash_at
):
    with crash_at(1):
        run("out", tiny_bundle("roberta"), checkpoint_every=1)
    assert (tmp_path / "out.teacher").is_dir()
    with pytest.raises(ConfigError, match="teacher was"):
        run("out", tiny_bundle("deberta-v2"), checkpoint_every=1, resume=True)
    run("out", tiny_bundle("deberta-v2"), overwrite=True)


def test_a_teacher_that_is_the_student_is_refused(run, tiny_bert, bundle, tmp_path):
    student = declared(tiny_bert, tmp_path / "student")
    for itself in (student, bundle):
        with pytest.raises(ConfigError, match="the very vectors of the base model"):
            run("out", itself, model=str(student))


def test_a_teacher_that_gives_nan_is_refused(run, tiny_roberta, tmp_path):
    folder = declared(tiny_roberta, tmp_path / "spoilt")
    weights = dict(load_file(folder / "model.safetensors"))
    name = next(name for name in weights if name.endswith("word_embeddings.weight"))
    weights[name] = np.full_like(weights[name], np.nan)
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(ModelError, match="not finite"):
        run("out", folder)
    assert not (tmp_path / "out").exists()


def test_a_student_without_a_padding_token_is_refused(run, tiny_bert, tiny_bundle, tmp_path):
    folder = tmp_path / "student"
    shutil.copytree(tiny_bert, folder)
    for name, key in (("tokenizer_config.json", "pad_token"), ("tokenizer.json", "padding")):
        found = json.loads((folder / name).read_text())
        (folder / name).write_text(json.dumps(found | {key: None}))
    with pytest.raises(ModelError, match="no padding token"):
        run("out", tiny_bundle("roberta"), model=str(folder))


def test_settings_that_do_not_go_together_are_refused(run, words, tiny_bundle):
    teacher, texts = tiny_bundle("roberta"), words[:96]
    hard = TrainingData(texts, texts, None, "rows", hard_negatives=texts[::-1])
    for options, wrong in (
        ({"changes": {"loss": "one_way"}}, "goes with the loss ntxent, not with one_way"),
        ({"changes": {"same_dropout": True}}, "controlled dropout"),
        ({"data": hard}, "no use for the hard negatives of rows"),
        ({"teacher": None, "changes": {"teacher_weight": 0.5}}, "teacher_weight"),
    ):
        with pytest.raises(ConfigError, match=wrong):
            run("out", **{"teacher": teacher} | options)
