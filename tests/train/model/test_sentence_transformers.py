"""Folders of sentence-transformers, written by that library: a bundle gives the same vectors."""

import dataclasses
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer import modules as st
from torch import nn

from json_files import change
from mirror_export import ExportConfig, export_bundle
from mirror_export.load import load
from mirror_rt import ConfigError, Encoder, Manifest, ModelError
from mirror_train import TorchEncoder, TrainConfig, load_recipe, load_training_data, tune
from mirror_train.model.declared_modules import declared_head
from mirror_train.model.pretrained import Source
from mirror_train.model.sentence_transformers import write_modules
from rounding import OTHER_TOOLS, RUN_ERROR, of_norms
from tiers import tiers

TEXTS = ["The old town", "a", "word " * 20, "Её дом стоит", "人人生而自由", "the the the"]
MODES = ["cls", "mean", "max", "mean_sqrt_len_tokens", "weightedmean", "lasttoken"]


def described(folder):
    return Source.find(folder).description


@pytest.fixture
def save(tiny_bert, tmp_path):
    """Write a tiny BERT with further modules as sentence-transformers does."""

    def build(*modules, **options) -> Path:
        torch.manual_seed(0)
        first = st.Transformer(str(tiny_bert))
        folder = tmp_path / "sentence-transformer"
        made = [first, *(make() for make in modules)]
        SentenceTransformer(modules=made, device="cpu", **options).save(str(folder))
        return folder

    return build


def export(folder, **options) -> Encoder:
    out = folder.parent / "bundle"
    config = ExportConfig(str(folder), out, parity_texts=TEXTS, overwrite=True, **options)
    export_bundle(config)
    return Encoder.load(out)


def close(found, expected):
    """Compare vectors of any length."""
    scale = max(1.0, np.linalg.norm(expected, axis=1).max())
    np.testing.assert_allclose(found, expected, atol=RUN_ERROR * scale)


def theirs(folder, texts=TEXTS, **options):
    return SentenceTransformer(str(folder), device="cpu", local_files_only=True).encode(
        texts, **options
    )


def pooling(mode):
    return lambda: st.Pooling(32, pooling_mode=mode)


def dense(i, o, activation=None, **options):
    return lambda: st.Dense(i, o, activation_function=activation, **options)


CHAINS = {
    "weightedmean": [pooling("weightedmean")],
    "in another order": [pooling(("mean", "max", "cls")), st.Normalize],
    "normalised twice": [pooling("mean"), st.Normalize, dense(32, 16), st.Normalize],
    "residual, resized": [pooling("mean"), dense(32, 16, nn.Tanh(), use_residual=True)],
    "learned activation": [pooling("mean"), dense(32, 16, nn.PReLU(init=0.3))],
    "dropout": [pooling("mean"), lambda: st.Dropout(0.5), st.Normalize],
}


@pytest.mark.parametrize(
    "chain", tiers(CHAINS, fast=("weightedmean", "in another order", "residual, resized"))
)
def test_the_same_vectors(chain, save):
    folder = save(*CHAINS[chain])
    expected = theirs(folder)
    encoder = TorchEncoder.load(folder, device="cpu")
    assert encoder.dimension == expected.shape[1]
    close(encoder.encode(TEXTS), expected)
    unit = theirs(folder, normalize_embeddings=True)
    close(encoder.encode(TEXTS, normalize_embeddings=True), unit)


GRAPHS = {
    "all poolings": [pooling(tuple(MODES))],
    "all modules": [
        pooling("weightedmean"),
        dense(32, 64, nn.PReLU(init=0.3)),
        st.Normalize,
        dense(64, 64, nn.Tanh(), use_residual=True),
        dense(64, 24, bias=False, use_residual=True),
        st.Normalize,
    ],
}


@pytest.mark.parametrize("chain", tiers(GRAPHS, fast=("all modules",)))
def test_the_graph(chain, save):
    folder = save(*GRAPHS[chain])
    encoder = export(folder)
    expected = theirs(folder)
    assert encoder.dimension == expected.shape[1]
    assert encoder.manifest.normalize is (GRAPHS[chain][-1] is st.Normalize)
    close(encoder.encode(TEXTS), expected)
    close(encoder.encode(TEXTS, batch_size=1), expected)
    unit = theirs(folder, normalize_embeddings=True)
    close(encoder.encode(TEXTS, normalize_embeddings=True), unit)
    # Read back, the modules that the bundle describes are those of the folder.
    shutil.copy(folder / "model.safetensors", encoder.folder)
    close(theirs(encoder.folder), expected)


def test_one_order_of_poolings_is_that_of_the_older_layout(save, tmp_path):
    for given in (("cls", "mean"), ("mean", "cls")):
        head = declared_head(described(save(pooling(given))))
        out = tmp_path / "-".join(given)
        out.mkdir()
        write_modules(out, head, Manifest(32, 128, 0, head.pooling), hidden_size=32)
        written = json.loads((out / "1_Pooling" / "config.json").read_text())
        assert ("pooling_mode" in written) is (given == ("mean", "cls"))
        assert declared_head(described(out)).poolings == given


def test_the_layout_before_version_5(save):
    folder = save(pooling(("cls", "mean")), dense(64, 24, nn.Tanh()), st.Normalize)
    expected = theirs(folder)
    names = ["Transformer", "Pooling", "Dense", "Normalize"]
    modules = json.loads((folder / "modules.json").read_text())
    for name, module in zip(names, modules, strict=True):
        module["type"] = f"sentence_transformers.models.{name}"
    (folder / "modules.json").write_text(json.dumps(modules))
    flags = {
        "word_embedding_dimension": 32,
        "pooling_mode_cls_token": True,
        "pooling_mode_mean_tokens": True,
        "pooling_mode_max_tokens": False,
        "pooling_mode_mean_sqrt_len_tokens": False,
    }
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(flags))
    weights = folder / "2_Dense" / "model.safetensors"
    torch.save(
        st.Dense.load(str(folder), "2_Dense").state_dict(), weights.with_name("pytorch_model.bin")
    )
    weights.unlink()
    encoder = TorchEncoder.load(folder, device="cpu")
    assert encoder.head.pooling == "cls+mean"
    close(encoder.encode(TEXTS), expected)


@pytest.mark.full
def test_a_transformer_in_a_subfolder(save, words_file, tmp_path):
    """Where the first versions put it."""
    folder = save(pooling("mean"))
    expected = theirs(folder)
    below = folder / "0_Transformer"
    below.mkdir()
    for path in list(folder.iterdir()):
        if path.is_file() and path.name not in (
            "modules.json",
            "config_sentence_transformers.json",
        ):
            path.rename(below / path.name)
    modules = json.loads((folder / "modules.json").read_text())
    modules[0]["path"] = below.name
    (folder / "modules.json").write_text(json.dumps(modules))
    encoder = TorchEncoder.load(folder, device="cpu")
    close(encoder.encode(TEXTS), expected)
    recipe = load_recipe("word").replace(batch_size=50, epochs=1)
    tuned = tune(
        load_training_data(words_file),
        TrainConfig(recipe=recipe, out=tmp_path / "t", model=str(folder)),
    )
    assert len(tuned.manifest.base_model["weights_sha256"]) == 1


def test_prompts_and_a_limit(save, caplog):
    folder = save(pooling("mean"))
    change(folder / "sentence_bert_config.json", max_seq_length=12)
    prompts = {"query": "question: ", "passage": "", "none": None}
    settings = {"prompts": prompts, "default_prompt_name": "passage", "similarity_fn_name": "dot"}
    change(folder / "config_sentence_transformers.json", **settings)
    encoder = export(folder)
    assert encoder.max_length == 12
    assert "texts are cut at 12 tokens, as the folder declares; the model takes 128" in caplog.text
    close(encoder.encode(TEXTS), theirs(folder))
    assert encoder.manifest.prompts == {"query": "question: ", "passage": "", "none": ""}
    assert encoder.manifest.default_prompt_name == "passage"
    found = encoder.encode(["question: " + text for text in TEXTS])
    close(found, theirs(folder, prompt_name="query"))
    written = json.loads((encoder.folder / "config_sentence_transformers.json").read_text())
    assert written["prompts"] == encoder.manifest.prompts
    assert written["similarity_fn_name"] == "dot"
    limits = json.loads((encoder.folder / "sentence_bert_config.json").read_text())
    assert limits == {"max_seq_length": 12, "do_lower_case": False}


def test_the_declared_limit_is_kept_unless_it_is_lifted(save):
    folder = save(pooling("mean"))
    change(folder / "sentence_bert_config.json", max_seq_length=12)
    settings = folder / "sentence_bert_config.json"
    settings.rename(settings.with_name("sentence_roberta_config.json"))
    config = ExportConfig(str(folder), folder.parent / "bundle")
    assert load(config).manifest.max_length == 12
    lifted = dataclasses.replace(config, max_length="model")
    assert load(lifted).manifest.max_length == 128
    for limit, message in ((129, r"max_length must be in 1 .. 128"), (2, "no room for text")):
        with pytest.raises(ConfigError, match=message):
            export(folder, max_length=limit)


@pytest.mark.full
def test_truncated_dimensions(save):
    folder = save(pooling("mean"), st.Normalize, truncate_dim=8)
    encoder = export(folder, truncate_dim=10)
    full = theirs(folder, truncate_dim=10, normalize_embeddings=True)
    assert encoder.dimension == Manifest.read(encoder.folder).dimension == 10
    close(encoder.encode(TEXTS), full)
    cut = encoder.encode(TEXTS, truncate_dim=4)
    np.testing.assert_allclose(np.linalg.norm(cut, axis=1), 1, atol=of_norms(4))
    shutil.copy(folder / "model.safetensors", encoder.folder)  # the cut is one of its modules
    close(theirs(encoder.folder), full)
    for dimension in (0, -1, 33):
        with pytest.raises(ConfigError, match=rf"truncate_dim must be in 1 .. 32, got {dimension}"):
            export(folder, truncate_dim=dimension)
    declares = load(ExportConfig(str(folder), folder.parent / "declared"))
    assert declares.head.truncate_dim == 8


def test_a_given_pooling_replaces_all_modules(save):
    folder = save(pooling("max"), dense(32, 16))
    config = ExportConfig(str(folder), folder.parent / "bundle", pooling="cls")
    head = load(config).head
    assert (head.pooling, len(head.layers), head.normalize) == ("cls", 0, True)


def test_more_than_a_pooling_is_not_tuned(save, words_file, tmp_path):
    folder = save(pooling("mean"), dense(32, 16))
    recipe = load_recipe("word").replace(batch_size=50, epochs=1)
    config = TrainConfig(recipe=recipe, out=tmp_path / "tuned", model=str(folder))
    with pytest.raises(ModelError, match="mean and further modules, which cannot be tuned: pass"):
        tune(load_training_data(words_file), config)


OLD, NEW = "sentence_transformers.models.", "sentence_transformers.x.y."


@pytest.mark.parametrize(
    ("library", "kinds", "named"),
    [
        (OLD, ["Transformer", "Pooling", "LSTM"], "LSTM"),
        (NEW, ["Transformer", "CNN", "Pooling"], "CNN"),
        (OLD, ["WordEmbeddings", "Pooling"], "WordEmbeddings"),
        (NEW, ["StaticEmbedding"], "StaticEmbedding"),
        (OLD, ["Router"], "Router"),
        (NEW, ["Transformer", "Pooling", "SparseAutoEncoder"], "SparseAutoEncoder"),
        (OLD, ["Transformer", "Pooling", "LayerNorm"], "LayerNorm"),
    ],
)
def test_unknown_modules_are_named(library, kinds, named, tiny_bert, tmp_path):
    folder = shutil.copytree(tiny_bert, tmp_path / "model")
    modules = [{"type": library + kind, "path": ""} for kind in kinds]
    (folder / "modules.json").write_text(json.dumps(modules))
    with pytest.raises(ModelError, match=rf"the module {named} of modules.json is not supported"):
        declared_head(described(folder))
    (folder / "config.json").unlink()
    if kinds[0] != "Transformer":
        with pytest.raises(ModelError, match=rf"the module {named} of modules.json is not"):
            export_bundle(ExportConfig(str(folder), tmp_path / "bundle"))


def test_refusals(save, tmp_path):
    folder = save(pooling("mean"), dense(32, 24))
    modules, config = folder / "modules.json", folder / "2_Dense" / "config.json"
    settings = folder / "config_sentence_transformers.json"

    def refused(path, message, /, **changes):
        before = path.read_text()
        values = json.loads(before)
        if isinstance(values, dict):
            path.write_text(json.dumps(values | changes))
        else:
            path.write_text(json.dumps([*values, changes] if "type" in changes else []))
        with pytest.raises(ModelError, match=message) as caught:
            export(folder)
        assert "\n" not in str(caught.value)
        path.write_text(before)

    code = {"type": "own_code.Transformer", "path": "3_Own"}
    refused(modules, "the module own_code.Transformer of modules.json is not supported", **code)
    second = {"type": "sentence_transformers.models.Pooling", "path": "1_Pooling"}
    refused(modules, "expected a Transformer and a Pooling, got Transformer, Pool", **second)
    refused(modules, "is not a list of modules")
    refused(folder / "1_Pooling" / "config.json", "include_prompt", include_prompt=False)
    refused(folder / "1_Pooling" / "config.json", "the pooling own, which", pooling_mode="own")
    refused(
        config, r"activation 'os.system' is not one of torch.nn", activation_function="os.system"
    )
    refused(config, "is not one of torch.nn", activation_function="torch.nn.functional.gelu")
    refused(config, "is not a Dense module: .*in_features", activation_function="torch.nn.Linear")
    refused(config, "is not a Dense module: .*size mismatch", out_features=25)
    refused(config, "'token_embeddings' is not supported", module_input_name="token_embeddings")
    refused(settings, "expected a Transformer and a SpladePooling", model_type="SparseEncoder")
    refused(settings, "default_prompt_name 'x' is not one", default_prompt_name="x")
    refused(settings, "expected names and texts", prompts={"x": 1})
    refused(settings, "expected a number of dimensions", truncate_dim="x")
    refused(folder / "sentence_bert_config.json", "expected a number of tok", max_seq_length="x")


def test_a_dense_module_that_does_not_fit(save):
    folder = save(pooling("mean"), dense(24, 24))
    with pytest.raises(ModelError, match="takes 24 features, but the part before it gives 32"):
        export(folder)


def test_weights_of_a_dense_module(save, tmp_path):
    from safetensors.torch import load_file, save_file

    folder = save(pooling("mean"), dense(32, 24))
    path = folder / "2_Dense" / "model.safetensors"
    weights = load_file(path)
    weights["linear.bias"][3] = float("nan")
    save_file(weights, path)
    with pytest.raises(ModelError, match=r"the weight linear.bias holds NaN or an infinity"):
        export(folder)
    path.write_bytes(b"x")
    with pytest.raises(ModelError, match=r"model.safetensors cannot be read"):
        export(folder)
    path.unlink()
    with pytest.raises(ModelError, match=r"has no weights: expected model.safetensors"):
        export(folder)

    class Evil:
        def __reduce__(self):
            return open, (str(tmp_path / "ran"), "w")

    torch.save(weights | {"evil": Evil()}, path.with_name("pytorch_model.bin"))
    with pytest.raises(ModelError, match=r"pytorch_model.bin cannot be read"):
        export(folder)
    assert not (tmp_path / "ran").exists()


@pytest.mark.full
def test_the_default_model(default_model, tmp_path):
    """all-MiniLM-L6-v2 as it was published: cut at 256 tokens there."""
    out = tmp_path / "bundle"
    export_bundle(ExportConfig(str(default_model), out, max_length=256, parity_texts=TEXTS))
    texts = [*TEXTS, "word " * 300]
    found, expected = Encoder.load(out).encode(texts), theirs(default_model, texts)
    np.testing.assert_allclose(found, expected, atol=OTHER_TOOLS)
