"""What folders declare that exports have ignored: limits, adapters, similarities, token types."""

import json
import shutil

import numpy as np
import pytest
from sentence_transformers import CrossEncoder, SentenceTransformer

from mirror_export import ExportConfig, export_bundle
from mirror_rt import Encoder, Reranker
from rounding import RUN_ERROR, SCORE_ERROR
from tiny_models import make_model

TEXTS = ["a river", "the old town by the long river", "word " * 60]
LIBRARY = "sentence_transformers.models."


@pytest.fixture
def folder(tiny_bert, tmp_path):
    """A tiny BERT as sentence-transformers saves it, with a mean and no normalisation."""
    return as_modules(shutil.copytree(tiny_bert, tmp_path / "model"))


def as_modules(folder):
    modules = [{"type": f"{LIBRARY}Transformer", "path": "", "name": "0"},
               {"type": f"{LIBRARY}Pooling", "path": "1_Pooling", "name": "1"}]  # fmt: skip
    write(folder / "modules.json", modules)
    write(folder / "1_Pooling/config.json", {"embedding_dimension": 32, "pooling_mode": "mean"})
    return folder


def write(path, values):
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(values))


def export(folder, **options):
    options = {"parity_texts": TEXTS, "overwrite": True} | options
    export_bundle(ExportConfig(str(folder), folder.with_name("bundle"), **options))
    return folder.with_name("bundle")


def error_of(vectors):
    return RUN_ERROR * np.linalg.norm(vectors, axis=1).max()


@pytest.mark.full
@pytest.mark.parametrize("family", ["deberta-v2", "modernbert"])
def test_relative_and_rotated_positions_have_no_end(tiny_model, tmp_path, family):
    """A folder may declare more tokens than the model was trained with, which are 128."""
    folder = as_modules(shutil.copytree(tiny_model(family), tmp_path / "model"))
    write(folder / "sentence_bert_config.json", {"max_seq_length": 200})
    theirs, texts = SentenceTransformer(str(folder), device="cpu"), [*TEXTS, "word town " * 300]
    expected, bundle = theirs.encode(texts), export(folder)
    for place, engine in [(bundle, "cpu"), (bundle, "auto"), (folder, "auto")]:
        with Encoder.load(place, providers=engine) as ours:
            assert ours.max_length == theirs.max_seq_length == 200
            found = ours.encode(texts)
        np.testing.assert_allclose(found, expected, rtol=0, atol=error_of(expected))


def test_nothing_is_said_of_the_texts_to_compare_on(folder, tiny_cross_encoder, tmp_path, caplog):
    for model in (folder, tiny_cross_encoder("bert")):
        out = tmp_path / "compared"
        manifest = export_bundle(ExportConfig(str(model), out, max_length=8, overwrite=True))
        assert manifest.variants["fp32"].parity["max_tokens"] == 8
    assert "cut there" not in caplog.text
    with Reranker.load(out) as reranker:
        reranker.predict([("a river", TEXTS[2])])
    assert "cut there" in caplog.text


@pytest.mark.full
def test_token_types_are_those_of_the_tokenizer(tiny_bert, words, tmp_path):
    """A RoBERTa with the tokenizer of a BERT, as Korean cross-encoders are made."""
    folder = make_model(
        "roberta", tmp_path / "model", words, labels=1, config={"type_vocab_size": 2}
    )
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(tiny_bert / name, folder / name)
    pairs = [("a river", "the old town"), ("the town", "word " * 60)]
    expected, bundle = CrossEncoder(str(folder), device="cpu").predict(pairs), export(folder)
    for engine in ("cpu", "auto"):
        found = Reranker.load(bundle, providers=engine).predict(pairs)
        np.testing.assert_allclose(found, expected, atol=SCORE_ERROR)
    write(folder / "sentence_bert_config.json", {"max_seq_length": 20})  # a stray file
    theirs = CrossEncoder(str(folder), device="cpu")
    assert Reranker.load(export(folder)).max_length == theirs.max_seq_length == 128
