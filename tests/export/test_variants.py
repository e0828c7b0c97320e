"""Precisions and targets: every variant of a bundle against PyTorch."""

import dataclasses
import json
import shutil

import numpy as np
import onnx
import pytest
from safetensors.torch import load_file, save_file

from mirror_export import ExportConfig, export_bundle
from mirror_export.derive import derive
from mirror_export.graph.graph_edit import is_dense, read_graph
from mirror_export.graph.padding_free import check_packed
from mirror_export.kinds.dense import Reference
from mirror_export.pack.sources import fingerprint
from mirror_export.parity import GATES, ParityReport
from mirror_export.trace import Traced
from mirror_rt import BundleError, ConfigError, Encoder, Manifest, ModelError, ParityError
from mirror_rt.inference.shared_libraries import nvidia_cards
from mirror_rt.tokens.joining import graph_inputs
from mirror_train import TorchEncoder
from ort_reference import evaluator
from paths import ROOT
from rounding import RUN_ERROR, assert_within_gate
from tiers import tiers
from tiny_models import TINY, make_model

WORDS = (ROOT / "tests" / "support" / "words_en.txt").read_text(encoding="utf-8").split()
TEXTS = [" ".join(WORDS[:k]) for k in (1, 2, 3, 11, 60)]
ALL = {"precisions": ("fp32", "fp16", "bf16", "int8"), "targets": ("cpu", "cuda")}


def types_of(evaluator):
    """The inputs of a graph that the reference implementation runs, all of int64."""
    return dict.fromkeys(evaluator.input_names, "tensor(int64)")


def batch(encoder, texts):
    tokens = encoder.pipeline.tokenizer(texts).tokens
    return tokens.pad(np.arange(len(texts)), pad_id=encoder.manifest.pad_id)


@pytest.mark.parametrize("family", tiers(TINY, fast=("bert", "modernbert")))
def test_float16_in_every_family(family, all_variants, tiny_model):
    encoder = Encoder.load(all_variants(family), variant="fp16", threads=1)
    reference = TorchEncoder.load(tiny_model(family), pooling=TINY[family].pooling, device="cpu")
    cosine = (encoder.encode(TEXTS) * reference.encode(TEXTS)).sum(1)
    assert cosine.min() > 0.9999
    types = {node.type for node in encoder.pipeline.model.runner.session().get_outputs()}
    assert types == {"tensor(float)"}


@pytest.mark.parametrize("variant", ["fp32-cuda", "fp16-cuda", "bf16-cuda"])
@pytest.mark.parametrize(
    "family",
    tiers(["bert", "mpnet", "distilbert", "modernbert", "deberta-v2"], fast=("bert", "modernbert")),
)
def test_without_padding(variant, family, all_variants):
    """CUDA's operators, run by numpy: right for texts of different lengths in one batch.

    A graph that is captured is given all places, and what it computes of the padding is NaN.
    DeBERTa has no form without padding, and its graph in bfloat16 runs under CUDA all the same.
    """
    folder = all_variants(family)
    encoder = Encoder.load(folder, threads=1)
    found = evaluator(folder / Manifest.read(folder).variant(variant).file)
    padded, expected = batch(encoder, TEXTS), encoder.encode(TEXTS)
    for captured in (False, True):
        feeds = graph_inputs(padded, types_of(found), keep_padding=captured)
        if "token_indices" in feeds:
            tokens = padded.input_ids.size if captured else padded.attention_mask.sum()
            assert feeds["token_indices"].shape == (tokens,)
        with np.errstate(all="ignore"):  # MPNet takes the logarithm of 0, XLM-RoBERTa
            vectors, _, hidden = found.run(None, feeds)
        assert_within_gate(vectors, expected, variant.removesuffix("-cuda"))
        assert hidden.shape == (*padded.input_ids.shape, 32)
        assert np.isfinite(hidden).all()


def attention(path):
    """Return the operator, dtype and mask of each attention, and whether it adds something."""
    graph = onnx.load(path, load_external_data=False).graph
    makers = {name: node for node in graph.node for name in node.output}
    types = {tensor.name: tensor.data_type for tensor in graph.initializer}

    def dtype(name):  # of the nearest cast or weight on the way that the values came
        maker = makers.get(name)
        if name in types or maker is None:
            return types.get(name)
        if maker.op_type == "Cast":
            return maker.attribute[0].i
        return next(filter(None, map(dtype, reversed(maker.input))), None)

    for node in graph.node:
        if node.op_type.endswith("Attention"):
            inputs = dict(enumerate(node.input))
            packed, whole = node.op_type.startswith("Packed"), node.op_type == "Attention"
            added = inputs.get(6 if packed else 5, "")
            mask = makers.get("" if packed else inputs[3 if whole else 4])
            lengths = mask is not None and mask.op_type == "ReduceSum"
            form = None if packed else "lengths" if lengths else "tokens"
            values = dtype(node.input[1 if whole else 2])
            yield node.op_type, onnx.TensorProto.DataType.Name(values), form, bool(added)


@pytest.mark.full
def test_what_the_graphs_attend_with(all_variants):
    """Flash attention and cuDNN need half precision, joined tokens or the lengths of texts."""

    def forms(family, name):
        folder = all_variants(family)
        return list(attention(folder / Manifest.read(folder).variants[name].file))

    packed = ("PackedMultiHeadAttention", "FLOAT16", None, False)
    assert forms("bert", "fp32") == [("Attention", "FLOAT", "tokens", False)] * 2
    assert forms("bert", "fp16") == [("Attention", "FLOAT16", "lengths", False)] * 2
    assert forms("bert", "fp32-cuda") == [("PackedMultiHeadAttention", "FLOAT", None, False)] * 2
    assert forms("bert", "fp16-cuda") == [packed] * 2
    assert forms("mpnet", "fp16-cuda")[0] == (*packed[:3], True)
    assert forms("modernbert", "fp16-cuda") == [packed, (*packed[:3], True)]
    for name, *form in [("fp32", "FLOAT", "tokens"), ("fp16", "FLOAT16", "lengths")]:
        everywhere, local = (("MultiHeadAttention", *form, added) for added in (False, True))
        assert forms("modernbert", name) == [everywhere, local]


@pytest.mark.full
def test_the_packed_graphs_hold_no_weights_of_their_own(words, tmp_path):
    """Small weights, which they do hold, are few beside the large ones of this model."""
    base, folder = tmp_path / "base", tmp_path / "bundle"
    make_model("distilbert", base, words, config={"hidden_dim": 3072})
    precisions, targets = ("fp32", "fp16", "int8"), ("cpu", "cuda")
    export_bundle(ExportConfig(str(base), folder, "mean", precisions, targets))
    for name in ("fp32", "fp16"):
        variants = Manifest.read(folder).variants
        whole, packed = (folder / variants[n].file for n in (name, f"{name}-cuda"))
        assert packed.stat().st_size < whole.stat().st_size / 4
        stored = onnx.load(packed, load_external_data=False).graph.initializer
        files = {
            entry.value for t in stored for entry in t.external_data if entry.key == "location"
        }
        assert files == {whole.name}
        needed = Manifest.read(folder).files_for([variants[f"{name}-cuda"]])
        assert variants[f"{name}-cuda"].weights in needed
        assert (variants["int8"].file in needed, "mirror.json" in needed) == (False, False)


@pytest.mark.full
def test_a_family_without_packed_attention_runs_its_graph_on_cuda(all_variants):
    variants = Manifest.read(all_variants("deberta-v2")).variants
    assert variants["fp16-cuda"].file == variants["fp16"].file
    assert variants["fp16-cuda"].parity["passed"]


def test_a_mean_over_the_padding_needs_the_padding(all_variants, tmp_path):
    manifest = Manifest.read(all_variants("bert"))
    padded = dataclasses.replace(manifest, pooling="mean-with-padding", pad_to=manifest.max_length)
    config = ExportConfig("bert", tmp_path / "bundle", targets=("cuda",))
    vectors = np.zeros((len(TEXTS), manifest.dimension), np.float32)
    made = derive(
        Traced(
            config, all_variants("bert"), padded, {"fused": {}}, Reference(TEXTS, vectors, vectors)
        )
    )
    assert made["fp32-cuda"].file == "onnx/model.onnx"


@pytest.mark.gpu
@pytest.mark.parametrize("variant", ["fp32-cuda", "fp16-cuda", "bf16-cuda"])
def test_on_cuda(variant, all_variants):
    from onnxruntime import get_available_providers

    if "CUDAExecutionProvider" not in get_available_providers() or not nvidia_cards():
        pytest.skip("needs an NVIDIA card and onnxruntime-gpu")
    parity = Manifest.read(all_variants("bert")).variant(variant).parity
    assert parity["passed"]
    assert parity["provider"] == "CUDAExecutionProvider"
    expected = Encoder.load(all_variants("bert"), providers="cpu", variant="fp32").encode(TEXTS)
    options = {"providers": "cuda", "variant": variant, "cuda_graphs": True}
    with Encoder.load(all_variants("bert"), **options) as encoder:
        for rows in (1, 3, 5, 1):
            precision = variant.removesuffix("-cuda")
            assert_within_gate(encoder.encode(TEXTS[:rows]), expected[:rows], precision)


def test_a_packed_graph_of_other_counts_is_refused(all_variants):
    with pytest.raises(ModelError, match=r"holds 0 PackedMultiHeadAttention \(expected 2\), 2 Att"):
        check_packed(read_graph(all_variants("bert") / "onnx" / "model.onnx"), 2)


def scaled(model, folder, factors):
    """A copy of a model with some weights multiplied."""
    shutil.copytree(model, folder)
    weights = load_file(folder / "model.safetensors")
    for name, weight in weights.items():
        for part, factor in factors.items():
            if part in name:
                weights[name] = weight * factor
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


LARGE = {
    "the sum of the pooling": {"layer.1.output.LayerNorm": 2e4},
    "inside a layer and its norm": {"layer.0.intermediate.dense": 3e3, "layer.0.output.dense": 50},
    "queries and keys": {"layer.1.attention.self.query": 3e5, "layer.1.attention.self.key": 1e-5},
    "a weight": {"layer.0.output.dense.weight": 1e6},
}


@pytest.mark.parametrize("what", tiers(LARGE, fast=["queries and keys"]))
def test_float16_of_large_numbers(what, tiny_bert, tmp_path):
    """Beyond 65,504 they stay in float32: no infinity, no NaN, on the longest texts either."""
    model = scaled(tiny_bert, tmp_path / "model", LARGE[what])
    config = ExportConfig(str(model), tmp_path / "b", pooling="mean", precisions=("fp32", "fp16"))
    variant = export_bundle(config).variant("fp16")
    assert variant.parity["max_tokens"] > 100
    assert variant.parity["mean_cosine"] > 0.9999
    assert bool(variant.graph["float32_layers"]) == (what != "the sum of the pooling")
    graph = read_graph(tmp_path / "b" / "onnx" / "model_fp16.onnx")
    for value in graph.graph.initializers.values():
        assert np.isfinite(value.const_value.numpy()).all()


@pytest.mark.full
def test_bfloat16_of_large_numbers(tiny_bert, tmp_path):
    """Only attention, which has no kernel in bfloat16, stays in float32 for them."""
    large = LARGE["inside a layer and its norm"] | LARGE["queries and keys"]
    model = scaled(tiny_bert, tmp_path / "model", large)
    options = {"pooling": "mean", "precisions": ("fp32", "bf16"), "targets": ("cpu", "cuda")}
    variant = export_bundle(ExportConfig(str(model), tmp_path / "b", **options)).variant(
        "bf16-cuda"
    )
    (kept,) = variant.graph["float32_layers"]
    assert kept.startswith("attention")
    encoder = Encoder.load(tmp_path / "b", variant="fp32", threads=1)
    found = evaluator(tmp_path / "b" / variant.file)
    feeds = graph_inputs(batch(encoder, TEXTS), types_of(found))
    vectors, *_ = found.run(None, feeds)
    assert (vectors * encoder.encode(TEXTS)).sum(1).min() > 0.999


@pytest.mark.parametrize("family", tiers(TINY, fast=("bert", "modernbert")))
def test_int8_in_every_family(family, all_variants, tiny_model):
    manifest = Manifest.read(all_variants(family))
    assert manifest.variant("int8").graph["float32_layers"] == []
    encoder = Encoder.load(all_variants(family), variant="int8", threads=1)
    reference = TorchEncoder.load(tiny_model(family), pooling=TINY[family].pooling, device="cpu")
    found = encoder.encode(TEXTS)
    cosine = (found * reference.encode(TEXTS)).sum(1)
    assert cosine.min() > 0.99
    alone = np.stack([encoder.encode(text) for text in TEXTS])
    np.testing.assert_allclose(found, alone, atol=RUN_ERROR)  # whatever is beside a text in a batch
    graph = read_graph(all_variants(family) / "onnx" / "model_int8.onnx").graph
    matrices = [v for v in graph.initializers.values() if v.shape.rank() == 2 and v.dtype == 1]
    assert not any(v for v in matrices if v.shape[0] > 200 and v.shape[1] > 1)  # the word table
    assert not any(is_dense(node) for node in graph)


def test_weights_leave_room_for_sums_of_sixteen_bits(all_variants):
    """Without VNNI, two products of uint8 and int8 are added in an int16."""
    graph = read_graph(all_variants("bert") / "onnx" / "model_int8.onnx").graph
    dense = [node.inputs[1] for node in graph if node.op_type == "MatMulIntegerToFloat"]
    assert len(dense) == 8
    for weight in dense:
        assert 2 * 255 * np.abs(weight.const_value.numpy().astype(int)).max() < 2**15


@pytest.mark.full
def test_layers_that_lose_too_much_stay_float32(tiny_bert, tmp_path):
    """One layer whose numbers 8 bits cannot hold: it is found, and the others are int8."""
    model = tmp_path / "model"
    shutil.copytree(tiny_bert, model)
    weights = load_file(model / "model.safetensors")
    hidden = weights["encoder.layer.0.intermediate.dense.weight"]
    hidden[5], weights["encoder.layer.0.output.dense.weight"][:, 5] = 800, 1e-5
    save_file(weights, model / "model.safetensors", metadata={"format": "pt"})
    config = ExportConfig(str(model), tmp_path / "b", pooling="mean", precisions=("int8",))
    variant = export_bundle(config).variant("int8")
    assert variant.parity["passed"]
    assert variant.graph["float32_layers"] == ["encoder.layer.0.output.dense"]
    assert variant.graph["fused"]["MatMulIntegerToFloat"] == 7
    assert not (tmp_path / "b" / "onnx" / "model.onnx").exists()


@pytest.mark.parametrize(
    ("variant", "kind", "attention"),
    [("fp16", 10, "Attention"), ("bf16", 16, "PackedMultiHeadAttention")],
)
def test_islands(all_variants, variant, kind, attention):
    """Norms, pooling and normalisation are float32; products and tables of embeddings are not.

    Attention is float16 in both, and its projections with it, which are in it or before it.
    """
    graph = read_graph(all_variants("bert") / "onnx" / f"model_{variant}.onnx").graph
    kinds = {}
    for node in graph:
        floats = [v for v in node.inputs if v is not None and v.dtype in (1, 10, 16)]
        kinds.setdefault(node.op_type, set()).update(int(v.dtype) for v in floats)
    for single in ("SkipLayerNormalization", "LayerNormalization", "ReduceSum", "ReduceL2", "Div"):
        assert kinds[single] == {1}
    assert kinds["MatMul"] == {kind, 10}
    assert kinds[attention] == {10}
    assert kinds["BiasGelu"] == {kind}
    assert kind in kinds["Gather"]  # another one restores the padding of what is pooled


REPORT = {"texts": 3, "min_tokens": 1, "max_tokens": 9, "max_difference": 0.0, "mean_cosine": 1.0,
          "min_cosine": 1.0}  # fmt: skip


@pytest.mark.parametrize(
    ("precision", "passing", "failing"),
    [
        ("fp32", {"max_difference": 9e-5}, {"max_difference": 2e-4}),
        ("fp16", {"mean_cosine": 0.99995}, {"mean_cosine": 0.9998}),
        ("int8", {"mean_cosine": 0.991, "min_cosine": 0.971}, {"mean_cosine": 0.989}),
        ("int8", {}, {"min_cosine": 0.969}),
        ("fp32", {}, {"max_difference": float("nan")}),
        ("int8", {}, {"mean_cosine": float("nan"), "min_cosine": float("nan")}),
    ],
)
def test_gates(precision, passing, failing):
    ParityReport(**REPORT | passing, gate=GATES[precision]).check()
    report = ParityReport(**REPORT | failing, gate=GATES[precision])
    with pytest.raises(ParityError, match="variant x differs from PyTorch over 3 texts"):
        report.check("x")
    assert report.to_dict()["passed"] is False
    json.dumps(report.to_dict(), allow_nan=False)


@pytest.mark.parametrize("force", tiers([True, False], fast=[True]))
def test_force_writes_what_fails_and_says_so(force, tiny_bert, tmp_path, monkeypatch, caplog):
    monkeypatch.setitem(GATES, "fp16", GATES["fp16"].__class__(max_difference=1e-9))
    config = ExportConfig(str(tiny_bert), tmp_path / "b", "mean", ("fp32", "fp16"), force=force)
    if not force:
        with pytest.raises(ParityError, match=r"variant fp16 .* \(--force writes it\)"):
            export_bundle(config)
        assert not (tmp_path / "b").exists()
        return
    manifest = export_bundle(config)
    assert manifest.variant("fp32").parity["passed"]
    assert not manifest.variant("fp16").parity["passed"]
    assert "variant fp16 differs from PyTorch" in caplog.text


@pytest.mark.full
def test_only_what_was_asked_for_is_left(tiny_bert, tmp_path):
    options = {"pooling": "mean", "precisions": ("fp16",), "targets": ("cuda",)}
    manifest = export_bundle(ExportConfig(str(tiny_bert), tmp_path / "b", **options))
    assert list(manifest.variants) == ["fp16-cuda"]
    files = {path.name for path in (tmp_path / "b" / "onnx").iterdir()}
    assert files == {"model_fp16_packed.onnx", "model_fp16_packed_mapped.onnx"}
    whole = onnx.load(tmp_path / "b" / "onnx" / "model_fp16_packed.onnx").graph.initializer
    assert sum(len(weight.raw_data) for weight in whole) > 50_000


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"precisions": ("int8",), "targets": ("cuda",)}, "int8 is for the CPU: add the target"),
        ({"precisions": ("bf16",), "targets": ("cpu",)}, "add the target cuda or native"),
        ({"precisions": ()}, "at least one precision"),
    ],
)
def test_impossible_wishes(options, message, tiny_bert, tmp_path):
    with pytest.raises(ConfigError, match=message):
        export_bundle(ExportConfig(str(tiny_bert), tmp_path / "b", pooling="mean", **options))


@pytest.mark.full
def test_pairs_by_language(tuned, tmp_path):
    (tmp_path / "pairs").mkdir()
    config = ExportConfig(str(tuned), tmp_path / "b", parity_pairs=tmp_path / "pairs")
    with pytest.raises(ConfigError, match=r"the folder has no en\.tsv"):
        export_bundle(config)
    before = fingerprint(tuned, config)
    rows = "text1\ttext2\tscore\na\tb\t1\nc\td\t2\nun\tune\t3\n"
    (tmp_path / "pairs" / "en.tsv").write_text(rows)
    assert export_bundle(config).variant().parity["spearman_pairs"] == 3
    assert fingerprint(tuned, config) != before  # a pack is made again


@pytest.mark.full
def test_models_over_two_gigabytes(tiny_bert, tmp_path, monkeypatch):
    monkeypatch.setattr("mirror_export.graph.onnx_file._LIMIT", 40_000)
    manifest = export_bundle(ExportConfig(str(tiny_bert), tmp_path / "b", pooling="mean", **ALL))
    for name, variant in manifest.variants.items():
        if variant.target == "cpu":
            assert variant.parity["passed"], name
            assert (tmp_path / "b" / f"{variant.file}_data").stat().st_size > 10_000
    expected = Encoder.load(tmp_path / "b").encode(TEXTS)
    half = Encoder.load(tmp_path / "b", variant="fp16").encode(TEXTS)
    assert_within_gate(half, expected, "fp16")
    reference = evaluator(tmp_path / "b" / manifest.variant("fp32-cuda").file)
    padded = batch(Encoder.load(tmp_path / "b"), TEXTS)
    vectors = reference.run(None, graph_inputs(padded, types_of(reference)))[0]
    np.testing.assert_allclose(vectors, expected, atol=RUN_ERROR)


@pytest.mark.parametrize("field", ["opset", "IR version"])
def test_a_graph_too_new_for_onnxruntime(field, all_variants, tmp_path):
    folder = tmp_path / "bundle"
    shutil.copytree(all_variants("bert"), folder)
    path = folder / "onnx" / "model_int8_mapped.onnx"
    model = onnx.load(path, load_external_data=False)
    if field == "opset":
        model.opset_import[0].version = 99
    else:
        model.ir_version = 99
    onnx.save(model, path)
    with pytest.raises(BundleError, match=r"needs a newer onnxruntime than .*: pip install -U"):
        Encoder.load(folder, variant="int8", verify=False, providers="cpu")


@pytest.mark.full
def test_on_the_command_line(tiny_bert, tmp_path, cli, all_variants):
    pairs = tmp_path / "pairs.tsv"
    pairs.write_text("text1\ttext2\tscore\nold\ttown\t1\nriver\tsea\t5\ndoctor\tman\t9\n")
    out = tmp_path / "b"
    options = ["--pooling", "mean", "--precision", "int8,fp32", "--target", "cuda, cpu"]
    result = cli("export", tiny_bert, "--out", out, *options, "--parity-pairs", pairs)
    assert result.code == 0
    lines = result.out.splitlines()
    assert [line.split(": ")[1] for line in lines] == ["fp32", "int8", "fp32-cuda"]
    assert "MB, differs from PyTorch by" in lines[1]
    assert "Spearman" in lines[1]
    assert "not compared with PyTorch: needs CUDA" in lines[2]
    assert lines[1].split(": ", 2)[2] in cli("info", out).out
    similarity = ["evaluate", "similarity", "--pairs", pairs]
    for graph in ("int8", "fp32"):
        result = cli(*similarity, "--model", out, "--variant", graph)
        parity = Manifest.read(out).variant(graph).parity
        assert result.out.split()[1] == f"{parity['spearman']:.4f}"
    assert parity["spearman_pytorch"] == pytest.approx(parity["spearman"])
    assert parity["provider"] == "CPUExecutionProvider"
    assert parity["bytes"] == (out / "onnx" / "model.onnx").stat().st_size
    (tmp_path / "in.txt").write_text("one\ntwo\n")
    arguments = ["encode", "--model", out, "--input", tmp_path / "in.txt", "--output"]
    assert cli(*arguments, tmp_path / "v.npy", "--variant", "int8").code == 0
    found = Encoder.load(out, variant="int8").encode(["one", "two"])
    np.testing.assert_array_equal(np.load(tmp_path / "v.npy"), found)
    for name, code, message in (
        ("fp32-cuda", 2, "runs under CUDA alone"),
        ("x", 1, "no variant 'x'"),
    ):
        result = cli(*arguments, tmp_path / "w.npy", "--variant", name)
        assert result.code == code
        assert message in result.err
    # A variant is an option of a run by the engine, also of a folder that PyTorch would run.
    result = cli(*similarity, "--model", tiny_bert, "--pooling", "mean", "--variant", "x")
    assert result.code == 2
    assert "variant 'x': the provider native runs fp32, bf16, int8" in result.err
    assert cli("export", tiny_bert, "--out", tmp_path / "c", "--precision", "fp8").code == 2
