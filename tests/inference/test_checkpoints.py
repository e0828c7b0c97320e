"""Weights in safetensors as hubs hold them: the bits of the bundle made of the same folder."""

import contextlib
import functools
import json
import shutil
from itertools import pairwise

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import (
    Dense,
    Normalize,
    Pooling,
    Transformer,
)
from transformers import AutoModel, AutoTokenizer
from transformers.models.deberta_v2.modeling_deberta_v2 import make_log_bucket_position

from json_files import change
from mirror_rt import BundleError, ConfigError, Encoder, Reranker
from mirror_rt.bundle.declared_keys import LEDGER
from mirror_rt.bundle.families import FAMILIES
from mirror_rt.bundle.identity import digest_of
from mirror_rt.inference.native.runner import buckets
from rounding import RUN_ERROR
from tiers import tiers
from tiny_models import SENTENCES, TINY, UNFUSED, make_model

NATIVE = [name for name, row in FAMILIES.items() if row.tensors is not None]
HEADED = [name for name in NATIVE if FAMILIES[name].classifier is not None]
PRECISIONS = ("fp32", "bf16", "int8")
TEXTS = [*SENTENCES, "the river " * 90, "a"]
WEIGHTS = "model.safetensors"


@pytest.fixture
def copy(tiny_model, tmp_path):
    """Copy the folder of a family's tiny model; change the values of its config.json."""

    def make(family="bert", **config):
        folder = tmp_path / family
        shutil.copytree(tiny_model(family), folder)
        change(folder / "config.json", **config)
        return folder

    return make


def rename(folder, named):
    """Write the weights under other names; `named` returns None for one that is left out."""
    pairs = [(named(name), weight) for name, weight in load_file(folder / WEIGHTS).items()]
    save_file({name: weight for name, weight in pairs if name}, folder / WEIGHTS)


def encode(folder, variant="fp32", **options):
    with Encoder.load(folder, variant=variant, pooling="mean", **options) as encoder:
        assert encoder.providers == ["native"]
        return encoder.encode(TEXTS)


@pytest.mark.parametrize("family", tiers(NATIVE, fast=("bert", "modernbert")))
def test_bits_are_those_of_the_bundle(family, tiny_model, tiny_bundle):
    pooling, folder = (TINY | UNFUSED)[family].pooling, tiny_model(family)
    for precision in PRECISIONS:
        with Encoder.load(folder, variant=precision, pooling=pooling) as encoder:
            found = encoder.encode(TEXTS)
        with Encoder.load(tiny_bundle(family), variant=precision, providers="native") as exported:
            assert encoder.max_length == exported.max_length
            np.testing.assert_array_equal(found, exported.encode(TEXTS))
    peer = SentenceTransformer(
        modules=[Transformer(str(folder)), Pooling(32, pooling), Normalize()]
    )
    with Encoder.load(folder, pooling=pooling) as encoder:
        np.testing.assert_allclose(encoder.encode(TEXTS), peer.encode(TEXTS), atol=RUN_ERROR)


@pytest.mark.parametrize("family", tiers(HEADED, fast=("bert", "modernbert")))
def test_scores_are_those_of_the_bundle(family, tiny_cross_encoder, tiny_reranker):
    pairs = [(a, b) for a in TEXTS[:3] for b in TEXTS[3:]]
    for precision in PRECISIONS:
        with (
            Reranker.load(tiny_cross_encoder(family), variant=precision) as reranker,
            Reranker.load(tiny_reranker(family), variant=precision, providers="native") as other,
        ):
            assert reranker.labels == other.labels
            np.testing.assert_array_equal(reranker.predict(pairs), other.predict(pairs))


@pytest.mark.parametrize(
    "named",
    [
        lambda name: f"bert.{name}",
        lambda name: f"0.auto_model.{name}",
        lambda name: f"model.bert.{name}",
        lambda name: name.replace("LayerNorm.weight", "LayerNorm.gamma").replace(
            "LayerNorm.bias", "LayerNorm.beta"
        ),
    ],
)
def test_names_of_other_libraries(named, copy):
    folder = copy()
    expected = encode(folder)
    rename(folder, named)
    np.testing.assert_array_equal(encode(folder), expected)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_weights_of_two_bytes(dtype, copy):
    folder = copy()
    weights = {name: w.to(dtype) for name, w in load_file(folder / WEIGHTS).items()}
    save_file(weights, folder / WEIGHTS)
    found = encode(folder)
    save_file({name: w.to(torch.float32) for name, w in weights.items()}, folder / WEIGHTS)
    np.testing.assert_array_equal(found, encode(folder))


def test_weights_in_several_files(copy):
    folder = copy()
    expected = encode(folder)
    AutoModel.from_pretrained(folder).save_pretrained(folder / "shards", max_shard_size="40KB")
    (folder / WEIGHTS).unlink()
    for path in (folder / "shards").glob("*safetensors*"):
        path.rename(folder / path.name)
    assert len([*folder.glob("*.safetensors")]) > 2
    before = digest_of(folder)
    np.testing.assert_array_equal(encode(folder), expected)
    shard = min(folder.glob("*.safetensors"))
    save_file({name: w + 1 for name, w in load_file(shard).items()}, shard)
    assert digest_of(folder) != before
    shard.unlink()
    with pytest.raises(BundleError, match="is not there: fetch all files"):
        encode(folder)
    change(folder / f"{WEIGHTS}.index.json", weight_map={"x": "../x.safetensors"})
    with pytest.raises(BundleError, match="inside the folder"):
        encode(folder)


def lacking(name):
    return lambda one: None if one == name else one


@pytest.mark.parametrize(
    ("named", "message"),
    [
        (lacking("embeddings.LayerNorm.weight"), "lacks the tensor embeddings.LayerNorm.weight"),
        (lacking("encoder.layer.1.output.dense.bias"), "lacks the tensor encoder.layer.1"),
        (
            lambda name: name.replace("layer.0.output", "layer.0.attention.output"),
            "which its config.json",
        ),
        (lambda name: name.replace("encoder.layer.1", "encoder.layer.7"), "lacks the tensor"),
        (lambda name: f"base_model.model.{name}", "lacks the tensor"),
    ],
)
def test_other_tensors_are_refused(named, message, copy):
    folder = copy()
    rename(folder, named)
    with pytest.raises(BundleError, match=message):
        encode(folder)


def test_tensors_that_nothing_takes_are_refused(copy):
    folder = copy(num_hidden_layers=1)
    with pytest.raises(BundleError, match=r"has the tensor 'encoder.layer.1.*does not describe"):
        encode(folder)


@pytest.mark.parametrize(
    ("tensor", "shape"),
    [
        ("embeddings.word_embeddings.weight", (900, 31)),
        ("embeddings.position_embeddings.weight", (128, 16)),
        ("encoder.layer.0.attention.self.key.weight", (32, 16)),
        ("encoder.layer.1.intermediate.dense.weight", (64, 16)),
        ("encoder.layer.1.intermediate.dense.bias", (63,)),
        ("encoder.layer.1.output.LayerNorm.bias", (2, 16)),
        ("encoder.layer.1.output.dense.weight", (32,)),
    ],
)
def test_tensors_of_other_shapes_are_refused(tensor, shape, copy):
    folder = copy()
    weights = load_file(folder / WEIGHTS)
    save_file(weights | {tensor: torch.zeros(shape)}, folder / WEIGHTS)
    with pytest.raises(BundleError):
        encode(folder)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (
            {"model_type": "t5"},
            "is of the family t5, and the native engine computes bert, .*export",
        ),
        ({"auto_map": {"AutoModel": "x.Y"}}, r"code of its own \(auto_map\).*mirror-rt export"),
        ({"is_decoder": True}, "does not compute is_decoder True"),
        ({"position_embedding_type": "relative_key"}, "position_embedding_type 'relative_key'"),
        ({"hidden_act": "mish"}, "the activation 'mish'"),
        ({"num_attention_heads": 5}, "5 heads of 32 numbers"),
        ({"num_hidden_layers": 10**9}, "num_hidden_layers 1000000000"),
        ({"num_hidden_layers": 10**6}, "1000000 layers"),
        ({"num_attention_heads": None}, "num_attention_heads None"),
        ({"quantization_config": {"bits": 4}}, "quantization_config"),
    ],
)
def test_other_models_are_refused(config, message, copy):
    with pytest.raises(BundleError, match=message):
        encode(copy(**config))


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"attention_bias": True}, "attention_bias True"),
        ({"layer_types": ["full_attention"]}, "layer_types"),
        ({"rope_parameters": {"full_attention": {"rope_type": "yarn"}}}, "a rotation by"),
        ({"local_attention": 0}, "local_attention 0"),
    ],
)
def test_other_modern_models_are_refused(config, message, copy):
    with pytest.raises(BundleError, match=message):
        encode(copy("modernbert", **config))


@pytest.mark.parametrize("family", [name for name in NATIVE if FAMILIES[name].tensors.causal])
@pytest.mark.parametrize(
    "config",
    tiers(
        [{"is_causal": True}, {"is_causal": False}, {"is_causal": None},
         {"use_bidirectional_attention": True, "is_causal": True}],
        fast=(),
    ),
    ids=str,
)  # fmt: skip
def test_which_tokens_a_decoder_attends_to(family, config, tmp_path, words):
    """As in transformers, where one family alone knows the second field, or refused."""
    folder = make_model(family, tmp_path / "model", words)
    change(folder / "config.json", use_bidirectional_attention=False)
    change(folder / "config.json", **config)
    peer = SentenceTransformer(modules=[Transformer(str(folder)), Pooling(32, "mean"), Normalize()])
    try:
        found = encode(folder)
    except BundleError as error:
        assert "is_causal None" in str(error) or "a window of 16 tokens" in str(error)  # noqa: PT017
        return
    np.testing.assert_allclose(found, peer.encode(TEXTS), atol=RUN_ERROR)


def test_mixtures_of_experts_are_refused(copy):
    with pytest.raises(BundleError, match="does not compute moe_every_n_layers 2"):
        encode(copy("nomic_bert", moe_every_n_layers=2))


def test_what_a_family_refuses_is_read():
    """A key that is in no ledger is left out of what is known of config.json."""
    for name, family in FAMILIES.items():
        for key in family.tensors.plain if family.tensors else ():
            assert key in LEDGER["config.json"], name


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"conv_kernel_size": 3}, "conv_kernel_size 3"),
        ({"share_att_key": False}, "share_att_key False"),
        ({"relative_attention": False}, "relative_attention False"),
        ({"position_biased_input": True}, "position_biased_input True"),
        ({"norm_rel_ebd": "none"}, "norm_rel_ebd 'none'"),
        ({"pos_att_type": ["c2p"]}, "pos_att_type"),
        ({"position_buckets": 300}, "300 buckets of 128 distances"),
        ({"position_buckets": 20}, r"rel_embeddings.* is \[32, 32\], the others say \[40, 32\]"),
        ({"max_relative_positions": 1.5}, "max_relative_positions 1.5"),
    ],
)
def test_other_models_of_deberta_are_refused(config, message, copy):
    with pytest.raises(BundleError, match=message):
        encode(copy("deberta-v2", **config))


@pytest.mark.parametrize(
    "config",
    [{"position_buckets": -1, "max_relative_positions": 9}, {"max_relative_positions": 20}],
)
def test_distances_of_deberta(config, tmp_path, words):
    folder = make_model("deberta-v2", tmp_path, words, config=config)
    peer = SentenceTransformer(modules=[Transformer(str(folder)), Pooling(32, "mean"), Normalize()])
    np.testing.assert_allclose(encode(folder), peer.encode(TEXTS), atol=RUN_ERROR)


@pytest.mark.parametrize("sizes", [(256, 512), (16, 128), (32, 512), (3, 100), (256, 24_528)])
def test_buckets_are_those_of_transformers(sizes):
    span, farthest = sizes
    distances = torch.arange(-1999, 2000)
    expected = make_log_bucket_position(distances, span, farthest).long() + span
    found = buckets(span, farthest, 2000)
    last = 2 * span - 1
    np.testing.assert_array_equal(last - found[::-1], expected.clamp(0, last).numpy())


def test_other_files_are_refused(copy, tmp_path):
    folder = copy()
    weights = load_file(folder / WEIGHTS)
    names = {name: (w * 100).to(torch.int8) if w.dim() == 2 else w for name, w in weights.items()}
    save_file(names, folder / WEIGHTS)
    with pytest.raises(BundleError, match=r"of type I8.*not quantised"):
        encode(folder)
    save_file(weights | {"bert.embeddings.LayerNorm.bias": torch.ones(32)}, folder / WEIGHTS)
    with pytest.raises(BundleError, match="is there already"):
        encode(folder)
    (folder / "adapter_config.json").write_text("{}")
    with pytest.raises(BundleError, match="declares an adapter"):
        encode(folder)
    (folder / "adapter_config.json").unlink()
    (folder / WEIGHTS).rename(folder / "pytorch_model.bin")
    with pytest.raises(BundleError, match=r"pytorch_model.bin.*mirror-rt export"):
        encode(folder)


def test_a_reranker_takes_cross_encoders_alone(tiny_bert, static_bundle, bundle_copy):
    (bundle_copy / "mirror.json").unlink()  # ONNX files are left
    for folder, message in [
        (tiny_bert, "scores no pairs"),
        (static_bundle, "scores no pairs|mirror_rt.Encoder.load takes it"),
        (bundle_copy, "is a SentenceTransformer of sentence-transformers, expected a CrossEncoder"),
    ]:
        with pytest.raises(BundleError, match=message):
            Reranker.load(folder)


def test_options_that_need_a_graph_are_refused(tiny_bert):
    with pytest.raises(ConfigError, match=r"providers='cuda' needs a graph.*mirror-rt export"):
        encode(tiny_bert, providers="cuda")
    with pytest.raises(BundleError, match="declares no pooling"):
        Encoder.load(tiny_bert)
    with pytest.raises(ConfigError, match=r"cuda_graphs.*is for NVIDIA cards"):
        encode(tiny_bert, cuda_graphs=True)


LAYERS = {
    "a cut": (32, lambda: [Normalize()]),
    "a layer": (32, lambda: [Dense(32, 24, activation_function=torch.nn.GELU())]),
    "layers and a cut": (64, lambda: [
        Dense(64, 48), Normalize(), Dense(48, 24, bias=False), Normalize(),
    ]),
}  # fmt: skip


@pytest.mark.parametrize("case", tiers(LAYERS, fast=["layers and a cut"]))
def test_layers_behind_the_pooling(case, tiny_bert, tmp_path):
    from mirror_export import ExportConfig, export_bundle

    width, layers = LAYERS[case]
    torch.manual_seed(1)
    modes = ("cls", "mean") if width == 64 else "mean"
    modules = [Transformer(str(tiny_bert)), Pooling(32, modes), *layers()]
    cut = {"truncate_dim": 20} if "cut" in case else {}
    peer = SentenceTransformer(modules=modules, **cut)
    folder = tmp_path / "saved"
    peer.save(str(folder))
    if cut:
        change(folder / "config_sentence_transformers.json", **cut)
    expected = peer.encode(TEXTS)
    if cut:  # we normalise behind it
        expected /= np.linalg.norm(expected, axis=1, keepdims=True)
    export_bundle(ExportConfig(str(folder), tmp_path / "bundle"))
    for precision in PRECISIONS:
        with (
            Encoder.load(folder, variant=precision) as encoder,
            Encoder.load(tmp_path / "bundle", variant=precision, providers="native") as exported,
        ):
            found = encoder.encode(TEXTS)
            np.testing.assert_array_equal(found, exported.encode(TEXTS))
            alone = np.stack([encoder.encode(text) for text in TEXTS])
            np.testing.assert_array_equal(found, alone)
            if precision == "fp32":
                np.testing.assert_allclose(found, expected, atol=RUN_ERROR)
    with Encoder.load(tmp_path / "bundle", providers="cpu") as exported:
        np.testing.assert_allclose(exported.encode(TEXTS), expected, atol=RUN_ERROR)


def test_other_layers_are_refused(tiny_bert, tmp_path):
    modules = [Transformer(str(tiny_bert)), Pooling(32, "mean"), Dense(32, 16)]
    folder = tmp_path / "saved"
    SentenceTransformer(modules=modules).save(str(folder))
    place = folder / "2_Dense"
    for values, message in [
        ({"in_features": 31}, "a Dense of 31 features behind 32"),
        ({"use_residual": True}, "a Dense that is not applied here"),
        ({"activation_function": "torch.nn.PReLU"}, "the activation 'torch.nn.PReLU'"),
        ({"activation_function": "os.system"}, "a Dense that is not applied here"),
        ({"out_features": 2**40}, "outputs is 1099511627776"),
        ({"out_features": 15}, r"linear.weight is \[16, 32\], not \[15, 32\]"),
    ]:
        written = (place / "config.json").read_text()
        change(place / "config.json", **values)
        with pytest.raises(BundleError, match=message):
            Encoder.load(folder).encode("a")
        (place / "config.json").write_text(written)
    (place / WEIGHTS).unlink()
    with pytest.raises(BundleError, match="is not there: fetch all files"):
        Encoder.load(folder)


SETTINGS = [
    {},
    {"do_lower_case": False},
    {"do_lower_case": False, "strip_accents": True},
    {"strip_accents": False},
    {"tokenize_chinese_chars": False},
]


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_a_vocabulary_in_the_place_of_a_tokenizer(settings, copy):
    folder = copy()
    vocabulary = json.loads((folder / "tokenizer.json").read_text())["model"]["vocab"]
    lines = sorted(vocabulary, key=vocabulary.get)
    (folder / "vocab.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    (folder / "tokenizer.json").unlink()
    options = {"tokenizer_class": "BertTokenizer", "model_max_length": 128}
    (folder / "tokenizer_config.json").write_text(json.dumps(options | settings))
    peer = AutoTokenizer.from_pretrained(folder)
    texts = [*SENTENCES, "Ünïcödé ÉCOLE [MASK] de l'été", "[CLS] naïve [SEP]", "日本 x ##s [UNK]"]
    with Encoder.load(folder, pooling="mean") as encoder:
        found = encoder.pipeline.tokenizer(texts).tokens
        ids = [found.ids[a:b].tolist() for a, b in pairwise(found.offsets)]
    assert ids == peer(texts, truncation=True, max_length=128)["input_ids"]
    (folder / "added_tokens.json").write_text("{}")
    with pytest.raises(BundleError, match=r"added_tokens.json.*save the tokenizer with transf"):
        encode(folder)
    (folder / "added_tokens.json").unlink()
    (folder / "vocab.txt").write_text("\n".join(lines[5:]), encoding="utf-8")
    with pytest.raises(BundleError, match=r"does not hold all tokens \(\[CLS\], \[MASK\]"):
        encode(folder)
    change(folder / "tokenizer_config.json", tokenizer_class="MPNetTokenizer")
    with pytest.raises(BundleError, match="vocabulary of a MPNetTokenizer"):
        encode(folder)


def test_one_rule_says_which_files_are_taken(bundle, tiny_bert, tmp_path, cli, monkeypatch):
    folder = tmp_path / "both"
    shutil.copytree(bundle, folder)
    shutil.copy(tiny_bert / WEIGHTS, folder)
    assert "(mirror_rt bundle" in cli("info", folder).out
    (folder / "mirror.json").unlink()
    assert "(ONNX files" in cli("info", folder).out
    load = functools.partial(Encoder.load, providers="native")
    with load(folder) as encoder, load(bundle) as exported:
        assert encoder.manifest.format == "safetensors files"
        np.testing.assert_array_equal(encoder.encode(TEXTS), exported.encode(TEXTS))
    found = "mirror_rt.inference.load_options.find_spec"
    monkeypatch.setattr(found, lambda name: None)  # no onnxruntime
    shown = cli("info", folder).out
    assert "(safetensors files" in shown
    assert "None" not in shown
    assert Encoder.load(folder).providers == ["native"]


@pytest.mark.parametrize("families", tiers([(), NATIVE], fast=[()]), ids=len)
def test_from_a_hub(families, tiny_bert, tiny_model, tiny_cross_encoder, hub, tmp_path):
    AutoModel.from_pretrained(tiny_bert).save_pretrained(tmp_path, max_shard_size="40KB")
    for name, folder in (("owner/one", tiny_bert), ("owner/shards", tmp_path)):
        files = {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}
        others = {path.name: path.read_bytes() for path in tiny_bert.glob("tok*.json")}
        hub.add(name, files | others | {"pytorch_model.bin": b"not needed"})
        found = encode(name)
        assert not [line for line in hub.requests if "pytorch_model.bin" in line]
        np.testing.assert_array_equal(found, encode(tiny_bert))
        np.testing.assert_array_equal(found, encode(name, offline=True))
    for family in families:
        folder = tiny_model(family)
        files = {p.name: p.read_bytes() for p in folder.iterdir() if p.is_file()}
        hub.add(f"owner/{family}", files)
        np.testing.assert_array_equal(encode(f"owner/{family}"), encode(folder))
    pairs = tiny_cross_encoder("bert")
    hub.add("owner/pairs", {p.name: p.read_bytes() for p in pairs.iterdir() if p.is_file()})
    with Reranker.load("owner/pairs") as reranker, Reranker.load(pairs) as local:
        np.testing.assert_array_equal(reranker.predict([("a", "b")]), local.predict([("a", "b")]))


@pytest.mark.parametrize("families", tiers([(), NATIVE], fast=[()]), ids=len)
def test_numpy_and_tokenizers_are_enough(
    families, tiny_bert, tiny_model, tiny_bundle, tiny_cross_encoder, command_in_child, tmp_path
):
    cache, poolings = tmp_path / "vectors.db", TINY | UNFUSED
    models = [
        (str(tiny_model(one)), str(tiny_bundle(one)), poolings[one].pooling) for one in families
    ]
    out = command_in_child(
        "import sys\n"
        "for name in ('torch', 'transformers', 'onnxruntime', 'onnx', 'safetensors'):\n"
        "    sys.modules[name] = None\n"
        "from mirror_rt import Encoder, Reranker\n"
        f"for folder, bundle, pooling in {models!r}:\n"
        "    with Encoder.load(folder, pooling=pooling) as one, Encoder.load(bundle) as other:\n"
        "        assert one.providers == other.providers == ['native']\n"
        f"        assert (one.encode({TEXTS!r}) == other.encode({TEXTS!r})).all()\n"
        f"encoder = Encoder.load({str(tiny_bert)!r}, pooling='mean', cache={str(cache)!r})\n"
        "vectors = encoder.encode(['a river', 'the town'] * 20)\n"
        "assert (encoder.encode(['a river', 'the town'] * 20) == vectors).all()\n"
        f"scores = Reranker.load({str(tiny_cross_encoder('bert'))!r}).predict([('a', 'b')])\n"
        "print(vectors.shape, scores.shape, encoder.provider_reason)"
    )
    assert out.startswith("(40, 32) (1,) the native engine takes weights in safetensors")


@pytest.mark.parametrize(
    "family", tiers(["albert", "modernbert", "deberta-v2"], fast=["modernbert"])
)
def test_any_value_of_config_is_followed_or_refused(family, tiny_cross_encoder, tmp_path):
    """Each value is replaced by others of any type: no other error than ours, and no crash."""
    folder = tmp_path / "changed"
    shutil.copytree(tiny_cross_encoder(family), folder)
    path = folder / "config.json"
    written = json.loads(path.read_text())
    for key in written:
        for value in ([], {"a": [1]}, "x", 1.5, -1, 2**40, True, None):
            path.write_text(json.dumps(written | {key: value}))
            for kind, options in ((Encoder, {"pooling": "mean"}), (Reranker, {})):
                with contextlib.suppress(BundleError), kind.load(folder, **options) as loaded:
                    assert loaded.manifest.max_length <= 128


@pytest.mark.parametrize("seed", tiers(range(40), fast=range(4)))
def test_damaged_weights_are_refused(seed, tiny_bert, tmp_path):
    shutil.copytree(tiny_bert, tmp_path, dirs_exist_ok=True)
    whole, rng = (tiny_bert / WEIGHTS).read_bytes(), np.random.default_rng(seed)
    for _ in range(8):
        damaged = bytearray(whole[: rng.integers(1, len(whole))] if rng.random() < 0.3 else whole)
        for place in rng.integers(0, min(len(damaged), 4000), 3):
            damaged[place] = rng.integers(0, 256)
        (tmp_path / WEIGHTS).write_bytes(damaged)
        with contextlib.suppress(BundleError):
            encode(tmp_path)


def test_a_tuned_folder_runs_at_once(tuned, tmp_path, cli):
    from mirror_export import ExportConfig, export_bundle

    export_bundle(ExportConfig(str(tuned), tmp_path / "bundle"))
    with (
        Encoder.load(tuned, cache=tmp_path / "vectors.db") as encoder,
        Encoder.load(
            tmp_path / "bundle", cache=tmp_path / "others.db", providers="native"
        ) as other,
    ):
        np.testing.assert_array_equal(encoder.encode(TEXTS), other.encode(TEXTS))
        assert encoder.manifest.recipe is not None
    copy = shutil.copytree(tuned, tmp_path / "tuned")
    change(copy / "mirror.json", pooling="first-last-avg")
    with pytest.raises(BundleError, match=r"first-last-avg.*mirror-rt export"):
        Encoder.load(copy)
    change(copy / "1_Pooling/config.json", pooling_mode=["first-last-avg"],
           pooling_mode_mean_tokens=False, pooling_mode_cls_token=False)  # fmt: skip
    with pytest.raises(BundleError, match=r"graphs alone; make a bundle of it: mirror-rt export"):
        Encoder.load(copy, verify=False)
    shutil.copytree(tuned, copy, dirs_exist_ok=True)
    with (copy / WEIGHTS).open("r+b") as file:
        file.seek(-4, 2)
        file.write(b"abcd")
    with pytest.raises(BundleError, match="is damaged"):
        Encoder.load(copy)
