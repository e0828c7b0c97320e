"""Every family's own head: the scores of the CrossEncoder of sentence-transformers."""

import json
import shutil

import numpy as np
import pytest
import torch
from onnxruntime import InferenceSession
from sentence_transformers import CrossEncoder
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from json_files import change
from mirror_export import ExportConfig, export_bundle
from mirror_rt import Encoder, Manifest, ModelError, Reranker
from mirror_rt.bundle.families import FAMILIES
from mirror_rt.errors import BundleError
from rounding import LOGIT_ERROR, SCORE_ERROR
from tiers import tiers
from tiny_models import TINY, UNFUSED, make_model

# From a few tokens to pairs of which both texts are too long.
SIZES = [(3, 5), (1, 1), (3, 200), (200, 3), (150, 200), (30, 31), (61, 64), (64, 61)]
HEADED = [name for name, row in FAMILIES.items() if row.classifier is not None]


@pytest.fixture(scope="module")
def pairs(words):
    return [
        (" ".join(words[i : i + m]), " ".join(words[2 * i : 2 * i + n]))
        for i, (m, n) in enumerate(SIZES, 3)
    ]


def logits_of(folder, pairs):
    """The logits of transformers, of one pair at a time."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForSequenceClassification.from_pretrained(folder).eval()
    with torch.no_grad():
        return np.concatenate([
            model(**tokenizer(*pair, truncation=True, max_length=128, return_tensors="pt")).logits
            for pair in pairs
        ])  # fmt: skip


@pytest.mark.parametrize("family", tiers(HEADED, fast=("bert", "modernbert")))
def test_scores_are_those_of_the_peer(family, tiny_cross_encoder, tiny_reranker, pairs):
    folder, bundle = tiny_cross_encoder(family), tiny_reranker(family)
    expected = CrossEncoder(str(folder), device="cpu").predict(pairs)
    assert np.ptp(expected) > 1e-3  # or an equal score for all would pass
    for providers in ("cpu", "native"):
        with Reranker.load(bundle, threads=1, providers=providers) as reranker:
            found = reranker.predict(pairs)
            np.testing.assert_allclose(found, expected, atol=SCORE_ERROR)
            assert (found.dtype, found.shape) == (np.float32, (len(pairs),))
            logits = reranker.predict(pairs, activation="identity")
            np.testing.assert_allclose(logits, logits_of(folder, pairs)[:, 0], atol=LOGIT_ERROR)


@pytest.mark.parametrize("family", tiers(HEADED, fast=("modernbert",)))
def test_other_tools_find_the_logits_first(family, tiny_cross_encoder, tiny_reranker, pairs):
    """As fastembed, by their place, and transformers.js, by their name."""
    folder = tiny_cross_encoder(family)
    session = InferenceSession(tiny_reranker(family) / "onnx" / "model.onnx")
    assert session.get_outputs()[0].name == "logits"
    tokens = AutoTokenizer.from_pretrained(folder)(
        *map(list, zip(*pairs, strict=True)),
        padding=True,
        truncation=True,
        max_length=128,
        return_tensors="np",
    )
    found = session.run(None, {node.name: tokens[node.name] for node in session.get_inputs()})[0]
    np.testing.assert_allclose(found, logits_of(folder, pairs), atol=LOGIT_ERROR)


def test_graphs_of_others_that_give_logits(
    tiny_cross_encoder, tiny_reranker, tiny_bundle, tmp_path, pairs
):
    """As optimum and transformers.js publish them: without weights beside the graph."""
    folder, bundle = tmp_path / "published", tiny_reranker("bert")
    shutil.copytree(tiny_cross_encoder("bert"), folder, ignore=lambda *_: ["model.safetensors"])
    graph = folder / "onnx" / "model.onnx"
    graph.parent.mkdir()
    shutil.copy(bundle / "onnx" / "model.onnx", graph)
    expected = Reranker.load(bundle, threads=1, providers="cpu").predict(pairs)
    with Reranker.load(folder, threads=1) as reranker:
        assert (reranker.labels, reranker.activation) == (("LABEL_0",), "sigmoid")
        np.testing.assert_allclose(reranker.predict(pairs), expected, atol=SCORE_ERROR)
    change(folder / "config.json", id2label={"0": "no", "1": "yes"})
    with pytest.raises(BundleError, match=r"gives 1 logits, config.json names 2 labels"):
        Reranker.load(folder)
    shutil.copy(tiny_bundle("bert") / "onnx" / "model.onnx", graph)
    with pytest.raises(BundleError, match=r"model.onnx gives no logits of pairs"):
        Reranker.load(folder)


@pytest.mark.full
def test_the_last_token_must_not_be_that_of_padding(tiny_cross_encoder, tmp_path):
    """transformers looks for the last one that is not."""
    folder = shutil.copytree(tiny_cross_encoder("qwen3"), tmp_path / "model")
    change(folder / "config.json", pad_token_id=3)
    change(folder / "tokenizer_config.json", pad_token="[SEP]")
    with pytest.raises(BundleError, match=r"model scores the last .* padding behind every pair"):
        Reranker.load(folder)
    with pytest.raises(ModelError, match="puts the token of padding behind every pair"):
        export_bundle(ExportConfig(str(folder), tmp_path / "bundle"))


@pytest.mark.full
@pytest.mark.parametrize(
    ("family", "config"),
    [
        ("modernbert", {"classifier_pooling": "mean", "classifier_activation": "silu"}),
        ("deberta-v2", {"pooler_hidden_act": "gelu_new"}),
        ("bert", {"problem_type": "single_label_classification"}),
    ],
)
def test_several_labels_and_settings(family, config, made_once, words, pairs):
    def export(out):
        make_model(family, out / "model", words, labels=3, config=config)
        export_bundle(ExportConfig(str(out / "model"), out / "bundle"))

    folder = made_once(f"labels/{family}", export)
    expected = logits_of(folder / "model", pairs)
    peer = CrossEncoder(str(folder / "model"), device="cpu")
    reranker = Reranker.load(folder / "bundle", threads=1)
    assert reranker.labels == ("LABEL_0", "LABEL_1", "LABEL_2")
    np.testing.assert_allclose(reranker.predict(pairs), expected, atol=LOGIT_ERROR)
    np.testing.assert_allclose(reranker.predict(pairs), peer.predict(pairs), atol=LOGIT_ERROR)
    soft = reranker.predict(pairs, activation="softmax")
    np.testing.assert_allclose(soft, peer.predict(pairs, apply_softmax=True), atol=2 * SCORE_ERROR)


DECLARED = [("new", "Identity"), ("config", "Sigmoid"), ("old", "Tanh"), ("old", "Identity"),
            ("new", "Tanh")]  # fmt: skip


@pytest.mark.parametrize("declared", tiers(DECLARED, fast=DECLARED[:1]))
def test_the_declared_activation(declared, tiny_cross_encoder, tmp_path, pairs):
    """In a folder that the library saved, and as its earlier versions declared it."""
    form, name = declared
    folder, activation = tmp_path / "model", getattr(torch.nn, name)()
    peer = CrossEncoder(str(tiny_cross_encoder("bert")), activation_fn=activation, device="cpu")
    if form == "new":
        peer.save_pretrained(str(folder))
    else:
        shutil.copytree(tiny_cross_encoder("bert"), folder)
        path = f"torch.nn.modules.activation.{name}"
        key = "sbert_ce_default_activation_function"
        values = {key: path} if form == "old" else {
            "sentence_transformers": {"activation_fn": path, "version": "5.0.0"}
        }  # fmt: skip
        change(folder / "config.json", **values)
    export_bundle(ExportConfig(str(folder), tmp_path / "bundle"))
    reranker = Reranker.load(tmp_path / "bundle", threads=1)
    assert reranker.activation == name.lower()
    np.testing.assert_allclose(reranker.predict(pairs), peer.predict(pairs), atol=LOGIT_ERROR)


def test_what_cannot_be_exported(tiny_cross_encoder, tiny_bert, tmp_path, words):
    def export(folder, **options):
        return export_bundle(ExportConfig(str(folder), tmp_path / "bundle", **options))

    headless = shutil.copytree(tiny_bert, tmp_path / "headless")
    change(headless / "config.json", architectures=["BertForSequenceClassification"])
    with pytest.raises(ModelError, match=r"the weights lack bert|the weights lack classifier"):
        export(headless)
    with pytest.raises(ModelError, match="the head of its family is not known"):
        export(make_model("rembert", tmp_path / "rembert", words, labels=1))
    with pytest.raises(ModelError, match="classifier_pooling is 'late', which has no"):
        late = {"classifier_pooling": "late"}
        export(make_model("eurobert", tmp_path / "late", words, labels=1, config=late))
    odd = {"classifier_activation": "mish"}
    with pytest.raises(ModelError, match="classifier_activation is 'mish'"):
        export(make_model("modernbert", tmp_path / "odd", words, labels=1, config=odd))
    strange = shutil.copytree(tiny_cross_encoder("bert"), tmp_path / "strange")
    settings = {"model_type": "CrossEncoder", "activation_fn": "torch.nn.modules.activation.ELU"}
    (strange / "config_sentence_transformers.json").write_text(json.dumps(settings))
    with pytest.raises(ModelError, match=r"declares the activation 'torch.nn.*ELU'"):
        export(strange)
    with pytest.raises(ValueError, match="truncate_dim and parity_pairs are for encoders"):
        export(tiny_cross_encoder("bert"), truncate_dim=8)
    assert not (tmp_path / "bundle").exists()


def test_its_encoder_alone(tiny_cross_encoder, made_once):
    """With a pooling, the encoder is exported as before, and the head is left out."""

    def export(out):
        export_bundle(ExportConfig(str(tiny_cross_encoder("bert")), out, pooling="mean"))

    folder = made_once("bundles/encoder-of-a-reranker", export)
    assert Manifest.read(folder).scores is None
    assert Encoder.load(folder, threads=1).encode(["a text"]).shape == (1, 32)


@pytest.mark.full
@pytest.mark.parametrize("family", ["bert", "distilbert"])
def test_precisions(family, tiny_cross_encoder, tmp_path, pairs):
    options = {"precisions": ("fp32", "fp16", "bf16", "int8"), "targets": ("cpu", "cuda", "native")}
    config = ExportConfig(str(tiny_cross_encoder(family)), tmp_path / "bundle", **options)
    manifest = export_bundle(config)
    assert {name for name, variant in manifest.variants.items() if variant.unchecked} <= {
        "fp32-cuda", "fp16-cuda", "bf16-cuda",
    }  # fmt: skip
    exact = Reranker.load(tmp_path / "bundle", threads=1).predict(pairs, activation="identity")
    for name in ("fp16", "int8", "bf16-native", "int8-native"):
        parity = manifest.variants[name].parity
        assert parity["correlation"] >= parity["gate"]["correlation"] >= 0.99
        native = {"providers": "native"} if "native" in name else {"providers": "cpu"}
        variant = name.removesuffix("-native")
        reranker = Reranker.load(tmp_path / "bundle", threads=1, variant=variant, **native)
        assert np.corrcoef(reranker.predict(pairs, activation="identity"), exact)[0, 1] > 0.98
    assert Manifest.read(tmp_path / "bundle", "mirror_rt cross-encoder") == manifest


def test_every_family_of_tiny_models_has_a_head():
    assert {*TINY, *UNFUSED} - {*HEADED} == {"rembert"}
    assert {*HEADED} == {*FAMILIES}
