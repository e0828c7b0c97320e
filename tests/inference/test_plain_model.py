"""Plain ONNX files in the layouts of other publishers, beside the bundle of the same model."""

import contextlib
import json
from functools import partial

import numpy as np
import onnx
import pytest
from onnxruntime.quantization import quantize_dynamic

import onnx_folders
from folder_contents import contents
from json_files import change
from mirror_rt import BundleError, ConfigError, Encoder
from mirror_rt.bundle.onnx_files import describe_bundle
from mirror_rt.inference.pooling import pool
from rounding import RUN_ERROR, of_sums

TEXTS = ["a river", "the old town by the long river", "word " * 60]


@pytest.fixture
def publish(bundle, tmp_path):
    """Write the files of an encoder in the layout of a publisher, and return their folder."""
    return partial(onnx_folders.publish, bundle, tmp_path / "published")


def check(folder, bundle, **options):
    with Encoder.load(folder, **options) as encoder, Encoder.load(bundle) as expected:
        np.testing.assert_allclose(encoder.encode(TEXTS), expected.encode(TEXTS), atol=RUN_ERROR)
        assert encoder.max_length == expected.max_length
        assert encoder.mask_token == expected.mask_token
    return encoder


def test_as_sentence_transformers_publishes(publish, bundle):
    encoder = check(publish(), bundle)
    tokens = Encoder.load(bundle).encode_tokens(TEXTS)
    for ours, theirs in zip(Encoder.load(encoder.folder).encode_tokens(TEXTS), tokens, strict=True):
        error = RUN_ERROR * np.linalg.norm(theirs, axis=1).max()
        np.testing.assert_allclose(ours, theirs, atol=error)


def test_as_fastembed_publishes(publish, bundle):
    for graph in ("model.onnx", "model_optimized.onnx"):
        folder = publish(graph, modules=False)
        with pytest.raises(
            BundleError, match=r"declares no pooling.*pooling='mean'.*mirror-rt exp"
        ):
            Encoder.load(folder)
        check(folder, bundle, pooling="mean")


def test_as_transformers_js_publishes(publish, bundle):
    folder = publish("onnx/model_quantized.onnx", modules=False)
    for variant in (None, "quantized", "int8"):
        assert check(folder, bundle, pooling="mean", variant=variant).variant.precision == "int8"


def test_what_is_declared_decides(publish, bundle):
    folder = publish()
    modules = json.loads((folder / "modules.json").read_text())
    (folder / "modules.json").write_text(json.dumps(modules[:2]))
    change(folder / "sentence_bert_config.json", max_seq_length=16)
    change(folder / "1_Pooling/config.json", pooling_mode_cls_token=True)
    change(folder / "config_sentence_transformers.json", prompts={"query": "a "})
    encoder = Encoder.load(folder)
    found = encoder.encode(TEXTS)
    assert (encoder.max_length, encoder.manifest.prompts) == (16, {"query": "a "})
    tokens = encoder.encode_tokens(TEXTS)
    expected = [np.concatenate([rows[0], rows.mean(axis=0)]) for rows in tokens]
    error = RUN_ERROR * np.linalg.norm(expected, axis=1).max()
    np.testing.assert_allclose(found, expected, atol=error)
    with pytest.raises(ConfigError, match=r"pooling='max': .* declares cls\+mean"):
        Encoder.load(folder, pooling="max")


def test_from_a_hub(publish, bundle, hub):
    for graph in ("onnx/model.onnx", "model.onnx"):
        folder = publish(graph)
        files = contents(folder)
        name = f"owner/{graph.count('/')}"
        hub.add(name, files | {"pytorch_model.bin": b"not needed"})
        check(name, bundle)
        assert not [line for line in hub.requests if "pytorch_model.bin" in line]
        check(name, bundle, offline=True)


def in_a_branch(path):
    """Put the nodes of a graph into a branch of an `If`, as exporters merge two graphs."""
    model = onnx.load(path)
    graph, branch = model.graph, onnx.GraphProto(name="branch")
    branch.node.extend(graph.node)
    branch.output.extend(graph.output)
    always = onnx.helper.make_tensor("always", onnx.TensorProto.BOOL, [], [True])
    names = [output.name for output in graph.output]
    del graph.node[:]
    graph.initializer.append(always)
    graph.node.append(
        onnx.helper.make_node("If", ["always"], names, then_branch=branch, else_branch=branch)
    )
    onnx.save(model, path)


@pytest.mark.parametrize("outputs", [("last_hidden_state",), ("sentence_embedding",)])
@pytest.mark.parametrize("merged", [False, True])
def test_a_scale_for_a_whole_batch_changes_no_vector(publish, tmp_path, caplog, outputs, merged):
    folder = publish(outputs=outputs)
    graph = folder / "onnx/model.onnx"
    quantize_dynamic(graph, folder / "onnx/model_quantized.onnx")
    if merged:
        in_a_branch(folder / "onnx/model_quantized.onnx")
    options = {"variant": "quantized", "providers": "cpu"}
    with Encoder.load(folder, **options) as encoder:
        alone = np.stack([encoder.encode(text) for text in TEXTS])
        together = encoder.encode(TEXTS)
        if encoder.pipeline.model.has_token_vectors:
            tokens = [encoder.encode_tokens([text])[0] for text in TEXTS]
            for found, expected in zip(encoder.encode_tokens(TEXTS), tokens, strict=True):
                np.testing.assert_array_equal(found, expected)
    np.testing.assert_array_equal(together, alone)
    assert sum("quantised dynamically" in line for line in caplog.messages) == 1
    with Encoder.load(folder, **options, cache=tmp_path / "vectors.cache") as encoder:
        encoder.encode(TEXTS)
        np.testing.assert_allclose(encoder.encode(TEXTS[0]), alone[0], rtol=0, atol=2**-23)
    caplog.clear()
    with Encoder.load(folder) as encoder:
        encoder.encode(TEXTS)
    assert not any("quantised dynamically" in line for line in caplog.messages)


@pytest.mark.parametrize("width", ["int32", "int64"])
def test_the_inputs_of_published_graphs(publish, width):
    """Optimum's graphs of decoders take positions, and others int32."""
    folder, helper = publish(), onnx.helper
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(width))
    inputs = ["input_ids", "attention_mask", "position_ids"]
    numbers = np.linspace(0.5, 1.5, 32, dtype=np.float32)
    nodes = [
        node
        for name in (inputs[0], inputs[2])
        for node in (
            helper.make_node("Cast", [name], [f"{name}.float"], to=onnx.TensorProto.FLOAT),
            helper.make_node("Unsqueeze", [f"{name}.float", "last"], [f"{name}.wide"]),
            helper.make_node("Pow", [f"{name}.wide", "numbers"], [f"{name}.vectors"]),
        )
    ]
    nodes.append(
        helper.make_node(
            "Sub", [f"{inputs[0]}.vectors", f"{inputs[2]}.vectors"], ["token_embeddings"]
        )
    )
    graph = helper.make_graph(
        nodes,
        "published",
        [helper.make_tensor_value_info(name, kind, ["rows", "tokens"]) for name in inputs],
        [
            helper.make_tensor_value_info(
                "token_embeddings", onnx.TensorProto.FLOAT, ["rows", "tokens", 32]
            )
        ],
        [
            onnx.numpy_helper.from_array(x, name)
            for x, name in [(np.array([-1]), "last"), (numbers, "numbers")]
        ],
    )
    opset = [helper.make_opsetid("", 17)]
    onnx.save(
        helper.make_model(graph, opset_imports=opset, ir_version=9), folder / "onnx/model.onnx"
    )
    config = json.loads((folder / "config.json").read_text())
    config["n_embd"] = config.pop("hidden_size")
    (folder / "config.json").write_text(json.dumps(config))
    with Encoder.load(folder, providers="cpu") as encoder:
        found, ids = encoder.encode_tokens(TEXTS), encoder.tokenize(TEXTS)
    for row, vectors in zip(ids, found, strict=True):
        places = np.arange(len(row), dtype=np.float32)[:, None]
        np.testing.assert_allclose(
            vectors, np.float32(row)[:, None] ** numbers - places**numbers, rtol=1e-5
        )


def test_sizes_of_a_part_for_texts(publish):
    """As of models that take images, too: transformers reads `get_text_config()`."""
    folder = publish()
    with Encoder.load(folder) as encoder:
        expected, length = encoder.encode(TEXTS), encoder.max_length
    config = json.loads((folder / "config.json").read_text())
    names = ("hidden_size", "max_position_embeddings", "pad_token_id")
    text = {name: config.pop(name) for name in names}
    config |= {"model_type": "gemma3", "hidden_size": 5, "text_config": text}
    (folder / "config.json").write_text(json.dumps(config))
    with Encoder.load(folder) as encoder:
        assert encoder.max_length == length
        np.testing.assert_array_equal(encoder.encode(TEXTS), expected)


@pytest.mark.parametrize(
    ("file", "values", "message"),
    [
        ("1_Pooling/config.json", {"include_prompt": False}, "include_prompt is false"),
        ("1_Pooling/config.json", {"pooling_mode_mean_tokens": False}, "the pooling none"),
        ("1_Pooling/config.json", {"pooling_mode": "gated"}, "the pooling gated"),
        ("config_sentence_transformers.json", {"truncate_dim": 99}, "truncate_dim 99 of 32 dim"),
        ("config.json", {"hidden_size": "wide"}, "does not declare the length of a token vector"),
        ("config.json", {"hidden_size": 31}, "gave 32 dimensions, its manifest"),
    ],
)
def test_what_cannot_be_known_is_refused(publish, file, values, message):
    folder = publish()
    change(folder / file, **values)
    with pytest.raises(BundleError, match=message):
        Encoder.load(folder).encode("a")


def test_other_graphs_and_modules_are_refused(publish):
    folder = publish(outputs=("pooled_embedding",))
    with pytest.raises(BundleError, match="gives pooled_embedding; expected one of last_hidden"):
        Encoder.load(folder)
    modules = json.loads((folder / "modules.json").read_text())
    modules.insert(2, {"idx": 2, "name": "2", "path": "", "type": "sentence_transformers.Dense"})
    (folder / "modules.json").write_text(json.dumps(modules))
    with pytest.raises(BundleError, match=r"config.json is damaged: inputs is None"):
        Encoder.load(folder)
    modules[2]["type"] = "sentence_transformers.LSTM"
    (folder / "modules.json").write_text(json.dumps(modules))
    with pytest.raises(BundleError, match="declares LSTM, which is not applied here"):
        Encoder.load(folder)
    (folder / "tokenizer.json").unlink()
    with pytest.raises(BundleError, match=r"has ONNX files, but no tokenizer.json"):
        Encoder.load(folder)


@pytest.mark.parametrize("file", [*onnx_folders.DESCRIPTIONS, *onnx_folders.MODULES])
def test_any_json_is_refused_or_ignored(publish, file):
    """Each value of a file is replaced by others of any type."""
    folder = publish()
    path = folder / file
    written = json.loads(path.read_text())
    keys = list(written) if isinstance(written, dict) else range(len(written))
    broken = [[], {}, "x", None, 1]
    for key in keys:
        for value in ([], {"a": [1]}, "x", 1.5, -1, 2**40, True):
            changed = written.copy()
            changed[key] = value
            broken.append(changed)
    if file == "tokenizer.json":
        broken = [value for value in broken if not isinstance(value, dict) or "padding" in value]
    for value in broken:
        path.write_text(json.dumps(value))
        with contextlib.suppress(BundleError):
            describe_bundle(folder)


def test_a_pooling_of_a_bundle_is_refused(bundle):
    with pytest.raises(ConfigError, match="is a bundle, its pooling is in the graph"):
        Encoder.load(bundle, pooling="mean")


def test_poolings_agree_with_sentence_transformers(rng):
    import torch
    from sentence_transformers.sentence_transformer.modules import Pooling

    tokens = rng.standard_normal((3, 5, 4)).astype(np.float32)
    mask = np.array([[1, 1, 1, 1, 1], [1, 1, 0, 0, 0], [1, 0, 0, 0, 0]])
    error = 2 * of_sums(5 + 2) * float(np.abs(tokens).sum(axis=1).max())  # of each side
    for mode in ("cls", "mean", "max", "mean_sqrt_len_tokens", "weightedmean", "lasttoken"):
        features = {"token_embeddings": torch.tensor(tokens), "attention_mask": torch.tensor(mask)}
        expected = Pooling(4, pooling_mode=mode)(features)["sentence_embedding"].numpy()
        np.testing.assert_allclose(pool(tokens, mask, [mode]), expected, atol=error)
