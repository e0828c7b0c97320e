import json
import shutil

import numpy as np
import onnx
import pytest

from folder_contents import contents
from mirror_export import ExportConfig, check_parity, export_bundle
from mirror_export.parity import parity_texts
from mirror_rt import (
    BundleIntegrityError,
    ConfigError,
    Encoder,
    Manifest,
    ModelError,
    OutputExistsError,
    ParityError,
)
from mirror_train import TrainConfig, load_recipe, load_training_data, tune
from mirror_train.model.pooling_head import Head
from rounding import ANY_BATCH, GATE, RUN_ERROR
from tiers import tiers


def test_the_report_covers_one_word_to_the_limit(tiny_bundle):
    for family in ("bert", "roberta"):
        parity = Manifest.read(tiny_bundle(family)).variant().parity
        assert parity["max_difference"] <= RUN_ERROR
        assert parity["min_tokens"] <= 4
        assert 115 < parity["max_tokens"] <= 128


def test_the_graph_is_valid_and_dynamic(bundle):
    model = onnx.load(bundle / "onnx" / "model.onnx")
    onnx.checker.check_model(model, full_check=True)
    inputs = {node.name: node.type.tensor_type.shape.dim for node in model.graph.input}
    assert list(inputs) == ["input_ids", "attention_mask", "token_type_ids"]
    for dims in inputs.values():
        assert [dim.dim_param for dim in dims] == ["batch", "length"]
    assert {node.name: len(node.type.tensor_type.shape.dim) for node in model.graph.output} == {
        "sentence_embedding": 2,
        "pooled_embedding": 2,
        "last_hidden_state": 3,
    }


def test_the_bundle_tokenizer_has_no_cap(bundle):
    tokenizer = json.loads((bundle / "tokenizer.json").read_text())
    assert tokenizer["truncation"] is None
    assert tokenizer["padding"] is None


@pytest.mark.parametrize("pooling", tiers(("mean", "mean-with-padding"), fast=("mean",)))
def test_the_manifest_carries_the_tuning(pooling, tiny_bert, words_file, tmp_path):
    recipe = load_recipe("word").replace(batch_size=50, epochs=1)
    tuned, out = tmp_path / "tuned", tmp_path / "bundle"
    config = TrainConfig(recipe=recipe, out=tuned, model=str(tiny_bert), pooling=pooling)
    tune(load_training_data(words_file, language="en"), config)
    export_bundle(ExportConfig(str(tuned), out))
    manifest, before = Manifest.read(out), Manifest.read(tuned, "mirror_rt encoder")
    for name in ("recipe", "data", "training", "language", "level", "base_model", "pooling"):
        assert getattr(manifest, name) == getattr(before, name)
    assert manifest.language == "en"
    assert manifest.variant().parity["max_difference"] <= GATE
    alone, together = (Encoder.load(out).encode(x) for x in ("a", ["the old town", "a"]))
    np.testing.assert_allclose(alone, together[1], atol=ANY_BATCH)


def test_a_bundle_that_fails_parity_is_refused(tiny_bert, tmp_path, monkeypatch):
    import mirror_export.trace as module

    original = module.export_graph

    def wrong(encoder, path, **options):
        return original(encoder, path, **(options | {"head": Head(["cls"])}))

    monkeypatch.setattr(module, "export_graph", wrong)
    with pytest.raises(ParityError, match=r"differs from PyTorch .* the bundle was not written"):
        export_bundle(ExportConfig(str(tiny_bert), tmp_path / "bundle", pooling="mean"))
    assert list(tmp_path.iterdir()) == []


def test_parity_notices_nan(bundle, monkeypatch):
    encoder = Encoder.load(bundle)
    broken = Encoder.load(bundle)
    monkeypatch.setattr(
        broken.pipeline.model,
        "run_batch",
        lambda batch, normalize: np.full((len(batch[0]), 32), np.nan, "f4"),
    )
    with pytest.raises(ParityError):
        check_parity(encoder, broken, ["a", "b"]).check()


@pytest.mark.parametrize(("language", "own"), [("fr", 60), ("zh-CN", 60), ("xx", 0), (None, 0)])
def test_parity_texts_are_of_the_language(bundle, language, own):
    from importlib import resources

    sample = (resources.files("mirror_export") / "parity_sample.txt").read_text("utf-8")
    code = (language or "").partition("-")[0]
    known = {word for line in sample.splitlines() if line[:2] == code for word in line[3:].split()}
    known |= set("".join(known)) if code == "zh" else set()
    encoder = Encoder.load(bundle)
    texts = parity_texts(encoder.pipeline.tokenizer, language)
    assert len(texts) >= 100
    assert sum(set(text if code == "zh" else text.split()) <= known for text in texts) >= own
    lengths = [len(ids) for ids in encoder.tokenize(texts)]
    assert max(lengths) > 115
    assert not any(encoder.pipeline.tokenizer(texts).truncated[:-1])
    if own == 0:
        assert (len(texts) > 100, min(lengths) <= 6, max(lengths) <= 128) == (True, True, True)
        assert texts == parity_texts(encoder.pipeline.tokenizer)


@pytest.mark.full
def test_own_parity_texts(tiny_bert, tmp_path):
    config = ExportConfig(str(tiny_bert), tmp_path / "b", pooling="mean", parity_texts=["a", "b"])
    assert export_bundle(config).variant().parity["texts"] == 2


def test_refusals(tiny_bert, tmp_path):
    with pytest.raises(ModelError, match="declares no pooling: pass --pooling"):
        export_bundle(ExportConfig(str(tiny_bert), tmp_path / "bundle"))
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "x").touch()
    with pytest.raises(OutputExistsError):
        export_bundle(ExportConfig(str(tiny_bert), tmp_path / "full", pooling="mean"))


def test_the_model_itself_is_never_replaced(tiny_bert, tmp_path):
    model = shutil.copytree(tiny_bert, tmp_path / "m" / "model")
    for out in (model, model.parent):
        with pytest.raises(ConfigError, match="would replace the model"):
            export_bundle(ExportConfig(str(model), out, pooling="mean", overwrite=True))
    assert (model / "model.safetensors").exists()


def test_a_tuned_folder_that_was_changed_is_refused(tuned, tmp_path):
    changed = shutil.copytree(tuned, tmp_path / "tuned")
    path = changed / "model.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(BundleIntegrityError, match=r"model.safetensors has SHA-256"):
        export_bundle(ExportConfig(str(changed), tmp_path / "bundle"))


@pytest.mark.full
def test_an_export_shows_its_stages(tiny_bert, tmp_path, capfd, monkeypatch):
    monkeypatch.setattr("mirror_rt.progress.SECONDS_BETWEEN_LINES", 0.001)
    config = ExportConfig(str(tiny_bert), tmp_path / "bundle", pooling="mean")
    export_bundle(config, show_progress_bar=True)
    shown = capfd.readouterr().err
    assert "export: 0 of 4 stages (0%)" in shown
    for stage in ("loading the model", "tracing the graph", "comparing fp32 with PyTorch"):
        assert stage in shown


@pytest.mark.full
def test_an_export_can_be_repeated_byte_for_byte(tiny_bert, tmp_path, monkeypatch, command):
    """In another process and another folder, at another time."""
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1767225600")
    options = ["--pooling", "mean", "--precision", "fp32,int8"]
    config = ExportConfig(
        str(tiny_bert), tmp_path / "a", pooling="mean", precisions=("fp32", "int8")
    )
    export_bundle(config)
    done = command("export", tiny_bert, "--out", tmp_path / "elsewhere" / "b", *options)
    assert done.returncode == 0, done.stderr
    first, second = contents(tmp_path / "a"), contents(tmp_path / "elsewhere" / "b")
    assert [name for name in first if first[name] != second.get(name)] == []
    assert first.keys() == second.keys()
    assert Manifest.read(tmp_path / "a").created == "2026-01-01T00:00:00+00:00"


def test_a_date_that_is_none_is_refused(tiny_bert, tmp_path, monkeypatch):
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "yesterday")
    with pytest.raises(ConfigError, match="SOURCE_DATE_EPOCH is 'yesterday', expected whole sec"):
        export_bundle(ExportConfig(str(tiny_bert), tmp_path / "a", pooling="mean"))
    assert not (tmp_path / "a").exists()
