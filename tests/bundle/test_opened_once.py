"""Each file that declares something of a model is opened once by whatever loads the model."""

import io
import json
import shutil
import sys
from collections import Counter
from pathlib import Path

import pytest

from mirror_export import ExportConfig, export_bundle
from mirror_rt import Encoder, Reranker, compat
from mirror_rt.bulk import plan
from mirror_rt.bundle.declared_keys import LEDGER
from mirror_rt.diagnostics.doctor import examine
from mirror_rt.inference.load_options import LoadOptions
from mirror_rt.pipeline.options import EncodeOptions
from mirror_train.model.declared_modules import declared_head
from mirror_train.model.pretrained import load_pretrained
from onnx_folders import publish

NAMES = {*LEDGER, "mirror.json", "tokenizer.json"} - {"Pooling", "Dense", "Flow"}
MODULES = [("Transformer", ""), ("Pooling", "1_Pooling"), ("Dense", "2_Dense"), ("Normalize", "3")]


def write(path, values):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(values))


@pytest.fixture
def published(tiny_bert, tmp_path):
    """A folder with a file of each kind, as sentence-transformers writes it."""
    import torch
    from safetensors.torch import save_file

    folder = shutil.copytree(tiny_bert, tmp_path / "published")
    library = "sentence_transformers.models."
    write(folder / "modules.json", [{"type": library + t, "path": path} for t, path in MODULES])
    write(folder / "1_Pooling/config.json", {"pooling_mode_mean_tokens": True})
    write(folder / "2_Dense/config.json", {"in_features": 32, "out_features": 8, "bias": False})
    save_file({"linear.weight": torch.eye(8, 32)}, folder / "2_Dense/model.safetensors")
    write(folder / "sentence_bert_config.json", {"max_seq_length": 16})
    write(folder / "config_sentence_transformers.json", {"similarity_fn_name": "dot"})
    return folder


@pytest.fixture
def onnx_files(bundle, tmp_path):
    """The files of a bundle without its manifest, and a graph of token vectors alone."""
    return publish(bundle, tmp_path / "onnx-files")


@pytest.fixture
def opened(monkeypatch):
    """Count how often code of ours opens the files of a folder, but to hash them."""
    counts, real = Counter(), io.open

    def spy(file, mode="r", *arguments, **options):
        frame = sys._getframe(1)
        while frame.f_globals["__name__"].startswith("pathlib"):
            frame = frame.f_back
        ours = frame.f_globals["__name__"].startswith("mirror_")
        if ours and "r" in mode and frame.f_code.co_name != "sha256":
            counts[Path(file)] += 1
        return real(file, mode, *arguments, **options)

    monkeypatch.setattr(io, "open", spy)
    return counts


def export(folder, cli):
    export_bundle(ExportConfig(str(folder), folder.with_name("out"), parity_texts=["a", "b c"]))


def show(folder, cli):
    assert cli("info", folder).code == 0


def plan_a_job(folder, cli):
    load = LoadOptions()
    described = plan.find_bundle(str(folder), load)
    plan._vector_plan(described, "digest", load, EncodeOptions())
    plan.window_characters(described, load)


READERS = {
    "load_pretrained": ("published", lambda folder, cli: declared_head(
        load_pretrained(folder).description)),
    "export": ("published", export),
    "ONNX files": ("onnx_files", lambda folder, cli: Encoder.load(folder)),
    "bundle": ("bundle", lambda folder, cli: Encoder.load(folder)),
    "reranker": ("reranker", lambda folder, cli: Reranker.load(folder)),
    "static": ("static_bundle", lambda folder, cli: Encoder.load(folder)),
    "compat": ("bundle", lambda folder, cli: compat.SentenceTransformer(folder)),
    "compat of ONNX files": ("onnx_files", lambda folder, cli: compat.SentenceTransformer(folder)),
    "compat of pairs": ("reranker", lambda folder, cli: compat.CrossEncoder(folder)),
    "info": ("bundle", show),
    "info of ONNX files": ("onnx_files", show),
    "info of pairs": ("reranker", show),
    "doctor": ("bundle", lambda folder, cli: examine(folder)),
    "a job": ("bundle", plan_a_job),
    "doctor of ONNX files": ("onnx_files", lambda folder, cli: examine(folder)),
}  # fmt: skip


@pytest.fixture
def reranker(tiny_reranker):
    return tiny_reranker("bert")


@pytest.mark.parametrize("name", READERS)
def test_each_declared_file_is_opened_once(name, request, opened, cli):
    fixture, read = READERS[name]
    folder = request.getfixturevalue(fixture)
    declared = {path for path in folder.rglob("*.json") if path.name in NAMES}
    opened.clear()
    read(folder, cli)
    found = {path: opened[path] for path in declared}
    assert max(found.values()) == 1, found
    # What makes no vectors reads no tokenizer, and transformers reads that of a model for itself.
    assert {path.name for path, count in found.items() if not count} <= {"tokenizer.json"}, found
