import json
import shutil
import subprocess
import sys

import numpy as np
import pytest
import torch
from transformers import AutoModel, AutoTokenizer

from mirror_rt import ConfigError, DataError, ModelError, OutputExistsError
from mirror_rt.bundle.manifest import Manifest
from mirror_rt.cli import main
from mirror_train import TorchEncoder, TrainConfig, infonce, load_recipe, load_training_data, tune
from mirror_train.model.pretrained import load_pretrained
from mirror_train.training.loop import Trainer
from mirror_train.training.pooling import choose_pooling
from mirror_train.training.run import Run
from mirror_train.training.tune import load_base
from paths import TESTS
from rounding import LOGIT_ERROR, RUN_ERROR

PROBES = ["the river", "a", "old town on the river", "doctor"]


@pytest.fixture
def data(words_file):
    return load_training_data(words_file)


@pytest.fixture
def configure(tiny_bert, tmp_path):
    """A quick run: 400 words, batches of 40, two epochs of ten steps."""

    def make(out="tuned", *, recipe=None, **options):
        changes = {"batch_size": 40, "learning_rate": 1e-3} | (recipe or {})
        return TrainConfig(
            recipe=load_recipe("word").replace(**changes),
            out=tmp_path / out,
            model=str(options.pop("model", tiny_bert)),
            precision=options.pop("precision", "fp32"),
            **options,
        )

    return make


def vectors(folder):
    return TorchEncoder.load(folder).encode(PROBES)


def test_the_loss_falls_and_the_folder_is_an_ordinary_one(data, configure):
    report = tune(data, configure(pooling="mean"))
    losses = report.stats.losses
    assert len(losses) == 20
    assert np.mean(losses[-5:]) < np.mean(losses[:5]) - 0.05
    assert 0 <= report.stats.padding_percent < 30
    model, tokenizer = (
        AutoModel.from_pretrained(report.out),
        AutoTokenizer.from_pretrained(report.out),
    )
    assert model.config.hidden_dropout_prob == 0.1
    assert len(tokenizer(PROBES[2])["input_ids"]) > 3
    saved = json.loads((report.out / "tokenizer.json").read_text())
    assert (saved["truncation"], saved["padding"]) == (None, None)  # no cap of the base's file
    assert not list(report.out.parent.glob("*.checkpoints"))
    manifest = Manifest.read(report.out, "mirror_rt encoder")
    manifest.verify(report.out)
    assert (manifest.pooling, manifest.level, manifest.dimension) == ("mean", "word", 32)
    assert manifest.max_length == 128
    assert manifest.data["strings"] == 400
    assert manifest.training["steps"] == 20


def test_sentence_transformers_gives_the_same_vectors(data, configure):
    from sentence_transformers import SentenceTransformer

    out = tune(data, configure(pooling="cls")).out
    theirs = SentenceTransformer(str(out), device="cpu").encode(PROBES)
    np.testing.assert_allclose(theirs, vectors(out), atol=RUN_ERROR)


def test_resume_without_a_checkpoint_starts_from_the_beginning(data, configure):
    assert len(tune(data, configure(resume=True)).stats.losses) == 20


@pytest.mark.full
def test_the_disk_must_hold_what_the_run_writes(data, configure, monkeypatch):
    """A checkpoint is three times the weights at most, and written before the last is removed."""
    asked = []
    run = sys.modules["mirror_train.training.run"]
    monkeypatch.setattr(run, "check_space", lambda path, needed: asked.append(needed))
    tune(data, configure("plain"))
    with monkeypatch.context() as patch:
        patch.setattr(run.Run, "write", lambda *_, **__: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            tune(data, configure(checkpoint_every=5))
    (checkpoint,) = configure().out.parent.glob("tuned.checkpoints/*.pt")
    size = checkpoint.stat().st_size
    tune(data, configure(checkpoint_every=5, resume=True))
    weights, fresh, resumed = asked
    assert 2 * weights < size <= 3.3 * weights
    assert (fresh, resumed) == (6 * weights, 3 * weights)


def test_a_checkpoint_of_another_run_is_refused(data, configure, monkeypatch):
    config = configure(checkpoint_every=5)
    monkeypatch.setattr(Run, "write", lambda *_, **__: (_ for _ in ()).throw(OSError("full")))
    with pytest.raises(OSError, match="full"):
        tune(data, config)
    monkeypatch.undo()
    with pytest.raises(ConfigError, match="is of another run: seed was 42, now 1"):
        tune(data, configure(resume=True, seed=1))
    path = next(config.out.parent.glob("tuned.checkpoints/*.pt"))
    whole = torch.load(path, weights_only=True)
    path.write_bytes(path.read_bytes()[:1000])
    for content in (path.read_bytes(), b"garbage"):
        path.write_bytes(content)
        with pytest.raises(ConfigError, match="cannot be read"):
            tune(data, configure(resume=True))
    torch.save([1, 2], path)
    with pytest.raises(ConfigError, match="cannot be read"):
        tune(data, configure(resume=True))
    del whole["format"]  # as in the first checkpoints that there were
    torch.save(whole, path)
    with pytest.raises(
        ConfigError, match=r"step-\d+.pt cannot be read: it has format 1, this .* 2"
    ):
        tune(data, configure(resume=True))
    assert tune(data, configure(overwrite=True)).out.exists()


@pytest.fixture(scope="module")
def uninterrupted(words_file, tiny_bert, tmp_path_factory):
    """Options of a run of twenty steps, and the folder that it wrote."""
    options = ["tune", "--model", tiny_bert, "--recipe", "word", "--data", words_file,
               "--batch-size", 20, "--epochs", 1, "--precision", "fp32"]  # fmt: skip
    out = tmp_path_factory.mktemp("uninterrupted") / "whole"
    assert main([*map(str, options), "--out", str(out)]) == 0
    return options, out


@pytest.mark.full
@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
def test_ctrl_c_leaves_a_checkpoint_that_resumes(name, uninterrupted, tmp_path, succeed):
    options, whole = uninterrupted
    line = [sys.executable, TESTS / "support" / "processes" / "stop_at_step.py", 13, name,
            *options, "--out", tmp_path / "part", "--checkpoint-every", 10]  # fmt: skip
    stopped = subprocess.run(list(map(str, line)), capture_output=True, text=True, check=False)
    assert stopped.returncode == 130, stopped.stderr
    assert "continue with --resume" in stopped.stderr
    assert "Traceback" not in stopped.stderr
    assert [path.name for path in (tmp_path / "part.checkpoints").iterdir()] == ["step-00000013.pt"]
    assert not (tmp_path / "part").exists()
    succeed(*options, "--out", tmp_path / "part", "--resume")
    np.testing.assert_array_equal(vectors(tmp_path / "part"), vectors(whole))


@pytest.mark.parametrize(
    ("loss", "span_mask"), [("ntxent", "reference"), ("decoupled", "mask-token")]
)
def test_every_loss_and_masking_trains(data, configure, loss, span_mask):
    recipe = {"loss": loss, "span_mask": span_mask, "span_length": 2, "epochs": 1}
    assert len(tune(data, configure(recipe=recipe)).stats.losses) == 10


def test_a_loss_of_ones_own(data, configure):
    """It takes the recipe's place, here by the same formula, and is named in the manifest."""

    def own(z1, z2):
        return infonce(z1, z2, temperature=0.04)

    given = tune(data, configure(recipe={"temperature": 0.04, "epochs": 1}))
    mine = tune(data, configure("mine", recipe={"epochs": 1}), loss=own)
    np.testing.assert_allclose(mine.stats.losses, given.stats.losses, rtol=1e-5)
    assert mine.manifest.recipe["loss"].endswith("own")


@pytest.mark.parametrize(
    ("own", "got"),
    [(lambda z1, z2: (z1 - z2).sum(1), r"shape \(\d+,\)"), (lambda z1, z2: 1.0, "1.0")],
)
def test_a_loss_that_is_no_number(data, configure, own, got):
    with pytest.raises(ConfigError, match=f"must give a tensor of one number, got {got}"):
        tune(data, configure(), loss=own)


def test_strings_of_a_list(data, configure):
    """They are those of a file with the same lines."""
    lines = [*data.first, "  ", f" {data.first[0]} "]
    read = tune(data, configure(recipe={"epochs": 1}))
    given = tune(lines, configure("given", recipe={"epochs": 1}))
    assert given.stats.losses == read.stats.losses
    dropped = [given.manifest.data[name] for name in ("blank_dropped", "duplicates_dropped")]
    assert dropped == [1, 1]


@pytest.mark.parametrize(
    ("strings", "said"),
    [
        (["a river", None], "item 1: expected str, got NoneType"),
        (["a river"], "too few different strings, 1"),
        ("words.txt", "words.txt is no list of strings; load_training_data reads a file"),
    ],
)
def test_what_is_no_list_of_strings(configure, strings, said):
    with pytest.raises(DataError, match=said):
        tune(strings, configure())


def test_frozen_layers_and_embeddings_stay(data, configure, tiny_bert):
    out = tune(data, configure(recipe={"frozen_layers": 1, "epochs": 1})).out
    before, after = (AutoModel.from_pretrained(one).state_dict() for one in (tiny_bert, out))
    kept = [name for name in before if not name.startswith("pooler")]
    changed = {name for name in kept if not torch.equal(before[name], after[name])}
    assert changed
    assert all(name.startswith("encoder.layer.1.") for name in changed)
    with pytest.raises(ConfigError, match="has 2 layers, of which one at least has to be trained"):
        tune(data, configure("none", recipe={"frozen_layers": 2}))


def test_mean_with_padding_pads_everywhere(data, configure):
    out = tune(data, configure(pooling="mean-with-padding", recipe={"epochs": 1})).out
    encoder = TorchEncoder.load(out)
    assert encoder.max_length == 25
    alone = encoder.encode("a")
    np.testing.assert_allclose(
        alone, encoder.encode(["a", "old town on the river"])[0], atol=RUN_ERROR
    )


def test_supervised_pairs(tmp_path, words, configure):
    path = tmp_path / "pairs.txt"
    path.write_text("".join(f"{a}||{b}\n" for a, b in zip(words[::2], words[1::2], strict=True)))
    report = tune(load_training_data(path), configure(recipe={"epochs": 1}))
    assert report.manifest.data["supervised_pairs"] is True


def test_pairs_that_all_share_strings_have_no_negatives(tmp_path, configure):
    path = tmp_path / "pairs.txt"
    path.write_text("".join(f"a||{i}\n" for i in range(40)))
    with pytest.raises(DataError, match="none is a negative: give more pairs"):
        tune(load_training_data(path), configure())


def test_pooling_auto_takes_what_the_folder_declares(data, configure, tiny_bert):
    first = tune(data, configure("first", recipe={"epochs": 1}))
    assert first.manifest.pooling == "cls"  # tiny BERT declares nothing: the papers'
    second = tune(data, configure("second", pooling="mean", recipe={"epochs": 1}))
    third = tune(data, configure("third", model=second.out, recipe={"epochs": 1}))
    assert third.manifest.pooling == "mean"


@pytest.mark.parametrize(
    ("family", "recipe", "changes", "pooling"),
    [
        ("bert", "sentence", {}, "mean"),
        ("bert", "word", {}, "cls"),
        ("bert", "phrase", {}, "cls"),
        ("roberta", "sentence", {}, "cls"),
        ("roberta", "word", {}, "cls"),
        ("bert", "simcse", {}, "cls"),  # SimCSE names [CLS] itself
        ("bert", "sentence", {"pooling": "cls"}, "cls"),
    ],
)
def test_the_pooling_of_the_papers(family, recipe, changes, pooling, tiny_model, tmp_path):
    """EMNLP 2021, appendix B: [CLS], but the mean for BERT at the level of sentences."""
    recipe = load_recipe(recipe).replace(**changes)
    config = TrainConfig(out=tmp_path / "out", model=str(tiny_model(family)), recipe=recipe)
    assert choose_pooling(load_base(config), config).pooling == pooling


def test_an_existing_output_is_refused_before_any_work(data, configure):
    config = configure()
    config.out.mkdir()
    (config.out / "precious").touch()
    with pytest.raises(OutputExistsError, match="already exists"):
        tune(data, config)
    assert [path.name for path in config.out.iterdir()] == ["precious"]
    tune(data, configure(overwrite=True))
    assert not (config.out / "precious").exists()


@pytest.mark.parametrize(("batch", "steps", "seen"), [(500, 1, 400), (300, 2, 400), (399, 1, 399)])
def test_the_last_batch_may_be_smaller(data, configure, batch, steps, seen):
    """All strings are seen, but for one that would be alone."""
    report = tune(data, configure(recipe={"batch_size": batch, "epochs": 1}))
    made = report.manifest.training
    assert (made["steps"], made["strings_seen"], made["ended_by"]) == (steps, seen, "epochs")
    assert len(report.stats.losses) == steps


def test_one_string(tmp_path, configure):
    (tmp_path / "one.txt").write_text("alone\n")
    with pytest.raises(DataError, match="too few different strings, 1: give at least 2"):
        tune(load_training_data(tmp_path / "one.txt"), configure())


def test_a_diverging_run_writes_nothing(data, configure):
    config = configure(recipe={"learning_rate": 1e30})
    with pytest.raises(ModelError, match=r"the loss became .* lower --learning-rate"):
        tune(data, config)
    assert not config.out.exists()


def test_a_full_disk_is_noticed_before_the_work(data, configure, monkeypatch):
    usage = shutil.disk_usage(".")._replace(free=1000)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    monkeypatch.setattr(Trainer, "run", lambda *_, **__: pytest.fail("worked in vain"))
    with pytest.raises(OSError, match="No space left on device"):
        tune(data, configure())


def test_a_full_disk_is_one_clear_error(data, configure, monkeypatch):
    from safetensors import SafetensorError
    from transformers import PreTrainedModel

    def full(*_, **__):
        raise SafetensorError("I/O error: No space left on device")

    monkeypatch.setattr(PreTrainedModel, "save_pretrained", full)
    config = configure(checkpoint_every=15)
    with pytest.raises(OSError, match=r"cannot write .*No space left"):
        tune(data, config)
    assert not config.out.exists()
    monkeypatch.undo()  # room was made: the checkpoint saves the work
    assert len(tune(data, configure(checkpoint_every=15, resume=True)).stats.losses) == 20

    monkeypatch.setattr(torch, "save", lambda *_: (_ for _ in ()).throw(RuntimeError("full")))
    with pytest.raises(OSError, match="cannot write the checkpoint"):
        tune(data, configure("other", checkpoint_every=15))


def test_a_layer_behind_the_pooling(data, configure, tiny_bert):
    """SimCSE's is trained and left out; the base model's pooler, tanh(W [CLS] + b), stays."""
    plain = tune(data, configure("plain"))
    report = tune(data, configure("trained", recipe={"mlp": "training"}))
    assert report.stats.losses[0] != plain.stats.losses[0]
    assert not TorchEncoder.load(report.out).head.layers
    recipe = {"mlp": "pooler", "pooling": "cls", "steps": 1, "learning_rate": 1e-12}
    kept = tune(data, configure("pooler", recipe=recipe)).out
    base = load_pretrained(tiny_bert)
    texts = {"inputs": data.first[:9], "normalize_embeddings": False}
    cls = torch.from_numpy(TorchEncoder.load(tiny_bert, pooling="cls").encode(**texts))
    expected = torch.tanh(base.pooler(cls)).detach().numpy()
    np.testing.assert_allclose(TorchEncoder.load(kept).encode(**texts), expected, atol=LOGIT_ERROR)
    with pytest.raises(ConfigError, match="goes neither with whitening nor"):
        tune(data, configure("white", recipe={"mlp": "training", "whitening": 0.5}))


def test_options_are_checked(data, configure):
    with pytest.raises(ConfigError, match="max_length 200 is more than the 128 positions"):
        tune(data, configure(recipe={"max_length": 200}))
    with pytest.raises(ConfigError, match="seed must be at least 0"):
        configure(seed=-1)
    with pytest.raises(ConfigError, match="choose one"):
        configure(resume=True, overwrite=True)
    for device in ("tpu", "cuda:x", "cuda:"):
        with pytest.raises(ConfigError, match="device must be auto"):
            tune(data, configure(device=device))
    if not torch.cuda.is_available():
        with pytest.raises(ConfigError, match="finds no CUDA device"):
            tune(data, configure(device="cuda"))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA card")
@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_on_a_gpu(data, configure, precision):
    report = tune(data, configure(device="cuda", precision=precision))
    assert np.mean(report.stats.losses[-5:]) < np.mean(report.stats.losses[:5])
    assert (report.out / "model.safetensors").exists()
