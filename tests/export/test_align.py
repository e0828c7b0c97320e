"""Aligning the languages of a pack, by dictionaries."""

import json

import numpy as np
import onnx
import pytest

from command_errors import one_line_error
from mirror_export import ExportConfig, export_bundle
from mirror_export.pack.mapped_bundle import copy_mapped
from mirror_rt import ConfigError, Encoder, LanguagePack, Manifest
from mirror_rt.bundle.description import describe_folder
from mirror_rt.bundle.pack_index import PackedBundle, PackIndex
from rounding import GATE, RUN_ERROR

SIZE = 32


@pytest.fixture(scope="module")
def base(all_variants):
    return all_variants("bert")


@pytest.fixture(scope="module")
def pack(base, words, tmp_path_factory):
    """English, and the same vectors turned in two ways as French and Italian; all know `words`."""
    folder = tmp_path_factory.mktemp("align") / "pack"
    random = np.random.default_rng(0)
    for name in ("en", "fr", "it"):
        turn = np.linalg.qr(random.normal(size=(SIZE, SIZE)))[0]
        (folder / name).mkdir(parents=True)
        copy_mapped(base, folder / name, turn, words[:20], language=name, space=name)
    entries = {name: PackedBundle.describe(folder, name, {}) for name in ("en", "fr", "it")}
    PackIndex(entries, default="en", fallback="en").write(folder)
    return folder


@pytest.fixture(scope="module")
def dictionaries(words, tmp_path_factory):
    folder = tmp_path_factory.mktemp("dictionaries")
    for name in ("en-fr.train.tsv", "fr-it.txt"):
        text = "".join(f"{word}\t{word}\n" for word in words)
        (folder / name).write_text(text, encoding="utf-8")
    return folder


def test_a_pack_becomes_one_space(pack, dictionaries, words, cli, tmp_path):
    before = (pack / "fr/onnx/model.onnx").read_bytes()
    given = (dictionaries / "en-fr.train.tsv", f"fr-it={dictionaries / 'fr-it.txt'}")
    options = [each for one in given for each in ("--dictionary", one)]
    result = cli("align", pack, *options, "--out", tmp_path / "one", "--json")
    assert result.code == 0, result.err
    report = json.loads(result.out)
    assert [(one["name"], one["to"], one["entries"]) for one in report] == [
        ("fr", "en", 400), ("it", "en", 400)]  # fmt: skip
    assert all(one["before"] < 0.5 < 0.95 < one["after"] for one in report)
    assert (pack / "fr/onnx/model.onnx").read_bytes() == before
    index = PackIndex.read(tmp_path / "one")
    assert (index.default, index.fallback) == ("en", "en")
    assert {entry.vector_space for entry in index.bundles.values()} == {"en"}
    texts = words[:30]
    assert Encoder.load(tmp_path / "one/fr", providers="native").providers == ["native"]
    exact = Encoder.load(tmp_path / "one/fr", providers="cpu").encode(texts)
    np.testing.assert_allclose(
        Encoder.load(tmp_path / "one/fr").encode(texts), exact, atol=RUN_ERROR
    )
    with LanguagePack.load(tmp_path / "one") as aligned:
        english, french, italian = (aligned.encode(texts, lang=tag) for tag in ("en", "fr", "it"))
        mixed = aligned.encode(["rain", "rain"], lang=["en", "it"])
    np.testing.assert_allclose(french, english, atol=GATE)
    np.testing.assert_allclose(italian, english, atol=GATE)
    assert mixed[0] @ mixed[1] > 0.999
    raw = Encoder.load(pack / "fr").encode(texts)
    np.testing.assert_allclose(french @ french.T, raw @ raw.T, atol=RUN_ERROR)
    manifest = Manifest.read(tmp_path / "one/fr")
    manifest.verify(tmp_path / "one/fr")
    assert manifest.alignment["dictionaries"][0]["name"] == "en-fr.train.tsv"
    int8 = Encoder.load(tmp_path / "one/fr", variant="int8").encode(texts)
    np.testing.assert_allclose(
        int8, Encoder.load(tmp_path / "one/en", variant="int8").encode(texts), atol=GATE
    )


def test_every_graph_and_the_modules_have_the_map(base, pack, words):
    modules = json.loads((pack / "fr/modules.json").read_text())
    assert [one["type"].rpartition(".")[2] for one in modules] == [
        "Transformer", "Pooling", "Dense", "Normalize"]  # fmt: skip
    from mirror_train.model.dense import load_dense

    dense = describe_folder(pack / "fr").modules[2]
    weight = load_dense(dense.declared).linear.weight.numpy()
    plain = Encoder.load(base).encode(words[:9])
    np.testing.assert_allclose(
        plain @ weight.T, Encoder.load(pack / "fr").encode(words[:9]), atol=RUN_ERROR
    )
    packed = onnx.load(pack / "fr/onnx/model_packed.onnx")  # with the weights of model.onnx
    stored = {one.name: one for one in packed.graph.initializer}
    np.testing.assert_array_equal(
        onnx.numpy_helper.to_array(stored["alignment.0.weight"]), weight.T
    )
    assert [one.name for one in packed.graph.output][:2] == [
        "sentence_embedding",
        "pooled_embedding",
    ]


@pytest.mark.full
def test_what_was_compared_in_the_engine_is_aligned_there(tiny_bert, words, tmp_path):
    precisions, targets = ("fp32", "int8"), ("cpu", "native")
    config = ExportConfig(str(tiny_bert), tmp_path / "base", "mean", precisions, targets)
    export_bundle(config)
    turn = np.linalg.qr(np.random.default_rng(1).normal(size=(SIZE, SIZE)))[0]
    copy_mapped(tmp_path / "base", tmp_path / "turned", turn, words[:20])
    before, after = (
        Encoder.load(tmp_path / name, providers="native", variant="int8")
        for name in ("base", "turned")
    )
    assert after.variant.target == "native"
    np.testing.assert_allclose(before.encode(words) @ turn, after.encode(words), atol=RUN_ERROR)


@pytest.mark.full
def test_bundles_of_the_same_weights_share_a_space(base, bundle, tiny_roberta, tmp_path):
    other = export_bundle(ExportConfig(str(tiny_roberta), tmp_path / "r", pooling="mean"))
    assert Manifest.read(base).space == Manifest.read(bundle).space
    assert other.space != Manifest.read(base).space


@pytest.mark.parametrize(
    ("options", "code", "contains"),
    [
        (["--dictionary", "words.tsv"], 2, "its name does not say the languages: expected en-fr"),
        (["--dictionary", "en-de=words.tsv"], 2, "has no 'de'; it has en, fr, it"),
        (["--dictionary", "fr-it=words.tsv"], 2, "no dictionary leads from en to another"),
        (["--dictionary", "en-fr=words.tsv"], 1, "have 3 words of fr, of which a tenth"),
        (["--dictionary", "en-fr=none.tsv"], 1, "none.tsv"),
        (["--dictionary", "en-fr=words.tsv", "--out", "."], 1, "exists"),
    ],
)
def test_what_cannot_be_aligned(pack, cli, tmp_path, monkeypatch, options, code, contains):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "words.tsv").write_text("a\tb\nc\td\ne\tf\n")
    before = (pack / "pack.json").read_bytes()
    one_line_error(cli("align", pack, *options), code=code, contains=contains)
    assert (pack / "pack.json").read_bytes() == before


def test_task_heads_do_not_go_with_a_map(base, tmp_path, monkeypatch):
    monkeypatch.setattr("mirror_export.pack.mapped_bundle.Heads.present", lambda folder: True)
    with pytest.raises(ConfigError, match="has task heads"):
        copy_mapped(base, tmp_path, np.eye(SIZE), ["a"])
