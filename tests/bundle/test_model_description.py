"""What the files of a model's folder declare, and that others' libraries take it the same way."""

import importlib
import inspect
import json

import numpy as np
import pytest
from transformers import AutoTokenizer
from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES
from transformers.models.auto.modeling_auto import MODEL_MAPPING_NAMES

from folder_contents import contents
from json_files import change
from ledger import PAGE, page
from mirror_rt import BundleError, ConfigError, Encoder
from mirror_rt.bundle.declared_keys import LEDGER, NO_EFFECT, REFUSED, USED
from mirror_rt.bundle.description import describe_folder
from mirror_rt.bundle.families import SHIFTED, positions
from onnx_folders import MODULES, publish
from rounding import RUN_ERROR
from tiers import tiers

TEXTS = ["The OLD Town", "der Fluß fließt, café naïve", "人人生而自由", "word " * 60, "İstanbul ﬁ"]


@pytest.fixture
def published(tiny_bundle, tmp_path):
    """Write the files of a tiny encoder as its ONNX files, and return their folder."""

    def write(family="bert", **options):
        return publish(tiny_bundle(family), tmp_path / "published", **options)

    return write


SETTINGS = [
    {"do_lower_case": False},
    {"do_lower_case": True},
    {"do_lower_case": False, "strip_accents": True},
    {"strip_accents": False},
    {"tokenize_chinese_chars": False},
    {"add_prefix_space": True},
    {"add_prefix_space": False},
    {"keep_accents": True},
    {"split_by_punct": True},
    {"truncation_side": "left", "model_max_length": 8},
    {"model_max_length": 10**30},
    {"tokenizer_class": "PreTrainedTokenizerFast", "do_lower_case": False},
    {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "truncation_side": "left",
        "model_max_length": 7,
    },
]
FAMILIES = {
    "bert": "BertTokenizerFast",
    "electra": "ElectraTokenizerFast",
    "distilbert": None,
    "mpnet": "MPNetTokenizer",
    "roberta": "RobertaTokenizer",
    "xlm-roberta": "XLMRobertaTokenizerFast",
    "albert": "AlbertTokenizer",
}


@pytest.mark.parametrize("family", tiers(FAMILIES, fast=("bert", "roberta", "albert")))
def test_settings_of_a_tokenizer_give_the_ids_of_transformers(published, family):
    folder = published(family, modules=False)
    path = folder / "tokenizer_config.json"
    written = json.loads(path.read_text()) | {"tokenizer_class": FAMILIES[family]}
    for settings in SETTINGS:
        path.write_text(json.dumps(written | settings))
        theirs = AutoTokenizer.from_pretrained(folder)
        with Encoder.load(folder, pooling="mean") as ours:
            most = min(theirs.model_max_length, ours.max_length)
            expected = theirs(TEXTS, truncation=True, max_length=most)["input_ids"]
            assert ours.tokenize(TEXTS) == expected, settings


@pytest.mark.parametrize("family", tiers(FAMILIES, fast=("bert", "roberta", "albert")))
def test_added_tokens_of_the_settings_alone_are_added(published, family):
    folder = published(family, modules=False)
    path = folder / "tokenizer_config.json"
    written = json.loads(path.read_text()) | {"tokenizer_class": FAMILIES[family]}
    tokenizer = AutoTokenizer.from_pretrained(folder)
    number = tokenizer.convert_tokens_to_ids("x")
    texts = [*TEXTS, "x", "box x  y", "x x"]
    for special, rstrip in [(False, True), (True, False)]:
        token = {"content": "x", "special": special, "rstrip": rstrip}
        token |= {"lstrip": False, "single_word": False, "normalized": False}
        path.write_text(json.dumps(written | {"added_tokens_decoder": {str(number): token}}))
        expected = AutoTokenizer.from_pretrained(folder)(texts)["input_ids"]
        with Encoder.load(folder, pooling="mean") as ours:
            assert ours.tokenize(texts) == expected
    path.write_text(json.dumps(written | {"added_tokens_decoder": {"one": token}}))
    with pytest.raises(BundleError, match=r"tokenizer_config\.json: added_tokens_decoder"):
        Encoder.load(folder, pooling="mean")


UNKNOWN = [
    ({"do_lower_case": True, "strip_accents": None, "tokenize_chinese_chars": True}, None),
    ({"add_prefix_space": False, "keep_accents": False}, None),
    ({"do_lower_case": False}, "do_lower_case False"),
    ({"do_lower_case": True, "tokenize_chinese_chars": False}, "tokenize_chinese_chars False"),
    ({"split_by_punct": True}, "split_by_punct True"),
    ({"add_prefix_space": True}, "add_prefix_space True"),
]


@pytest.mark.parametrize(("settings", "refused"), UNKNOWN)
def test_settings_of_an_unknown_class_are_those_of_the_file_or_refused(
    published, settings, refused
):
    folder = published(modules=False)
    change(folder / "tokenizer_config.json", tokenizer_class="UnheardOfTokenizer", **settings)
    if refused is None:
        expected = AutoTokenizer.from_pretrained(folder)(TEXTS)["input_ids"]
        assert Encoder.load(folder, pooling="mean").tokenize(TEXTS) == expected
        return
    named = rf"tokenizer_config\.json declares {refused}, .* UnheardOfTokenizer is not known here"
    with pytest.raises(BundleError, match=named):
        Encoder.load(folder, pooling="mean")


@pytest.mark.parametrize("name", ["add_bos_token", "add_eos_token"])
def test_special_tokens_that_take_the_place_of_those_of_the_file_are_refused(published, name):
    folder = published(modules=False)
    for value in (True, False):
        change(folder / "tokenizer_config.json", **{name: value})
        with pytest.raises(BundleError, match=rf"tokenizer_config\.json declares {name}, in place"):
            Encoder.load(folder, pooling="mean")
    template = {"type": "TemplateProcessing", "single": [{"Sequence": {"id": "A", "type_id": 0}}]}
    template |= {"pair": [*template["single"], {"Sequence": {"id": "B", "type_id": 1}}]}
    change(folder / "tokenizer.json", post_processor=template | {"special_tokens": {}})
    expected = AutoTokenizer.from_pretrained(folder)(TEXTS)["input_ids"]
    assert Encoder.load(folder, pooling="mean").tokenize(TEXTS) == expected


@pytest.mark.parametrize("side", ["left", "right"])
def test_long_texts_are_cut_with_their_prompts_on_the_declared_side(published, side):
    folder = published(modules=False)
    change(folder / "tokenizer_config.json", truncation_side=side, model_max_length=9)
    text, prompt = "the old river runs by a long town road", "a question: "
    theirs = AutoTokenizer.from_pretrained(folder)
    ours = Encoder.load(folder, pooling="mean")
    for given in (text, text * 400, "river"):
        expected = theirs([prompt + given], truncation=True)["input_ids"]
        found = ours.pipeline.tokenize([given], ours.pipeline.plan(prompt=prompt)).tokens
        assert found.ids.tolist() == expected[0]


def test_a_side_that_tokenizer_json_alone_declares(published):
    folder = published(modules=False)
    cut = {"direction": "Left", "max_length": 7, "strategy": "LongestFirst", "stride": 0}
    change(folder / "tokenizer.json", truncation=cut)
    change(folder / "tokenizer_config.json", model_max_length=12)
    values = json.loads((folder / "tokenizer_config.json").read_text())
    values.pop("truncation_side", None)
    (folder / "tokenizer_config.json").write_text(json.dumps(values))
    theirs = AutoTokenizer.from_pretrained(folder)
    ours = Encoder.load(folder, pooling="mean")
    assert ours.tokenize(TEXTS) == theirs(TEXTS, truncation=True)["input_ids"]


def test_the_own_vector_of_a_graph_is_its_vector(published, bundle):
    own, tokens = "sentence_embedding", "last_hidden_state"
    expected = Encoder.load(bundle).encode(TEXTS)
    for outputs in ((tokens, own), (own, tokens), (own,)):
        folder = published(modules=False, outputs=outputs)
        np.testing.assert_allclose(Encoder.load(folder).encode(TEXTS), expected, atol=RUN_ERROR)
        with pytest.raises(ConfigError, match=r"pooling='mean': the graph .* leave the option out"):
            Encoder.load(folder, pooling="mean")
    declared = published(outputs=(tokens, "pooled_embedding", own))
    change(declared / "1_Pooling/config.json", pooling_mode="cls")  # which comes before it
    first = [
        rows[0] / np.linalg.norm(rows[0]) for rows in Encoder.load(bundle).encode_tokens(TEXTS)
    ]
    np.testing.assert_allclose(Encoder.load(declared).encode(TEXTS), first, atol=RUN_ERROR)


@pytest.mark.parametrize("weights", ["model.onnx_data", "model.onnx.data", "weights.bin"])
def test_weights_of_any_name_come_from_a_hub(published, bundle, hub, weights):
    folder = published(weights=weights)
    files = contents(folder)
    hub.add("owner/weights", files | {"other.bin": b"not needed"})
    expected = Encoder.load(bundle).encode(TEXTS)
    np.testing.assert_allclose(
        Encoder.load("owner/weights").encode(TEXTS), expected, atol=RUN_ERROR
    )
    assert not [line for line in hub.requests if "other.bin" in line]


def test_the_only_graph_of_a_repository_is_taken(published, hub):
    folder = published()
    (folder / "onnx/model.onnx").rename(folder / "onnx/model_quantized.onnx")
    files = contents(folder)
    hub.add("owner/quantized", files)
    expected = Encoder.load(folder).encode(TEXTS)
    for options in ({}, {"variant": "int8"}, {"variant": "quantized"}):
        found = Encoder.load("owner/quantized", **options).encode(TEXTS)
        np.testing.assert_array_equal(found, expected)


def test_weights_outside_of_the_folder_are_refused(published):
    folder = published(weights="weights.bin")
    graph = folder / "onnx/model.onnx"
    graph.write_bytes(graph.read_bytes().replace(b"weights.bin", b"../ghts.bin"))
    with pytest.raises(BundleError, match=r"its weights are in '\.\./ghts\.bin', outside its"):
        Encoder.load(folder)


@pytest.mark.parametrize("file", ["config.json", *MODULES[1:], "tokenizer_config.json"])
def test_integers_of_any_size(published, file):
    folder = published()
    limit = Encoder.load(folder).max_length
    change(folder / file, some_count=2**70)
    assert Encoder.load(folder).max_length == limit


@pytest.mark.parametrize("value", [10**18, 2**63, 10**30, 1e30, None])
def test_no_limit_is_that_of_the_positions(published, value):
    folder = published(modules=False)
    change(folder / "tokenizer_config.json", model_max_length=value)
    assert Encoder.load(folder, pooling="mean").max_length == 128


@pytest.mark.parametrize(
    ("module", "tokenizer", "expected"),
    [(100, 50, 100), (50, 100, 50), (100, 10**30, 100), (None, 50, 50), (None, 10**30, 128),
     (2**70, 50, 128), (1000, 50, 128)],
)  # fmt: skip
def test_the_limit_of_the_module_comes_before_the_tokenizer_s(
    published, module, tokenizer, expected
):
    folder = published()
    change(folder / "sentence_bert_config.json", max_seq_length=module)
    change(folder / "tokenizer_config.json", model_max_length=tokenizer)
    assert Encoder.load(folder).max_length == expected
    (folder / "modules.json").unlink()  # then the module's file is a stray one
    stray = Encoder.load(folder, pooling="mean").max_length
    assert stray == min(tokenizer, 128)


@pytest.mark.full
def test_families_that_number_positions_from_padding_on():
    """Every model of text whose code does so is in the table, and no other."""
    numbered = set()
    for kind, name in MODEL_MAPPING_NAMES.items():
        folder = CONFIG_MAPPING_NAMES.get(kind, "") and kind.replace("-", "_")
        stem = "data2vec_text" if kind == "data2vec-text" else folder
        folder = "data2vec" if kind == "data2vec-text" else folder
        try:
            code = importlib.import_module(f"transformers.models.{folder}.modeling_{stem}")
        except ImportError:
            continue
        made = getattr(code, name if isinstance(name, str) else name[0], None)
        source = inspect.getsource(code)
        if "create_position_ids_from_input_ids(" in source and "Embeddings" in source and made:
            numbered.add(kind)
    no_texts_alone = {"altclip", "bridgetower", "clap", "layoutlmv3", "kosmos-2", "kosmos-2.5"}
    other_tasks = {"m2m_100", "nllb-moe", "seamless_m4t", "seamless_m4t_v2", "speech_to_text",
                   "speecht5", "evolla", "pp_doclayout_v2", "trocr"}  # fmt: skip
    assert numbered - no_texts_alone - other_tasks == SHIFTED
    for kind in SHIFTED:
        values = {"model_type": kind, "max_position_embeddings": 514, "pad_token_id": 1}
        assert positions(values) == 512
    assert positions({"model_type": "bert", "max_position_embeddings": 512}) == 512


DECISIVE = [
    ("sentence_bert_config.json", "model_kwargs", {"attention": "other"}),
    ("sentence_bert_config.json", "tokenizer_args", {"model_max_length": 3}),
    ("sentence_bert_config.json", "query_length", 32),
    ("sentence_bert_config.json", "processing_kwargs", {"text": {"max_length": 16}}),
    ("sentence_bert_config.json", "config_kwargs", {"is_causal": False}),
    ("config.json", "quantization_config", {"bits": 4}),
    ("config.json", "some_adapter", "x"),
    ("tokenizer_config.json", "auto_map", {"AutoTokenizer": ["own.Tokenizer", None]}),
    ("config_sentence_transformers.json", "further_kwargs", {"a": 1}),
]


@pytest.mark.parametrize(("file", "key", "value"), DECISIVE)
def test_a_key_that_could_change_a_vector_is_refused_by_name(published, file, key, value):
    folder = published()
    change(folder / file, **{key: value})
    with pytest.raises(BundleError, match=rf"{file} declares {key}: "):
        Encoder.load(folder)
    change(folder / file, **{key: None})
    Encoder.load(folder)


def test_arguments_of_loading_alone_are_no_reason_to_refuse(published):
    folder = published()
    loading = {"trust_remote_code": True, "add_pooling_layer": False}
    change(folder / "sentence_bert_config.json", model_args=loading)
    Encoder.load(folder)


WAY = {"method": "forward", "method_output_name": "last_hidden_state"}


@pytest.mark.parametrize(
    "modalities",
    [
        {"text": WAY, "message": WAY | {"format": "flat"}},
        {"message": WAY},
        {"text": WAY | {"method_output_name": "pooler_output"}},
        {"text": WAY | {"method_output_name": ["hidden_states", -2]}},
        {"text": WAY | {"method": "get_text_features"}},
        {"text": "forward"},
        [],
    ],
    ids=str,
)
def test_texts_that_go_another_way_are_refused(published, modalities):
    """As messages of a chat template, or to another output of the model."""
    folder = published()
    change(folder / "sentence_bert_config.json", modality_config={"text": WAY})
    Encoder.load(folder)
    change(folder / "sentence_bert_config.json", modality_config=modalities)
    with pytest.raises(BundleError, match=r"modality_config passes texts through"):
        Encoder.load(folder)


@pytest.mark.parametrize(
    ("kind", "most"),
    [("nomic_bert", 8192), ("modernbert", 8192), ("roformer", 2048), ("bert", 2048)],
)
def test_positions_that_rotate_have_no_end(kind, most):
    config = {"model_type": kind, "max_position_embeddings": 2048}
    assert positions(config, 8192) == most
    assert positions(config, 100) == positions(config) == 2048


def test_an_adapter_is_refused_wherever_it_is(published):
    folder = published()
    (folder / "adapter_config.json").write_text('{"peft_type": "LORA"}')
    with pytest.raises(BundleError, match=r"adapter_config.json declares an adapter: .* merge"):
        Encoder.load(folder)


def test_a_key_that_nobody_knows_is_told(published):
    folder = published()
    change(folder / "1_Pooling/config.json", of_tomorrow=1)
    assert [one.rpartition("published/")[2] for one in describe_folder(folder).unknown] == [
        "1_Pooling/config.json: of_tomorrow"
    ]


def test_the_ledger_says_why():
    for table in LEDGER.values():
        for name, key in table.items():
            assert key.use in (USED, NO_EFFECT, REFUSED), name
            assert key.why, name


def test_the_page_of_the_ledger_is_made_from_the_code():
    assert PAGE.read_text(encoding="utf-8") == page(), "run tests/support/documents/ledger.py"
