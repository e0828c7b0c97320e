"""Every encoder family, with its real code: parity, limits, inputs, fused operators."""

from collections import Counter

import numpy as np
import onnx
import onnx_ir as ir
import pytest
import torch

from mirror_export import ExportConfig, export_bundle
from mirror_export.graph.attention import fused_attention
from mirror_export.graph.onnx_file import write_onnx
from mirror_export.trace import _tell_of_missing_fusion
from mirror_rt import Encoder, Manifest, ModelError
from mirror_rt.bundle.families import FAMILIES
from mirror_rt.tokens.padding import PaddedBatch
from mirror_train import TorchEncoder
from mirror_train.model.pretrained import load_pretrained
from rounding import RUN_ERROR
from tiers import tiers
from tiny_models import TINY, make_model

WHOLE = {"Attention": 2, "BiasGelu": 2, "EmbedLayerNormalization": 1, "SkipLayerNormalization": 4}
FUSED = dict.fromkeys(TINY, WHOLE) | {
    # gelu_new, the tanh form
    "albert": {"FastGelu" if name == "BiasGelu" else name: n for name, n in WHOLE.items()},
    "deberta-v2": {"BiasGelu": 2, "SkipLayerNormalization": 4},
    "modernbert": {"MultiHeadAttention": 2, "RotaryEmbedding": 4},
    "roformer": {name: n for name, n in WHOLE.items() if name != "Attention"},
    "rembert": {name: n for name, n in WHOLE.items() if name != "Attention"},
}
families = pytest.mark.parametrize("family", tiers(TINY, fast=("bert", "modernbert")))


def batch_of(rows, length, vocabulary, pad_id, rng):
    """Rows of 1 to `length` tokens, the last of full length."""
    lengths = rng.integers(1, length + 1, rows)
    lengths[-1] = length
    mask = (np.arange(length) < lengths[:, None]).astype(np.int64)
    ids = np.where(mask, rng.integers(5, vocabulary, (rows, length)), pad_id)
    return PaddedBatch(ids, mask, np.zeros_like(ids))


@families
def test_parity_over_batch_sizes_and_lengths(family, tiny_model, tiny_bundle, rng):
    encoder = Encoder.load(tiny_bundle(family), threads=1)
    reference = TorchEncoder.load(tiny_model(family), pooling=TINY[family].pooling, device="cpu")
    vocabulary = reference.pretrained.model.config.vocab_size
    pad_id = reference.pretrained.pad_id
    assert encoder.max_length == 128
    for rows in (1, 2, 33):
        for length in (1, 2, 3, 17, 64, 127, 128):
            batch = batch_of(rows, length, vocabulary, pad_id, rng)
            for normalize in (True, False):
                found = encoder.pipeline.model.run_batch(batch, normalize=normalize)
                expected = reference.pipeline.model.run_batch(batch, normalize=normalize)
                np.testing.assert_allclose(
                    found, expected, atol=RUN_ERROR * (1 if normalize else 32**0.5)
                )


@families
def test_texts_alone_and_in_a_batch(family, tiny_model, tiny_bundle, words):
    encoder = Encoder.load(tiny_bundle(family), threads=1)
    reference = TorchEncoder.load(tiny_model(family), pooling=TINY[family].pooling, device="cpu")
    texts = [" ".join(words[:k]) for k in (1, 2, 5, 20, 60)]
    expected = reference.encode(texts)
    for batch_size in (1, 32):
        np.testing.assert_allclose(encoder.encode(texts, batch_size), expected, atol=RUN_ERROR)


@pytest.mark.parametrize("pooling", tiers(["max", "first-last-avg"], fast=["first-last-avg"]))
@pytest.mark.parametrize("family", tiers(["bert", "modernbert"], fast=["bert"]))
def test_further_poolings_are_in_the_graph(family, pooling, tiny_model, tmp_path, words):
    options = {"pooling": pooling, "precisions": ("fp32", "int8")}
    export_bundle(ExportConfig(str(tiny_model(family)), tmp_path / "bundle", **options))
    texts = [" ".join(words[:k]) for k in (1, 2, 5, 20, 60)]
    expected = TorchEncoder.load(tiny_model(family), pooling=pooling, device="cpu").encode(texts)
    for providers in ("auto", "cpu"):
        encoder = Encoder.load(tmp_path / "bundle", threads=1, providers=providers)
        np.testing.assert_allclose(encoder.encode(texts), expected, atol=RUN_ERROR)


@families
def test_fused_operators(family, tiny_bundle):
    graph = Manifest.read(tiny_bundle(family)).variant().graph
    model = onnx.load(tiny_bundle(family) / "onnx" / "model.onnx")
    assert graph["fused"] == FUSED[family]
    assert graph["nodes"] == len(model.graph.node)
    if family in FAMILIES:
        expected = FAMILIES[family].expected(2)
        assert sum(expected.values()) == sum(graph["fused"].values())


@families
def test_inputs_and_types(family, tiny_bundle):
    """int64 outside, int32 where onnxruntime's operators want it."""
    model = onnx.load(tiny_bundle(family) / "onnx" / "model.onnx")
    onnx.checker.check_model(model, full_check=True)
    types = family in ("bert", "ernie", "albert", "electra", "roformer", "rembert")
    names = ["input_ids", "attention_mask"] + ["token_type_ids"] * types
    assert [node.name for node in model.graph.input] == names
    assert {node.type.tensor_type.elem_type for node in model.graph.input} == {
        onnx.TensorProto.INT64
    }


@pytest.mark.full
def test_weights_shared_by_layers_are_stored_once(tiny_bundle, tiny_model):
    stored = (tiny_bundle("albert") / "onnx" / "model.onnx").stat().st_size
    weights = (tiny_model("albert") / "model.safetensors").stat().st_size
    assert stored < weights + 40_000


@pytest.mark.parametrize("family", tiers(["bert", "mpnet", "albert"], fast=["bert"]))
def test_the_model_is_left_as_it_was(family, tiny_model):
    model = load_pretrained(tiny_model(family)).model
    ids = torch.tensor([[5, 6, 7]])
    mask = torch.ones_like(ids)
    before = model(ids, attention_mask=mask).last_hidden_state
    own = model.config._attn_implementation
    with pytest.raises(ZeroDivisionError), fused_attention(model):
        raise ZeroDivisionError
    assert model.config._attn_implementation == own
    error = RUN_ERROR * float(before.detach().norm(dim=-1).max())
    after = model(ids, attention_mask=mask).last_hidden_state
    torch.testing.assert_close(after, before, rtol=0, atol=error)


def test_what_is_not_fused_is_said(tiny_model, caplog):
    _tell_of_missing_fusion(load_pretrained(tiny_model("rembert")), {})
    assert "no fusion is known for the family 'rembert'" in caplog.text
    _tell_of_missing_fusion(load_pretrained(tiny_model("bert")), {})
    assert "Attention: fused 0 of 2; the graph works" in caplog.text


@pytest.mark.full
def test_large_weights_that_layers_share(tmp_path, words):
    """The exporter turns no weight of ALBERT's that is large: it has several uses."""
    config = {"hidden_size": 384, "num_attention_heads": 12, "intermediate_size": 1536}
    model = make_model("albert", tmp_path / "model", words, config=config)
    options = {"pooling": "mean", "force": True}  # random numbers of this size are rounded more
    made = export_bundle(ExportConfig(str(model), tmp_path / "bundle", **options))
    graph = made.variant("fp32").graph
    assert graph["fused"] == FUSED["albert"]
    shapes = Counter(
        tuple(one.dims) for one in onnx.load(tmp_path / "bundle/onnx/model.onnx").graph.initializer
    )
    assert all(shapes[shape] == 1 for shape in ((384, 1152), (384, 384), (384, 1536), (1536, 384)))
    with Encoder.load(tmp_path / "bundle") as encoder:
        assert encoder.providers == ["native"]


def test_the_mapped_graph_has_norms_in_parts(bundle):
    """The graph for onnxruntime on CPUs, whose SkipLayerNormalization is slower than its parts."""
    counts = {
        name: Counter(node.op_type for node in onnx.load(bundle / "onnx" / name).graph.node)
        for name in ("model.onnx", "model_mapped.onnx")
    }
    assert counts["model.onnx"]["SkipLayerNormalization"] == 4
    assert counts["model_mapped.onnx"]["SkipLayerNormalization"] == 0
    assert counts["model_mapped.onnx"]["LayerNormalization"] == 4
    assert sorted(path.name for path in (bundle / "onnx").iterdir()) == [*counts]


def test_the_file_is_that_of_the_library(tmp_path, monkeypatch):
    """Written weight by weight or in one piece, or with its weights in a second file."""
    weights = {
        "a": np.arange(12, dtype="f4").reshape(3, 4).T,
        "b": np.array(7, dtype="i8"),
        "c": np.arange(20_000, dtype="f4").reshape(100, 200),
    }
    values = [
        ir.Value(name=name, const_value=ir.tensor(array), shape=ir.Shape(array.shape))
        for name, array in weights.items()
    ]
    graph = ir.Graph([], [], nodes=[], initializers=values, opset_imports={"": 20}, name="g")
    model = ir.Model(graph, ir_version=10)
    ir.save(model, tmp_path / "expected.onnx")
    write_onnx(model, tmp_path / "found.onnx")
    expected, found, mapped = (
        onnx.load(tmp_path / f"{name}.onnx") for name in ("expected", "found", "found_mapped")
    )
    for one, *others in zip(*(m.graph.initializer for m in (expected, found, mapped)), strict=True):
        for other in others:
            assert one.name == other.name
            assert (one.dims, one.data_type) == (other.dims, other.data_type)
            np.testing.assert_array_equal(*map(onnx.numpy_helper.to_array, (one, other)))
    for proto in (expected, found, mapped):
        proto.graph.ClearField("initializer")
        proto.graph.ClearField("value_info")  # of the weights, which say it themselves
    assert expected == found == mapped
    small = (tmp_path / "found_mapped.onnx").stat().st_size
    assert small < 2000 < 80_000 < (tmp_path / "found.onnx").stat().st_size
    places = onnx.load(tmp_path / "found_mapped.onnx", load_external_data=False).graph.initializer
    assert [len(place.external_data) for place in places] == [0, 0, 3]
    assert int(places[2].external_data[1].value) % 64 == 0
    monkeypatch.setattr("mirror_export.graph.onnx_file._LIMIT", 10)
    write_onnx(model, tmp_path / "large.onnx")
    large = onnx.load(tmp_path / "large.onnx").graph.initializer[0]
    np.testing.assert_array_equal(onnx.numpy_helper.to_array(large), weights["a"])


@pytest.mark.full
@pytest.mark.skipif(torch.__version__ < "2.9", reason="torch 2.8 exports XLNet")
def test_what_torch_cannot_trace_is_one_line(tiny_bert, tmp_path):
    from transformers import AutoModel, AutoTokenizer, XLNetConfig

    config = XLNetConfig(vocab_size=900, d_model=16, n_layer=1, n_head=2, d_inner=16)
    AutoModel.from_config(config).save_pretrained(tmp_path / "xlnet")
    AutoTokenizer.from_pretrained(tiny_bert).save_pretrained(tmp_path / "xlnet")
    with pytest.raises(ModelError, match="torch cannot export this architecture") as caught:
        export_bundle(ExportConfig(str(tmp_path / "xlnet"), tmp_path / "bundle", pooling="mean"))
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "bundle").exists()


def test_packing_mode_takes_the_fused_graph(tiny_bundle):
    """The padding-free form for CUDA: only its making can be checked without a card."""
    from onnxruntime.transformers.convert_to_packing_mode import PackingMode
    from onnxruntime.transformers.onnx_model import OnnxModel

    model = OnnxModel(onnx.load(tiny_bundle("bert") / "onnx" / "model.onnx"))
    PackingMode(model).convert(use_symbolic_shape_infer=False)
    found = [node.op_type for node in model.model.graph.node]
    counts = [found.count(x) for x in ("RemovePadding", "PackedAttention", "RestorePadding")]
    assert counts == [1, 2, 1]
