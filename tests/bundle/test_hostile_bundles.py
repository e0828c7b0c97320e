"""Bundles, packs and heads of strangers: any JSON loads and encodes, or is a BundleError at load.

MIRROR_RT_FUZZ sets the number of examples (100 unless set; 10,000 before a release).
"""

import contextlib
import io
import json
import os
import shutil
import zipfile

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from command_errors import one_line_error
from json_files import change
from mirror_rt import (
    BundleError,
    ConfigError,
    Encoder,
    InvalidTextError,
    LanguagePack,
    Manifest,
    NonFiniteError,
)
from mirror_rt.cli import main
from mirror_rt.heads.task_heads import Heads, TaskHead
from rounding import RUN_ERROR
from server_process import make_pack
from strange_json import anything, changed
from work_limits import little_work

fuzz = settings(max_examples=int(os.environ.get("MIRROR_RT_FUZZ", "100")), deadline=None,
                suppress_health_check=list(HealthCheck))  # fmt: skip
TEXTS = ["the river runs", "a", "the old town " * 100]


def check_encodes(encoder):
    vectors = encoder.encode(TEXTS)
    assert vectors.shape == (len(TEXTS), encoder.dimension)
    encoder.encode(TEXTS[:2], prompt="the ", on_too_long="chunk")
    assert any(piece.start is not None for piece in encoder.token_pieces("a river")[0])


def check_info(folder):
    """`mirror-rt info` shows it or refuses it in a line, in plain words and as JSON."""
    for options in ([], ["--json"]):
        out, err = (io.TextIOWrapper(io.BytesIO(), "utf-8") for _ in range(2))
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            assert main(["info", str(folder), *options]) in (0, 1)


@pytest.fixture(scope="module")
def stranger(bundle, tmp_path_factory):
    """A copy of a bundle whose documents tests write anew."""
    return shutil.copytree(bundle, tmp_path_factory.mktemp("stranger") / "bundle")


@pytest.fixture(scope="module")
def pack(bundle, tmp_path_factory):
    return make_pack(tmp_path_factory.mktemp("pack") / "p", {"fr": bundle, "en": bundle}, "fr")


@fuzz
@given(data=st.data(), verify=st.booleans())
def test_any_manifest(stranger, bundle, data, verify):
    own = json.loads((bundle / "mirror.json").read_text())
    own |= {"prompts": {"query": "the "}, "language": "en", "recipe": {"epochs": 1}, "data": {}}
    path = stranger / "mirror.json"
    path.write_text(json.dumps(data.draw(changed(own) | anything)))
    with little_work():
        check_info(stranger)
        # Numbers of another weight may give a vector that is not finite, which is said.
        with (
            contextlib.suppress(BundleError, NonFiniteError),
            Encoder.load(stranger, verify=verify) as encoder,
        ):
            check_encodes(encoder)


@fuzz
@given(data=st.data())
def test_any_pack_index(pack, data):
    path = pack / "pack.json"
    own = path.read_text()
    try:
        path.write_text(json.dumps(data.draw(changed(json.loads(own)) | anything)))
        with little_work():
            check_info(pack)
            with contextlib.suppress(BundleError), LanguagePack.load(pack) as loaded:
                assert loaded.encode(TEXTS).shape == (len(TEXTS), 32)
                with contextlib.suppress(ConfigError):  # no bundle is for English any more
                    loaded.encode(TEXTS, lang="en-GB")
    finally:
        path.write_text(own)


@fuzz
@given(data=st.data())
def test_any_tokenizer_header(stranger, bundle, data):
    shutil.copy(bundle / "mirror.json", stranger)
    own = json.loads((bundle / "tokenizer.json").read_text())
    with_parts = st.sampled_from(PARTS).map(lambda part: own | part)
    document = data.draw(with_parts.flatmap(changed) | with_parts | anything)
    (stranger / "tokenizer.json").write_text(json.dumps(document))
    with little_work(), contextlib.suppress(BundleError):
        encoder = Encoder.load(stranger, verify=False)
        # Rules that remove every character leave a text no token, which its caller is told.
        with contextlib.suppress(InvalidTextError):
            check_encodes(encoder)


def template(*single, **special):
    pieces = [{"Sequence": {"id": "A", "type_id": 0}} if piece == "$A" else
              {"SpecialToken": {"id": piece, "type_id": 0}} for piece in single]  # fmt: skip
    known = {name: {"id": name, "ids": ids, "tokens": [name] * len(ids)}
             for name, ids in ({"[CLS]": [2], "[SEP]": [3]} | special).items()}  # fmt: skip
    both = [*pieces, {"Sequence": {"id": "B", "type_id": 0}}]
    return {"post_processor": {"type": "TemplateProcessing", "single": pieces, "pair": both,
                               "special_tokens": known}}  # fmt: skip


PARTS = [
    {},
    {"normalizer": {"type": "Sequence", "normalizers": [{"type": "NFC"}, {"type": "Lowercase"}]}},
    {"normalizer": {"type": "Replace", "pattern": {"Regex": "[a-z]+"}, "content": "a"}},
    {"pre_tokenizer": {"type": "Split", "pattern": {"String": " "}, "behavior": "Isolated",
                       "invert": False}},
    {"pre_tokenizer": {"type": "FixedLength", "length": 0}},
    {"pre_tokenizer": {"type": "Metaspace", "replacement": "_", "prepend_scheme": "always",
                       "split": True}},
    {"post_processor": {"type": "BertProcessing", "sep": ["[SEP]", 3], "cls": ["[CLS]", 2]}},
    {"truncation": {"direction": "Right", "max_length": 2, "strategy": "LongestFirst",
                    "stride": 0}},
    {"padding": {"strategy": {"Fixed": 999}, "direction": "Right", "pad_to_multiple_of": None,
                 "pad_id": 0, "pad_type_id": 0, "pad_token": "[PAD]"}},
    template("[CLS]", "$A", "[SEP]"),
    template("[CLS]", "$A", "$A", "[SEP]"),
    template("[CLS]", "$A", "[GONE]"),
    template(*["[CLS]"] * 130, "$A"),
]  # fmt: skip

LOPSIDED = template("[CLS]", "$A", "[SEP]")
LOPSIDED["post_processor"]["special_tokens"]["[SEP]"]["ids"] = [3, 3, 3]
PARTS.append(LOPSIDED)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"prompts": {"query": 5}}, r"prompts\.query is 5, expected a string"),
        ({"prompts": ["a"]}, r"prompts is \['a'\], expected an object"),
        ({"prompts": {"a": "x" * 10_001}}, r"prompts\.a is 'x+\.\.\.x+', expected at most 10,"),
        ({"prompts": {"a": "the " * 200}}, r"prompt 'a': the prompt has .* leaves no room"),
        ({"default_prompt_name": "query"}, "default_prompt_name is 'query', expected one of"),
        ({"dimension": 10**9}, "dimension is 1000000000, expected a number in 1 .. 65,536"),
        ({"dimension": 10**30}, "dimension is 10+, which does not fit into 64 bits"),
        ({"dimension": 33}, "gives 32 dimensions, the dimension in its manifest is 33"),
        ({"max_length": 10**30}, "max_length is 10+, which does not fit into 64 bits"),
        ({"max_length": 2**40}, "max_length is 1099511627776, expected a number in 1 .. 1,048,576"),
        ({"max_length": 2}, "max_length 2 leaves no room for text"),
        ({"pad_id": 2**31 - 1}, "has no token 2147483647, the pad_id of the manifest"),
        ({"language": "\ud800"}, r"language is '\\ud800', which is not valid Unicode"),
        ({"recipe": {"a": [{"b\udc00": 1}]}}, r"recipe.* is 'b\\udc00', which is not valid"),
        ({"data": json.loads("[" * 40 + "]" * 40)}, "data.* is nested too deep"),
        ({"files": {"x" * 300: {"bytes": 1, "sha256": "0" * 64}}}, "a name in files is 'x.*path"),
        ({"files": {"a": {"bytes": 1, "sha256": "0"}}}, r"files\.a\.sha256 is '0', expected"),
        ({"files": {"a": {"bytes": -1, "sha256": "0" * 64}}}, r"files\.a\.bytes is -1"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_a_manifest_is_refused_at_load_by_the_name_of_its_field(bundle_copy, changes, message):
    change(bundle_copy / "mirror.json", **changes)
    with little_work(), pytest.raises(BundleError, match=message):
        Encoder.load(bundle_copy)


def test_info_of_a_manifest_that_is_not_unicode(bundle_copy, cli):
    change(bundle_copy / "mirror.json", language="\ud800")
    one_line_error(cli("info", bundle_copy), code=1, contains="language is '\\ud800'")


def test_info_of_details_of_any_type(bundle_copy, cli):
    values = json.loads((bundle_copy / "mirror.json").read_text())
    values["variants"]["fp32"] |= {"parity": {"bytes": "x", "texts": []}, "graph": {
        "float32_layers": 7}}  # fmt: skip
    change(bundle_copy / "mirror.json", variants=values["variants"], recipe={"system": 1}, data={},
         base_model={})  # fmt: skip
    assert cli("info", bundle_copy).code == 0


@pytest.mark.parametrize("name", ["mirror.json", "tokenizer.json", "onnx/model.onnx"])
def test_a_pipe_is_not_waited_for(bundle_copy, name):
    (bundle_copy / name).unlink()
    os.mkfifo(bundle_copy / name)
    with little_work(), pytest.raises(BundleError, match=f"{name} is not a regular file"):
        Encoder.load(bundle_copy, verify=False)


@pytest.mark.parametrize("name", ["mirror.json", "pack.json"])
def test_a_document_is_not_read_without_end(bundle_copy, name):
    for other in ("mirror.json", "pack.json"):
        (bundle_copy / other).unlink(missing_ok=True)
    with (bundle_copy / name).open("wb") as file:
        file.truncate(1 << 40)
    with little_work(), pytest.raises(BundleError, match=f"{name} has more than 4,194,304 byt"):
        Encoder.load(bundle_copy)


@pytest.mark.full
def test_the_largest_document_is_checked_with_little_work(bundle_copy):
    change(bundle_copy / "mirror.json", data={"all": [0] * 1_300_000})
    with little_work(calls=10 * 1_300_000):  # seven a value
        assert Manifest.read(bundle_copy).dimension == 32


@pytest.mark.parametrize("place", ["vocabulary", "post_processor"])
def test_token_ids_beyond_31_bits(bundle_copy, place):
    path = bundle_copy / "tokenizer.json"
    values = json.loads(path.read_text())
    if place == "vocabulary":
        values["model"]["vocab"]["river"] = 2**31
    else:
        values |= template("[CLS]", "$A", "[SEP]", **{"[SEP]": [2**31]})
    path.write_text(json.dumps(values))
    with pytest.raises(BundleError, match=r"tokenizer\.json .* the token id 2147483648, above"):
        Encoder.load(bundle_copy, verify=False)


@pytest.mark.parametrize(
    ("part", "message"),
    [
        (template("[CLS]", "$A", "[GONE]"), "no entry found"),
        (template("[CLS]", "$A", "$A", "[SEP]"), "its post_processor repeats the text"),
        (template("[CLS]", "[SEP]"), "it gives special tokens alone, whatever the text"),
        (LOPSIDED, "has special tokens of several ids and one name"),
        ({"pre_tokenizer": {"type": "FixedLength", "length": 0}}, "chunk size must be non-zero"),
        ({"normalizer": {"type": "Precompiled", "precompiled_charsmap": "AAAA"}}, "Precompiled"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_a_tokenizer_that_fails_on_every_text(bundle_copy, part, message):
    change(bundle_copy / "tokenizer.json", **part)
    with pytest.raises(BundleError, match=message):
        Encoder.load(bundle_copy, verify=False)


def test_a_graph_beside_those_of_the_manifest_is_not_loaded(bundle_copy):
    expected = Encoder.load(bundle_copy).encode("the river")
    values = json.loads((bundle_copy / "mirror.json").read_text())
    files = {name: record for name, record in values["files"].items() if "_mapped" not in name}
    change(bundle_copy / "mirror.json", files=files)
    (bundle_copy / "onnx" / "model_mapped.onnx").write_bytes(b"of somebody else")
    vector = Encoder.load(bundle_copy).encode("the river")
    np.testing.assert_allclose(vector, expected, atol=RUN_ERROR)


NLI = TaskHead("nli", "classifier", np.ones((2, 4), np.float32), np.zeros(2, np.float32),
               labels=("yes", "no"))  # fmt: skip
HEADS = Heads(4, "mean", {"nli": NLI})


@fuzz
@given(data=st.data())
def test_any_description_of_heads(tmp_path_factory, data):
    folder = tmp_path_factory.mktemp("heads")
    HEADS.write(folder)
    path = folder / "heads" / "heads.json"
    path.write_text(json.dumps(data.draw(changed(json.loads(path.read_text())) | anything)))
    with little_work(), contextlib.suppress(BundleError):
        for read in Heads.read(folder).by_name.values():
            read(np.ones((1, read.dimension)), np.ones((1, 4)) if read.takes_pairs else None)
    shutil.rmtree(folder)


def test_weights_of_heads_without_end(tmp_path):
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        header, {"descr": "<f4", "fortran_order": False, "shape": (1 << 40, 1 << 10)}
    )
    HEADS.write(tmp_path)
    with zipfile.ZipFile(tmp_path / "heads" / "nli.npz", "w") as archive:
        archive.writestr("weight.npy", header.getvalue())
        archive.writestr("bias.npy", header.getvalue())
    with pytest.raises(BundleError, match=r"nli\.npz cannot be read: it needs too much memory"):
        Heads.read(tmp_path)
