"""A model repository of Triton: its configuration by Triton's own schema, its models by ours.

tests/run.sh installs tritonclient into build/tritonclient, for the schema alone: it wants older
versions of what others here need.
"""

import importlib.util
import json
import sys
import types
import warnings
from pathlib import Path

import numpy as np
import onnxruntime
import pytest

from mirror_rt import BundleError, ConfigError, Encoder, OutputExistsError
from mirror_rt.triton.repository import RepositoryConfig, write_repository
from paths import ROOT
from rounding import ANY_BATCH
from server_process import make_pack
from tiny_models import SENTENCES


@pytest.fixture(scope="module")
def schema():
    """Triton's model_config.proto, from its client; the package itself would want grpc."""
    places = [ROOT / "build/tritonclient/tritonclient"]
    if (found := importlib.util.find_spec("tritonclient")) is not None:
        places += [Path(place) for place in found.submodule_search_locations or []]
    files = [file for place in places if (file := place / "grpc/model_config_pb2.py").is_file()]
    spec = importlib.util.spec_from_file_location("model_config_pb2", files[0])
    module = importlib.util.module_from_spec(spec)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it was generated for an older protobuf
        spec.loader.exec_module(module)
    return module


@pytest.fixture
def read(schema):
    """The configuration of a model, as Triton would read it and hand it to a backend."""
    from google.protobuf import json_format, text_format

    def read(folder):
        text = (folder / "config.pbtxt").read_text()
        parsed = text_format.Parse(text, schema.ModelConfig())  # an error for what it has not
        return json_format.MessageToDict(parsed, preserving_proto_field_name=True)

    return read


@pytest.fixture
def backend(monkeypatch):
    """Stands for what Triton's Python backend gives to a model."""
    module = types.ModuleType("triton_python_backend_utils")

    class Tensor:
        def __init__(self, name, values):
            self.name, self.values = name, values

        def as_numpy(self):
            return self.values

    class InferenceResponse:
        def __init__(self, output_tensors=(), error=None):
            self.tensors = {tensor.name: tensor.values for tensor in output_tensors}
            self.error = error

    module.Tensor, module.InferenceResponse = Tensor, InferenceResponse
    module.TritonError = RuntimeError
    module.get_input_tensor_by_name = lambda request, name: request[name]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return module


def load(folder, config):
    spec = importlib.util.spec_from_file_location("model", folder / "1/model.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    model = module.TritonPythonModel()
    model.initialize({"model_config": json.dumps(config)})
    return model


def ask(model, backend, *requests):
    rows = [np.array([[text.encode()] for text in texts], dtype=object) for texts in requests]
    return model.execute([{"text": backend.Tensor("text", row)} for row in rows])


@pytest.mark.full
@pytest.mark.needs("tritonclient")
def test_a_bundle_in_triton(bundle_copy, tmp_path, read, backend):
    """Texts through tokenizer and graph, joined as the ensemble says, are what Encoder gives."""
    path = bundle_copy / "mirror.json"
    prompt = 'say "é\n\\":'
    values = {"prompts": {"query": prompt}, "default_prompt_name": "query"}
    path.write_text(json.dumps(json.loads(path.read_text()) | values))
    out = tmp_path / "repository"
    config = RepositoryConfig(name="embed", max_batch_size=16)
    assert write_repository(bundle_copy, out, config) == ["embed"]
    configs = {folder.name: read(folder) for folder in out.iterdir()}
    assert set(configs) == {"embed", "embed-graph", "embed-tokenizer"}
    assert all(values["max_batch_size"] == 16 for values in configs.values())

    graph = configs["embed-graph"]
    file = out / "embed-graph" / "1" / graph["default_model_filename"]
    session = onnxruntime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
    assert graph["backend"] == "onnxruntime"
    assert "dynamic_batching" in graph
    for nodes, declared in ((session.get_inputs(), graph["input"]),
                            (session.get_outputs(), graph["output"])):  # fmt: skip
        assert [node.name for node in nodes] == [entry["name"] for entry in declared]
    shapes = {entry["name"]: [int(d) for d in entry["dims"]] for entry in graph["output"]}
    assert shapes == {"sentence_embedding": [32], "pooled_embedding": [32],
                      "last_hidden_state": [-1, 32]}  # fmt: skip
    assert {entry["data_type"] for entry in graph["input"]} == {"TYPE_INT64"}

    tokenizer = load(out / "embed-tokenizer", configs["embed-tokenizer"])
    first, second = configs["embed"]["ensemble_scheduling"]["step"]
    assert [step["model_name"] for step in (first, second)] == ["embed-tokenizer", "embed-graph"]
    texts = [*SENTENCES, "人生", "word " * 60]
    (answer,) = ask(tokenizer, backend, texts)
    assert answer.error is None
    assert all(rows.shape[1] % 16 == 0 for rows in answer.tensors.values())
    between = {first["output_map"][name]: rows for name, rows in answer.tensors.items()}
    feeds = {name: between[tensor] for name, tensor in second["input_map"].items()}
    ((wanted, tensor),) = second["output_map"].items()
    assert tensor == configs["embed"]["output"][0]["name"] == "embedding"
    (found,) = session.run([wanted], feeds)
    expected = Encoder.load(bundle_copy).encode(texts)
    np.testing.assert_allclose(found, expected, atol=ANY_BATCH)

    answers = ask(tokenizer, backend, ["a", " "], ["word " * 300], ["a"])
    assert [str(answer.error) for answer in answers] == [
        "text 1 is empty", "text 0 is longer than 128 tokens", "None"
    ]  # fmt: skip


@pytest.mark.full
@pytest.mark.needs("tritonclient")
def test_long_texts_may_be_cut(bundle, tmp_path, read, backend):
    out = tmp_path / "repository"
    write_repository(bundle, out, RepositoryConfig(on_too_long="truncate"))
    folder = out / f"{bundle.name}-tokenizer"
    (answer,) = ask(load(folder, read(folder)), backend, ["word " * 300])
    (expected,) = Encoder.load(bundle).tokenize(["word " * 300])
    assert answer.tensors["input_ids"].tolist() == [list(expected)]


def test_a_pack_in_triton(bundle, tmp_path, cli):
    pack = make_pack(tmp_path / "pack", {"fr": bundle, "en": bundle}, "en")
    out = tmp_path / "repository"
    done = cli("triton", pack, "--out", out, "--name", "mirror")
    assert (done.code, done.out) == (0, f"{out}: mirror-fr, mirror-en\n")
    assert {path.name for path in out.iterdir()} == {
        f"mirror-{language}{part}" for language in ("fr", "en")
        for part in ("", "-graph", "-tokenizer")
    }  # fmt: skip
    done = cli("triton", pack, "--out", out)
    assert done.code == 1
    assert "already exists" in done.err


def test_what_is_refused(bundle_copy, tmp_path):
    out = tmp_path / "repository"
    with pytest.raises(BundleError, match="no variant 'int8'"):
        write_repository(bundle_copy, out, RepositoryConfig(variant="int8"))
    for values in ({"max_batch_size": 0}, {"name": "a/b"}, {"on_too_long": "chunk"}):
        with pytest.raises(ConfigError, match=next(iter(values))):
            RepositoryConfig(**values)
    with (bundle_copy / "tokenizer.json").open("a") as file:
        file.write(" ")
    with pytest.raises(BundleError, match="damaged"):
        write_repository(bundle_copy, out)
    assert not out.exists()
    out.mkdir()
    (out / "mine").touch()
    with pytest.raises(OutputExistsError):
        write_repository(bundle_copy, out)


def test_a_graph_that_joins_tokens_is_refused(bundle_copy, tmp_path):
    path = bundle_copy / "mirror.json"
    values = json.loads(path.read_text())
    packed = {"graph": {"fused": {"PackedMultiHeadAttention": 2}}, "target": "cuda"}
    values["variants"]["fp32-cuda"] = values["variants"]["fp32"] | packed
    path.write_text(json.dumps(values))
    with pytest.raises(
        ConfigError, match=r"'fp32-cuda' .* which Triton cannot join .* choose fp16"
    ):
        write_repository(bundle_copy, tmp_path / "out", RepositoryConfig(variant="fp32-cuda"))
