import json
import os
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file

from json_files import change
from mirror_rt import BundleError, Encoder, ModelError
from mirror_rt.bundle.hub import is_hub_name
from mirror_train.model.declared_modules import declared_pooling
from mirror_train.model.pretrained import Source, load_pretrained
from work_limits import little_work


def described(folder):
    return Source.find(folder).description


@pytest.fixture
def model(tiny_bert, tmp_path):
    """A model folder to damage."""
    return shutil.copytree(tiny_bert, tmp_path / "model")


def test_positions(tiny_bert, tiny_roberta):
    assert load_pretrained(tiny_bert).max_length == 128
    # 130 positions, the first two of which RoBERTa never uses for a token.
    assert load_pretrained(tiny_roberta).max_length == 128


def test_a_missing_weight_is_named(model):
    weights = load_file(model / "model.safetensors")
    del weights["encoder.layer.1.output.dense.weight"]
    save_file(weights, model / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ModelError, match=r"the weights lack encoder\.layer\.1\.output"):
        load_pretrained(model)


def test_a_weight_of_another_shape(model):
    change(model / "config.json", intermediate_size=48)
    with pytest.raises(ModelError):
        load_pretrained(model)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_weights_that_are_not_numbers(model, value):
    weights = load_file(model / "model.safetensors")
    weights["encoder.layer.1.output.dense.bias"][3] = value
    save_file(weights, model / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(
        ModelError, match=r"weight encoder\.layer\.1\.output\.dense\.bias holds NaN or an inf"
    ):
        load_pretrained(model)


def test_code_of_its_own_is_not_run_unasked(model, tmp_path):
    (model / "own.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    code = {"AutoConfig": "own.OwnConfig", "AutoModel": "own.OwnModel"}
    change(model / "config.json", model_type="own", auto_map=code)
    with pytest.raises(
        ModelError,
        match=r"\(own\) comes with code of its own: read it, and pass trust_remote_code=True",
    ):
        load_pretrained(model)
    change(model / "config.json", model_type="bert")
    assert load_pretrained(model).dimension == 32  # transformers' BERT, not the folder's
    assert not (tmp_path / "ran").exists()


def test_pickled_weights(model, tmp_path, caplog):
    weights = load_file(model / "model.safetensors")
    (model / "model.safetensors").unlink()
    torch.save(weights, model / "pytorch_model.bin")
    assert load_pretrained(model).dimension == 32
    assert "holds pickled weights: only tensors are read" in caplog.text

    class Evil:
        def __reduce__(self):
            return open, (str(tmp_path / "ran"), "w")

    torch.save(weights | {"evil": Evil()}, model / "pytorch_model.bin")
    with pytest.raises(ModelError, match="cannot be loaded"):
        load_pretrained(model)
    assert not (tmp_path / "ran").exists()


def test_truncated_weights(model):
    path = model / "model.safetensors"
    path.write_bytes(path.read_bytes()[:5000])
    with pytest.raises(ModelError, match="cannot be loaded"):
        load_pretrained(model)


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "tokenizer.json"])
def test_an_incomplete_folder(model, name):
    (model / name).unlink()
    expected = {"config.json": "no config.json", "model.safetensors": "no weights",
                "tokenizer.json": "no tokenizer"}  # fmt: skip
    with pytest.raises(ModelError, match=expected[name]):
        load_pretrained(model)


def test_what_is_not_a_model(tmp_path, model):
    with pytest.raises(ModelError, match="no such folder"):
        load_pretrained(tmp_path / "nowhere")
    with pytest.raises(ModelError, match=r"it has no config.json"):
        load_pretrained(tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(ModelError, match="is not a folder"):
        load_pretrained(tmp_path / "file")
    (model / "config.json").write_text("{}")
    with pytest.raises(ModelError, match="names no model_type"):
        load_pretrained(model)
    (model / "config.json").write_text("{")
    with pytest.raises(ModelError, match="is not valid JSON"):
        load_pretrained(model)


def test_an_unknown_architecture(model):
    change(model / "config.json", model_type="no-such-architecture")
    with pytest.raises(ModelError, match="no-such-architecture"):
        load_pretrained(model)


def test_a_tokenizer_of_another_model(model):
    change(model / "config.json", vocab_size=100)
    with pytest.raises(ModelError):
        load_pretrained(model)


def test_what_is_no_encoder(model):
    (model / "config.json").write_text('{"model_type": "t5"}')
    with pytest.raises(ModelError, match=r"is an encoder-decoder \(t5\), not an encoder"):
        load_pretrained(model)
    (model / "config.json").write_text('{"model_type": "clip"}')
    with pytest.raises(ModelError, match=r"\(clip\) is not a text encoder"):
        load_pretrained(model)


@pytest.mark.parametrize("modules", ["5", "[null]", '[{"idx": 0}]', '{"a": 1}', "{"])
def test_unreadable_modules(model, modules):
    (model / "modules.json").write_text(modules)
    with pytest.raises(ModelError, match=r"modules.json"):
        declared_pooling(described(model))


def declare(folder, *types, **pooling):
    module = "sentence_transformers.models."
    (folder / "modules.json").write_text(
        json.dumps(
            [{"type": module + t, "path": "1_Pooling" if t == "Pooling" else ""} for t in types]
        )
    )
    (folder / "1_Pooling").mkdir(exist_ok=True)
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling))


def test_declared_pooling(model):
    assert declared_pooling(described(model)) is None
    declare(model, "Transformer", "Pooling", "Normalize",
            pooling_mode_cls_token=False, pooling_mode_mean_tokens=True)  # fmt: skip
    assert declared_pooling(described(model)) == "mean"
    declare(model, "Transformer", "Pooling", pooling_mode="cls")
    assert declared_pooling(described(model)) == "cls"
    declare(model, "Transformer", "Pooling", pooling_mode_lasttoken=True)
    assert declared_pooling(described(model)) == "lasttoken"
    declare(model, "Transformer", "Pooling", pooling_mode_weightedmean_tokens=True)
    with pytest.raises(
        ModelError, match="the pooling weightedmean, which cannot be tuned: pass --pooling"
    ):
        declared_pooling(described(model))


def test_the_default_model_is_the_real_one(default_model):
    pretrained = load_pretrained(offline=True)
    assert (pretrained.dimension, pretrained.max_length) == (384, 512)
    assert declared_pooling(described(default_model)) == "mean"
    assert load_pretrained("all-MiniLM-L6-v2", offline=True).folder == default_model


@pytest.fixture
def hub_cache(monkeypatch, tmp_path):
    """A model hub's local cache, as huggingface_hub lays it out."""
    import huggingface_hub.constants as constants

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))

    def add(name, folder):
        repository = tmp_path / ("models--" + name.replace("/", "--"))
        commit = "0123456789abcdef0123456789abcdef01234567"
        shutil.copytree(folder, repository / "snapshots" / commit)
        (repository / "refs").mkdir()
        (repository / "refs" / "main").write_text(commit)
        return commit

    return add


def test_names_load_from_the_hub_cache(hub_cache, tiny_bert, bundle):
    commit = hub_cache("someone/tiny", tiny_bert)
    pretrained = load_pretrained("someone/tiny", offline=True)
    assert pretrained.revision == commit
    hub_cache("someone/bundle", bundle)
    assert Encoder.load("someone/bundle", offline=True).dimension == 32


def test_unknown_names(hub_cache):
    with pytest.raises(
        ModelError,
        match=r"found whole in the local cache.*e5-small-4bit \(languages: about 100\)",
    ):
        load_pretrained("someone/nothing", offline=True)
    with pytest.raises(ModelError, match="neither a folder here nor found"):
        load_pretrained("bert-base-nothing", offline=True)
    with pytest.raises(BundleError, match="neither a folder here nor found"):
        Encoder.load("someone/nothing", offline=True)


def test_hub_names():
    assert is_hub_name("owner/name")
    assert not any(map(is_hub_name, ["name", "a/b/c", "/abs", "./here", "../up", "~/home", "a/"]))


SIZES = {
    "num_hidden_layers": (10**9, "num_hidden_layers is 1000000000, expected at most 1,000"),
    "num_labels": (10**9, "num_labels is 1000000000, expected at most 1,000,000"),
    "vocab_size": (10**30, r"vocab_size is 10+, expected at most 10,000,000"),
    "intermediate_size": (10**6, "describes 130,.* weights, and the files of weights have"),
    "max_position_embeddings": (10**7, "describes 320,.* weights, and the files of weights have"),
}


@pytest.mark.parametrize("name", SIZES)
def test_a_model_larger_than_its_weights_is_refused_at_once(model, name):
    value, message = SIZES[name]
    change(model / "config.json", **{name: value})
    with little_work(), pytest.raises(ModelError, match=message):
        load_pretrained(model)


def test_sizes_below_another_name(model):
    change(model / "config.json", text_config={"num_hidden_layers": 10**9})
    with little_work(), pytest.raises(ModelError, match="num_hidden_layers is 1000000000"):
        load_pretrained(model)


@pytest.mark.parametrize("path", ["../../../../etc", "/etc", "a/../../b", "a\\b", "C:x"])
def test_modules_outside_of_the_folder(model, path):
    declare(model, "Transformer", "Pooling", "Dense", pooling_mode="mean")
    modules = json.loads((model / "modules.json").read_text())
    for place in (0, 2):
        changed = [module | {"path": path} if i == place else module
                   for i, module in enumerate(modules)]  # fmt: skip
        (model / "modules.json").write_text(json.dumps(changed))
        with pytest.raises(ModelError, match=r"\.path is '.*', expected a path inside the folder"):
            declared_pooling(described(model))
    (model / "config.json").unlink()
    (model / "modules.json").write_text(json.dumps([modules[0] | {"path": path}]))
    with pytest.raises(ModelError, match="expected a path inside the folder"):
        described(model)


def test_shards_outside_of_the_folder(model):
    (model / "model.safetensors").rename(model.parent / "elsewhere.safetensors")
    index = {"metadata": {}, "weight_map": {"a": "../elsewhere.safetensors"}}
    (model / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(ModelError, match=r"weight_map\.a is '\.\./elsewhere.*inside the folder"):
        load_pretrained(model)


def test_a_pipe_is_not_waited_for(model):
    (model / "config.json").unlink()
    os.mkfifo(model / "config.json")
    with little_work(), pytest.raises(ModelError, match="is not a regular file"):
        load_pretrained(model)


@pytest.mark.parametrize(
    ("kind", "config"),
    [
        ("sentence_transformers.models.Dense", {"in_features": 32, "out_features": 10**9}),
        ("sentence_transformers.models.Dense", {"in_features": 60_000, "out_features": 60_000}),
        ("mirror_train.glow.Flow", {"in_features": 32, "blocks": 10**9, "hidden_size": 32}),
        ("mirror_train.glow.Flow", {"in_features": 60_000, "blocks": 1, "hidden_size": 32}),
    ],
)
def test_a_layer_larger_than_its_weights_is_refused_at_once(model, kind, config):
    declare(model, "Transformer", "Pooling", pooling_mode="mean")
    modules = json.loads((model / "modules.json").read_text())
    (model / "modules.json").write_text(json.dumps([*modules, {"type": kind, "path": "2_Layer"}]))
    (model / "2_Layer").mkdir()
    (model / "2_Layer" / "config.json").write_text(json.dumps(config))
    save_file({"linear.weight": torch.ones(2, 2)}, model / "2_Layer" / "model.safetensors")
    with little_work(), pytest.raises(ModelError, match=r"is not a (Dense|Flow) module"):
        declared_pooling(described(model))
