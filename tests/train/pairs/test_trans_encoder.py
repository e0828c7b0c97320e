"""Trans-Encoder: its losses, its cycles, resuming, and bad input."""

import dataclasses
import shutil
import signal
from functools import partial

import numpy as np
import pytest
import torch

from mirror_rt import ConfigError, DataError, ModelError, OutputExistsError
from mirror_rt.evaluation.similarity import cosines
from mirror_train import TorchEncoder, TrainConfig
from mirror_train.model.cross_encoder import TorchCrossEncoder
from mirror_train.systems import (
    CrossEncoderRecipe,
    TransEncoderRecipe,
    read_unlabelled_pairs,
    train,
)
from mirror_train.systems import trans_encoder as module
from mirror_train.systems.trans_encoder import cosine_error
from mirror_train.training.checkpoint import Interrupted
from mirror_train.training.loop import Trainer
from rounding import RUN_ERROR, SCORE_ERROR, of_statistics


@pytest.fixture
def pairs(tmp_path, words):
    path = tmp_path / "pairs.tsv"
    path.write_text("".join(f"{words[i]} {words[i + 1]}\t{words[i]}\n" for i in range(30)))
    return read_unlabelled_pairs(path)


@pytest.fixture
def configure(tiny_bert, tmp_path):
    def make(out="both", **options):
        recipe = {"cycles": 2, "steps": 4, "batch_size": 8, "learning_rate": 1e-3,
                  "encoder_steps": 4, "encoder_batch_size": 8}  # fmt: skip
        given = TransEncoderRecipe(**recipe | options.pop("recipe", {}))
        return TrainConfig(
            out=tmp_path / out, model=str(tiny_bert), precision="fp32", recipe=given, **options
        )

    return make


def outputs(out):
    """What the two models of a run make of probes."""
    probes = ["the river", "old town hall", "doctor"]
    logits = TorchCrossEncoder.load(out / "cross-encoder").logits(probes, probes[::-1])
    return logits, TorchEncoder.load(out / "encoder").encode(probes)


def test_the_loss_is_the_squared_error_of_cosines():
    """The mean of (cos(u, v) - y)^2, Trans-Encoder, Eq. 2."""
    rng = np.random.default_rng(0)
    u, v, y = rng.normal(size=(4, 3)), rng.normal(size=(4, 3)), rng.random(4)
    found = (u * v).sum(1) / np.linalg.norm(u, axis=1) / np.linalg.norm(v, axis=1)
    z = torch.from_numpy(np.concatenate([u, v]))
    loss = cosine_error(z, torch.from_numpy(y)).item()
    assert loss == pytest.approx(((found - y) ** 2).mean(), rel=of_statistics(u.size))


def test_each_model_labels_for_the_other(pairs, configure, monkeypatch, tiny_bert):
    """The targets are cosines, at least 0, and then sigmoids; both start where they should."""
    seen = []

    def spied(original, *given, **options):
        rows = next(one for one in given if hasattr(one, "targets"))
        seen.append((rows.targets, given))
        return original(*given, **options)

    for name in ("train_cross_encoder", "pair_trainer"):
        monkeypatch.setattr(module, name, partial(spied, getattr(module, name)))
    report = train("trans-encoder", pairs, configure(recipe={"cycles": 1, "pooling": "mean"}))
    (by_encoder, given), (by_cross_encoder, _) = seen
    encoder = TorchEncoder.load(tiny_bert, pooling="mean")
    expected = cosines(encoder, pairs.first, pairs.second)
    np.testing.assert_allclose(by_encoder, expected.clip(0, 1), atol=RUN_ERROR)
    assert given[1].recipe.both_orders
    cross_encoder = TorchCrossEncoder.load(report.also.out)
    scores = cross_encoder.scores(pairs.first, pairs.second)
    np.testing.assert_allclose(by_cross_encoder, scores, atol=SCORE_ERROR)
    for one in (report, report.also):
        assert one.manifest.recipe["system"] == "trans-encoder"
        assert (one.manifest.data["rows"], one.manifest.training["steps"]) == (30, 4)


@pytest.mark.full
def test_ctrl_c_leaves_what_is_finished(pairs, configure, tmp_path, monkeypatch):
    """In the encoder of the first cycle; the resumed run repeats the uninterrupted one."""
    whole = train("trans-encoder", pairs, configure("whole"))
    runs, original = [], Trainer._step

    def interrupted(self, number):
        runs.append(number)
        if len(runs) == 6:  # the second step of the second model
            signal.getsignal(signal.SIGINT)(signal.SIGINT, None)
        return original(self, number)

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "_step", interrupted)
        with pytest.raises(Interrupted, match="interrupted after step 2 of 4; continue with --res"):
            train("trans-encoder", pairs, configure("parts"))
    left = sorted(path.name for path in (tmp_path / "parts.cycles").iterdir())
    assert left == ["1-cross-encoder", "1-encoder.checkpoints"]
    with pytest.raises(OutputExistsError, match=r"parts.cycles is left .* with --resume"):
        train("trans-encoder", pairs, configure("parts"))
    with pytest.raises(ConfigError, match="of another run: learning_rate was"):
        changed = configure("parts", resume=True, recipe={"learning_rate": 2e-3})
        train("trans-encoder", pairs, changed)
    other = dataclasses.replace(pairs, first=pairs.second, second=pairs.first)
    with pytest.raises(ConfigError, match="of another run: data was"):
        train("trans-encoder", other, configure("parts", resume=True))
    resumed = train("trans-encoder", pairs, configure("parts", resume=True))
    for found, expected in zip(
        outputs(tmp_path / "parts"), outputs(tmp_path / "whole"), strict=True
    ):
        np.testing.assert_array_equal(found, expected)
    assert resumed.out.parent.name == "parts"
    assert whole.also.manifest.training["steps"] == 4
    assert not (tmp_path / "parts.cycles").exists()


def test_development_pairs_choose_the_cycle(pairs, configure, tmp_path, monkeypatch):
    table = tmp_path / "dev.tsv"
    table.write_text("text1\ttext2\tscore\nthe river\told town\t1\nday\ttime\t3\nin\ton\t2\n")
    scores = iter([0.5, 0.2, 0.4, 0.9])  # cross-encoder, encoder, and again
    for name in ("systems.cross_encoder.score_correlation", "training.run.evaluate_similarity"):
        monkeypatch.setattr(f"mirror_train.{name}", lambda model, found: next(scores))
    kept = {}
    monkeypatch.setattr(
        shutil, "copytree", lambda source, target: kept.setdefault(target.name, source.name)
    )
    report = train("trans-encoder", pairs, configure(select=table, evaluate_every=4))
    assert kept == {"cross-encoder": "1-cross-encoder", "encoder": "2-encoder"}
    assert report.manifest.training["spearman"] == 0.9


@pytest.mark.full
def test_a_teacher_labels_for_the_first_cycle(pairs, configure, tmp_path):
    """The encoder is the one that this cross-encoder makes in a run that trains both."""
    both = train("trans-encoder", pairs, configure(recipe={"cycles": 1}))
    teacher = both.also.out
    alone = train("trans-encoder", pairs, configure("alone", teacher=teacher, recipe={"cycles": 1}))
    assert alone.also is None
    assert [path.name for path in (tmp_path / "alone").iterdir()] == ["encoder"]
    probes = ["the river", "old town hall"]
    found, expected = (TorchEncoder.load(one.out).encode(probes) for one in (alone, both))
    np.testing.assert_array_equal(found, expected)
    more = train("trans-encoder", pairs, configure("more", teacher=teacher))
    assert more.also.out == tmp_path / "more" / "cross-encoder"


def test_a_teacher_that_cannot_score_pairs(pairs, configure, tiny_bert, tmp_path):
    labelled = dataclasses.replace(pairs, targets=np.arange(30) % 3, labels=("a", "b", "c"))
    settings = TrainConfig(out=tmp_path / "classes", model=str(tiny_bert),
                                  recipe=CrossEncoderRecipe(steps=1, batch_size=4))  # fmt: skip
    classes = train("cross-encoder", labelled, settings).out
    for teacher, message in [
        (classes, "a cross-encoder with one logit gives scores, this one has 3"),
        (tiny_bert, "is no cross-encoder"),
        (tmp_path / "missing", "missing"),
    ]:
        with pytest.raises(ModelError, match=message):
            train("trans-encoder", pairs, configure("none", teacher=teacher))
        assert not (tmp_path / "none").exists()


def test_pairs_without_labels_are_read_from_any_table(tmp_path):
    for name, text in [
        ("pairs.tsv", "a b\tc\nd\te\nd\te\n"),
        ("pairs.txt", "a b||c\nd||e\n"),
        ("table.tsv", "id\tsentence1\tsentence2\tscore\n1\ta b\tc\t3\n2\td\te\t1\n3\t \te\t1\n"),
        ("table.csv", "sentence_A,sentence_B\na b,c\nd,e\n"),
    ]:
        (tmp_path / name).write_text(text)
        found = read_unlabelled_pairs(tmp_path / name)
        assert found.items() == [("a b", "c"), ("d", "e")], name
    for name, text, message in [
        ("texts.txt", "a\nb\n", "single texts, expected pairs"),
        ("three.tsv", "a\tb\tc\n", "line 1: expected two texts"),
        ("none.tsv", "text1\ttext2\n", "has no pairs of texts"),
    ]:
        (tmp_path / name).write_text(text)
        with pytest.raises(DataError, match=message):
            read_unlabelled_pairs(tmp_path / name)


def test_the_command(cli, succeed, tiny_bert, tmp_path, pairs):
    line = ("train", "trans-encoder", tiny_bert, "--data", tmp_path / "pairs.tsv",
            "--out", tmp_path / "both")  # fmt: skip
    done = succeed(*line, "--cycles", 1, "--steps", 2, "--batch-size", 8, "--encoder-steps", 2,
                   "--encoder-batch-size", 8, "--pooling", "mean")  # fmt: skip
    assert "pairs.tsv: 30 pairs without labels" in done.out
    assert f"next: mirror-rt export {tmp_path / 'both' / 'encoder'}" in done.out
    assert "there is no option --lowest" in cli(*line, "--lowest", 1).err
