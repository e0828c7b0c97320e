"""Other tools load the very folder, each in an environment of its own, and give the same vectors.

Their environments are large: tests marked `interop` run where MIRROR_RT_INTEROP=1 lets them be
made, or where they have been made before. What needs none is always tested.
"""

import json

import numpy as np
import onnx
import pytest
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer import modules as st

from interop.environments import TOOLS
from mirror_export import ExportConfig, export_bundle
from mirror_rt import Encoder
from mirror_train import TorchEncoder
from rounding import OTHER_TOOLS, RUN_ERROR
from tiers import tiers
from tiny_models import SENTENCES

TEXTS = [*SENTENCES, "word " * 40]


@pytest.fixture(scope="session")
def with_modules(tiny_bert, tmp_path_factory):
    """The bundle of a model with two poolings, a dense layer and no normalisation, cut."""
    root = tmp_path_factory.mktemp("modules")
    chain = [st.Transformer(str(tiny_bert)), st.Pooling(32, ("mean", "cls")), st.Dense(64, 24)]
    SentenceTransformer(modules=chain, device="cpu").save(str(root / "model"))
    export_bundle(
        ExportConfig(str(root / "model"), root / "bundle", truncate_dim=10, parity_texts=TEXTS)
    )
    return root / "bundle"


@pytest.fixture(scope="session")
def default_bundle(default_model, tmp_path_factory):
    out = tmp_path_factory.mktemp("default") / "bundle"
    export_bundle(ExportConfig(str(default_model), out, parity_texts=TEXTS))
    return out


@pytest.fixture
def run(tmp_path):
    """Vectors that a tool gives for a folder, by the way in which it got them."""

    def run(name, folder):
        tool = TOOLS[name]
        tool.require()
        texts, out = tmp_path / "texts.json", tmp_path / "vectors.json"
        texts.write_text(json.dumps(TEXTS))
        tool.run(folder, texts, out)
        return {key: np.array(found) for key, found in json.loads(out.read_text()).items()}

    return run


@pytest.mark.full
@pytest.mark.interop
@pytest.mark.parametrize("which", ["default_bundle", "bert", "roberta", "xlm-roberta", "modules"])
@pytest.mark.parametrize("tool", TOOLS)
def test_a_bundle(tool, which, run, request):
    if which == "modules" and tool == "optimum":
        pytest.skip("optimum gives token vectors alone, not what the layers behind make of them")
    if which in ("bert", "roberta", "xlm-roberta"):
        folder = request.getfixturevalue("tiny_bundle")(which)
    else:
        folder = request.getfixturevalue("with_modules" if which == "modules" else which)
    encoder = Encoder.load(folder)
    expected = {
        name: encoder.encode(TEXTS)  # sentence-transformers follows the modules
        if name == "onnx"
        else encoder.encode(TEXTS, normalize_embeddings=True)
        for name in ("onnx", "sentence_embedding", "last_hidden_state")
    }
    found = run(tool, folder)
    assert found
    for name, vectors in found.items():
        np.testing.assert_allclose(vectors, expected[name], atol=OTHER_TOOLS)


@pytest.mark.full
@pytest.mark.interop
def test_a_tuned_folder_elsewhere(run, tuned):
    """With an earlier transformers, too."""
    found = run("sentence-transformers", tuned)["torch"]
    expected = TorchEncoder.load(tuned, device="cpu").encode(TEXTS)
    np.testing.assert_allclose(found, expected, atol=OTHER_TOOLS)


def test_a_tuned_folder(tuned):
    model = SentenceTransformer(str(tuned), device="cpu", local_files_only=True)
    expected = TorchEncoder.load(tuned, device="cpu").encode(TEXTS)
    np.testing.assert_allclose(model.encode(TEXTS), expected, atol=RUN_ERROR)
    assert model.max_seq_length == 128


def test_a_bundle_has_no_weights_for_pytorch(bundle):
    with pytest.raises(OSError, match=r"no file named model\.safetensors"):
        SentenceTransformer(str(bundle), device="cpu", local_files_only=True)


@pytest.fixture(params=tiers(["bert", "roberta", "modules"], fast=["bert"]))
def folder(request):
    if request.param == "modules":
        return request.getfixturevalue("with_modules")
    return request.getfixturevalue("tiny_bundle")(request.param)


def read(folder, name):
    return json.loads((folder / name).read_text(encoding="utf-8"))


def graph(folder):
    return onnx.load(folder / "onnx" / "model.onnx", load_external_data=False).graph


def test_the_graph_is_valid(folder):
    onnx.checker.check_model(str(folder / "onnx" / "model.onnx"), full_check=True)


def test_the_rules_of_transformers_js(folder):
    """Files by name, inputs by the tokenizer's names, `last_hidden_state` for its pipeline."""
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json", "onnx/model.onnx"):
        assert (folder / name).is_file()
    assert read(folder, "config.json")["model_type"] in ("bert", "roberta")
    outputs = [node.name for node in graph(folder).output]
    assert {"last_hidden_state", "sentence_embedding"} <= set(outputs)
    inputs = {node.name for node in graph(folder).input}
    assert inputs <= set(read(folder, "tokenizer_config.json")["model_input_names"])


def test_the_rules_of_text_embeddings_inference(folder):
    """Which cannot be installed here: what its router and its ONNX backend read, and their types.

    From its source: router/src/lib.rs (ModelConfig, PoolConfig, STConfig) and
    backends/ort/src/lib.rs (Config, TokenizerConfig, the output `sentence_embedding` before
    `last_hidden_state`).
    """
    config = read(folder, "config.json")
    architecture = {"bert": "BertModel", "roberta": "RobertaModel"}[config["model_type"]]
    assert config["architectures"] == [architecture]  # not of a classifier
    for key in ("max_position_embeddings", "pad_token_id", "hidden_size", "num_hidden_layers"):
        assert isinstance(config[key], int)
    pooling = read(folder, "1_Pooling/config.json")
    for mode in ("cls_token", "mean_tokens", "max_tokens", "mean_sqrt_len_tokens"):
        assert isinstance(pooling[f"pooling_mode_{mode}"], bool)
    assert pooling["pooling_mode_cls_token"] or pooling["pooling_mode_mean_tokens"]
    limit = read(folder, "sentence_bert_config.json")["max_seq_length"]
    assert limit == Encoder.load(folder).max_length
    assert read(folder, "tokenizer_config.json")["padding_side"] == "right"
    nodes = {node.name: node.type.tensor_type for node in graph(folder).output}
    assert nodes["sentence_embedding"].elem_type == onnx.TensorProto.FLOAT
    assert len(nodes["sentence_embedding"].shape.dim) == 2
    known = {"input_ids", "attention_mask", "token_type_ids"}
    assert {node.name for node in graph(folder).input} <= known


def test_no_cap_is_hidden_in_the_tokenizer(folder, tuned):
    """Tiny models come with one of 16 tokens, which transformers keeps in the configuration."""
    for where in (folder, tuned):
        config = read(where, "tokenizer_config.json")
        assert config["model_max_length"] == 128
        assert not {"max_length", "stride", "truncation_strategy"} & config.keys()
        assert read(where, "special_tokens_map.json")["pad_token"] == config["pad_token"]
