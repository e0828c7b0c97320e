import json

import pytest

from json_files import change
from mirror_rt import (
    BundleError,
    BundleIntegrityError,
    BundleVersionError,
    Encoder,
    Manifest,
)


def test_round_trip(bundle):
    manifest = Manifest.read(bundle)
    values = json.loads((bundle / "mirror.json").read_text())
    assert manifest.to_dict() == values
    assert list(values)[:2] == ["format", "format_version"]
    assert "mirror.json" not in manifest.files
    assert {"onnx/model.onnx", "tokenizer.json", "config.json"} <= set(manifest.files)
    manifest.verify(bundle)


def test_a_changed_file_is_refused(bundle_copy):
    path = bundle_copy / "onnx" / "model.onnx"
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    with pytest.raises(BundleIntegrityError, match=r"model.onnx has SHA-256"):
        Encoder.load(bundle_copy)


@pytest.mark.parametrize("start", [True, False])
@pytest.mark.parametrize("providers", ["cpu", "native", "openvino"])
def test_a_large_file_is_hashed_while_it_is_opened(bundle_copy, providers, start, monkeypatch):
    if providers == "openvino":
        pytest.importorskip("openvino")
    monkeypatch.setattr("mirror_rt.bundle.file_records._LARGE", 1)
    Encoder.load(bundle_copy, providers=providers).close()
    path = bundle_copy / "onnx" / "model.onnx"
    content = bytearray(path.read_bytes())
    place = 0 if start else len(content) // 2
    content[place : place + 64] = b"\xff" * 64  # at the start it is no ONNX file any more
    path.write_bytes(content)
    with pytest.raises(BundleIntegrityError, match=r"model.onnx has SHA-256"):
        Encoder.load(bundle_copy, providers=providers)
    path.write_bytes(content[:-1])
    with pytest.raises(BundleIntegrityError, match=r"model.onnx has \d+ bytes"):
        Encoder.load(bundle_copy, providers=providers)


def test_a_shorter_file_is_refused(bundle_copy):
    path = bundle_copy / "tokenizer.json"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(BundleIntegrityError, match=r"tokenizer.json has \d+ bytes"):
        Encoder.load(bundle_copy)


@pytest.mark.parametrize("name", ["onnx/model.onnx", "tokenizer.json", "1_Pooling/config.json"])
def test_a_missing_file_is_refused(bundle_copy, name):
    (bundle_copy / name).unlink()
    with pytest.raises(BundleIntegrityError, match=f"{name} is missing"):
        Encoder.load(bundle_copy)


def test_a_newer_format_is_refused(bundle_copy):
    change(bundle_copy / "mirror.json", format_version=2)
    with pytest.raises(BundleVersionError, match="format version 2, this mirror_rt reads up to 1"):
        Encoder.load(bundle_copy)


def test_unknown_fields_of_the_same_version_are_ignored(bundle_copy):
    change(bundle_copy / "mirror.json", a_field_added_later=1)
    assert Encoder.load(bundle_copy).dimension == 32


@pytest.mark.parametrize(
    "changes",
    [
        {"dimension": "32"},
        {"dimension": 0},
        {"max_length": None},
        {"pooling": "own"},
        {"pooling": "mean+"},
        {"pooling": None},
        {"dimension": True},
        {"pad_id": "x"},
        {"pad_id": -1},
        {"pad_to": 2},
        {"pad_to": "128"},
        {"data": "x"},
        {"variants": []},
        {"variants": {}},
        {"variants": {"fp32": {"file": "absent.onnx", "precision": "fp32", "target": "cpu"}}},
        {"variants": {"fp32": {"file": "onnx/model.onnx", "precision": "fp8", "target": "cpu"}}},
        {"variants": {"fp32": {"file": "onnx/model.onnx"}}},
        {"base_model": None},
        {"files": {"tokenizer.json": {"bytes": 1, "sha256": 5}}},
        {"files": {}},
        {"files": None},
        {"files": {"tokenizer.json": 3}},
        {"format_version": "1"},
        {"format_version": 0},
        {"format": "something else"},
    ],
    ids=str,
)
def test_a_damaged_manifest_is_refused(bundle_copy, changes):
    change(bundle_copy / "mirror.json", **changes)
    with pytest.raises(BundleError, match=r"mirror.json"):
        Encoder.load(bundle_copy)


@pytest.mark.parametrize("text", ["", "{", "[]", "null", "[" * 200_000])
def test_a_manifest_that_is_no_object(bundle_copy, text):
    (bundle_copy / "mirror.json").write_text(text)
    with pytest.raises(BundleError):
        Encoder.load(bundle_copy)


def test_not_a_bundle(tmp_path):
    with pytest.raises(BundleError, match="no such folder"):
        Encoder.load(tmp_path / "nowhere")
    with pytest.raises(BundleError, match=r"it has no mirror.json"):
        Encoder.load(tmp_path)


def test_a_limit_the_model_has_no_positions_for(bundle_copy):
    change(bundle_copy / "mirror.json", max_length=4000)
    with pytest.raises(BundleError, match="failed on 1 texts of 3000 tokens"):
        Encoder.load(bundle_copy).encode("a " * 2998)
