"""The bundle of a sparse encoder: its graphs, its head and its table for queries."""

import json
import shutil

import numpy as np
import pytest

from json_files import change
from mirror_export import ExportConfig, export_bundle
from mirror_rt import BundleError, Encoder, ModelError, ParityError, SparseEncoder
from mirror_rt.bundle.manifest import Layout
from mirror_rt.bundle.word_layers import WordLayers
from rounding import GATE


@pytest.fixture(scope="module")
def bundle(made_once, tiny_sparse):
    def export(out):
        precisions = ("fp32", "int8")
        config = ExportConfig(str(tiny_sparse("bert", looks_up=True)), out, precisions=precisions,
                              targets=("cpu", "native"))  # fmt: skip
        export_bundle(config)

    return made_once("sparse-bundles/bert", export)


@pytest.fixture(scope="module")
def texts(words):
    return [" ".join(words[i : i + n]) for i, n in enumerate((1, 3, 20, 60, 200))]


def test_the_weights_of_the_folder(bundle, tiny_sparse, texts):
    expected = SparseEncoder.load(tiny_sparse("bert", looks_up=True), threads=1)
    for providers in ("cpu", "native"):
        with SparseEncoder.load(bundle, threads=1, providers=providers) as encoder:
            for task in ("encode_document", "encode_query"):
                found = getattr(encoder, task)(texts).toarray()
                wanted = getattr(expected, task)(texts).toarray()
                np.testing.assert_allclose(found, wanted, atol=GATE)
    found = SparseEncoder.load(bundle, threads=1, variant="int8").encode(texts).toarray()
    wanted = expected.encode(texts).toarray()
    cosines = (found * wanted).sum(1) / np.linalg.norm(found, axis=1)
    assert (cosines / np.linalg.norm(wanted, axis=1)).min() > 0.97


def test_what_its_manifest_says(bundle):
    manifest = json.loads((bundle / Layout.manifest).read_text())
    assert manifest["format"] == "mirror_rt sparse encoder"
    assert manifest["words"]["query_length"] == 128
    assert {WordLayers.file, WordLayers.table} <= manifest["files"].keys()
    assert all(one["parity"]["passed"] for one in manifest["variants"].values())
    assert "SparseEncoder.load" in (bundle / Layout.card).read_text()
    with pytest.raises(BundleError, match=r"mirror_rt.SparseEncoder.load takes it"):
        Encoder.load(bundle)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"size": 7}, r"decoder.weight has the shape"),
        ({"activation": "mish"}, "words.activation"),
        ({"query_length": 0}, "words.query_length"),
    ],
)
def test_a_changed_manifest(changes, said, bundle, tmp_path):
    folder = shutil.copytree(bundle, tmp_path / "bundle")
    manifest = json.loads((folder / Layout.manifest).read_text())
    change(folder / Layout.manifest, words=manifest["words"] | changes)
    with pytest.raises(BundleError, match=said):
        SparseEncoder.load(folder)


def test_a_head_that_was_changed(bundle, tmp_path):
    folder = shutil.copytree(bundle, tmp_path / "bundle")
    path = folder / WordLayers.file
    content = bytearray(path.read_bytes())
    content[-9] ^= 1
    path.write_bytes(content)
    with pytest.raises(BundleError, match=r"words.safetensors"):
        SparseEncoder.load(folder)
    path.unlink()
    with pytest.raises(BundleError, match=r"words.safetensors"):
        SparseEncoder.load(folder, verify=False)


def test_queries_in_other_tokens_are_refused(tiny_sparse, tmp_path):
    folder = shutil.copytree(tiny_sparse("bert", looks_up=True), tmp_path / "model")
    tokenizer = folder / "query_0_SparseStaticEmbedding" / "tokenizer.json"
    change(tokenizer, normalizer={"type": "NFC"})
    with pytest.raises(ModelError, match="other tokens than documents"):
        export_bundle(ExportConfig(str(folder), tmp_path / "bundle"))


def test_a_head_that_differs_from_pytorch(tiny_sparse, tmp_path, monkeypatch):
    from mirror_export.kinds import words

    take = words.take_words
    monkeypatch.setattr(
        words, "take_words", lambda *given: (made := take(*given)) | {
            "decoder.bias": made["decoder.bias"] + 1
        },
    )  # fmt: skip
    with pytest.raises(ParityError, match="differs from PyTorch"):
        export_bundle(ExportConfig(str(tiny_sparse("distilbert")), tmp_path / "bundle"))
