"""MultiVectorEncoder: the vectors of sentence-transformers, for the folders of three libraries."""

from __future__ import annotations

import functools
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from late_models import (
    DIMENSION,
    save_dense,
    save_library,
    save_pylate,
    save_stanford,
    write_json,
)
from mirror_rt import BundleError, ConfigError, Encoder, InvalidTextError, MultiVectorEncoder
from mirror_rt.vectors.maxsim import maxsim

QUERIES = ["who runs?", "the old town", "a " * 40]
DOCUMENTS = [
    "The river runs slowly, through the old town.",
    "Children were playing football!",
    "word",
    "A doctor and a physician met on the road. " * 5,
    "word",
]
# Promised of unit vectors in fp32; of others it is this part of their length.
CLOSE = {"rtol": 0, "atol": 2e-6}

FOLDERS = {
    "pylate": save_pylate,
    "pylate, attended": functools.partial(save_pylate, attend_to_expansion_tokens=True),
    "pylate, no expansion": functools.partial(save_pylate, do_query_expansion=False),
    "pylate, residual": functools.partial(save_pylate, residual=True),
    "stanford": save_stanford,
    "stanford, attended": functools.partial(save_stanford, attend_to_mask_tokens=True),
    "library, fixed": functools.partial(
        save_library, expansion={"strategy": "fixed", "attend": False, "length": 18}
    ),
    "library, min": functools.partial(
        save_library, expansion={"strategy": "min", "attend": True, "length": 9}
    ),
    "library, plain": functools.partial(save_library, expansion=None, normalize=False),
}


@pytest.fixture(scope="module")
def folder_of(tiny_bert, tmp_path_factory):
    root = tmp_path_factory.mktemp("late")
    return functools.cache(lambda name: FOLDERS[name](tiny_bert, root / name.replace(", ", "-")))


def library(folder: Path):
    from sentence_transformers import MultiVectorEncoder as Theirs

    return Theirs(str(folder), device="cpu")


@pytest.mark.parametrize("name", FOLDERS)
def test_vectors_are_those_of_sentence_transformers(folder_of, name):
    theirs = library(folder_of(name))
    with MultiVectorEncoder.load(folder_of(name)) as encoder:
        assert encoder.providers == ["native"]
        for side, texts in (("query", QUERIES), ("document", DOCUMENTS)):
            expected = getattr(theirs, f"encode_{side}")(texts, convert_to_numpy=True)
            found = getattr(encoder, f"encode_{side}")(texts)
            for mine, other in zip(found, expected, strict=True):
                assert mine.dtype == np.float32
                lengths = np.maximum(1, np.linalg.norm(other, axis=1, keepdims=True))
                np.testing.assert_allclose(mine / lengths, other / lengths, **CLOSE)


@pytest.mark.parametrize("family", ["roberta", "modernbert"])
def test_other_families(tiny_model, tmp_path, family):
    folder = save_pylate(tiny_model(family), tmp_path / "model", query_length=10)
    with MultiVectorEncoder.load(folder) as one:
        expected = library(folder).encode_query(QUERIES, convert_to_numpy=True)
        for mine, other in zip(one.encode_query(QUERIES), expected, strict=True):
            np.testing.assert_allclose(mine, other, **CLOSE)
    if family == "modernbert":  # a token attends to 8 before it
        folder = save_pylate(tiny_model(family), tmp_path / "longer", query_length=20)
        with (
            MultiVectorEncoder.load(folder) as one,
            pytest.raises(BundleError, match="some tokens have none to attend to"),
        ):
            one.encode_query("word")


@pytest.fixture(scope="module")
def encoder(folder_of):
    with MultiVectorEncoder.load(folder_of("pylate")) as loaded:
        yield loaded


def test_vectors_are_the_same_bits_in_every_batch(folder_of):
    for name in ("pylate", "library, min"):
        with MultiVectorEncoder.load(folder_of(name)) as one:
            for encode, texts in ((one.encode_query, QUERIES), (one.encode_document, DOCUMENTS)):
                together = encode(texts * 3, batch_size=4)
                for text, vectors in zip(texts * 3, together, strict=True):
                    np.testing.assert_array_equal(encode(text), vectors)


def test_one_string_gives_its_array(encoder):
    (expected,) = encoder.encode_document(["word"])
    np.testing.assert_array_equal(encoder.encode_document("word"), expected)
    assert encoder.encode_query([]) == []
    assert expected.shape[1] == encoder.dimension == DIMENSION


def test_queries_are_filled_up_and_documents_are_not(encoder):
    assert [len(one) for one in encoder.encode_query(QUERIES)] == [16, 16, 16]
    # [CLS], [D], a word, [SEP]; and 24 tokens of a long text, without its full stops
    lengths = [len(one) for one in encoder.encode_document(["word", "word. word.", "road " * 40])]
    assert lengths == [4, 5, 24]


def test_long_texts_are_cut_or_refused(encoder):
    np.testing.assert_array_equal(
        encoder.encode_document("road " * 40), encoder.encode_document("road " * 21)
    )
    for encode in (encoder.encode_query, encoder.encode_document):
        with pytest.raises(InvalidTextError, match=r"item 1.*longer than"):
            encode(["road", "road " * 40], on_too_long="error")
    with pytest.raises(ConfigError, match="on_too_long must be 'truncate' or 'error'"):
        encoder.encode_query("road", on_too_long="chunk")


@pytest.mark.parametrize("text", ["", "  ", None, 3, "\ud800"])
def test_what_is_no_text_is_refused(encoder, text):
    for encode in (encoder.encode_query, encoder.encode_document):
        with pytest.raises(InvalidTextError, match="item 1"):
            encode(["road", text])


def test_a_document_of_skipped_tokens_has_no_vectors(tiny_bert, tmp_path):
    skipped = ["[CLS]", "[SEP]", "[D] ", ".", "!", "no token at all"]
    folder = save_pylate(tiny_bert, tmp_path / "model", skiplist_words=skipped)
    with MultiVectorEncoder.load(folder) as one:
        vectors = one.encode_document(["...", "word."], pool_factor=2)
        assert [v.shape for v in vectors] == [(0, DIMENSION), (1, DIMENSION)]
        ranking = one.rank("word", ["...", "word."])
        assert [entry["corpus_id"] for entry in ranking] == [1, 0]
        assert ranking[1]["score"] == -np.inf


def test_documents_are_pooled_and_stored_in_fewer_bytes(encoder):
    whole = encoder.encode_document(DOCUMENTS)
    pooled = encoder.encode_document(DOCUMENTS, pool_factor=2, protected_tokens=2)
    for vectors, fewer in zip(whole, pooled, strict=True):
        assert len(fewer) == 2 + max(1, (len(vectors) - 2) // 2)
        np.testing.assert_array_equal(fewer[:2], vectors[:2])
    queries = encoder.encode_query(QUERIES)
    scores = encoder.similarity(queries, whole)
    for precision, most in (("float16", 0.05), ("int8", 0.5)):
        stored = encoder.encode_document(DOCUMENTS, precision=precision)
        assert {str(one.dtype) for one in stored} == {precision}
        np.testing.assert_allclose(encoder.similarity(queries, stored), scores, rtol=0, atol=most)
    with pytest.raises(ConfigError, match="precision must be 'float32', 'float16'"):
        encoder.encode_document("word", precision="binary")


def test_documents_are_ranked_by_maxsim(encoder, folder_of):
    queries = encoder.encode_query(QUERIES)
    scores = encoder.similarity(queries, encoder.encode_document(DOCUMENTS))
    theirs = library(folder_of("pylate"))
    expected = theirs.similarity(
        *(getattr(theirs, f"encode_{side}")(texts, convert_to_numpy=True)
          for side, texts in (("query", QUERIES), ("document", DOCUMENTS)))
    ).numpy()  # fmt: skip
    np.testing.assert_allclose(scores, expected, rtol=0, atol=1e-4)
    ranking = encoder.rank(QUERIES[0], DOCUMENTS, top_k=3, return_documents=True)
    order = np.argsort(-scores[0], kind="stable")[:3].tolist()
    assert [entry["corpus_id"] for entry in ranking] == order
    assert [entry["text"] for entry in ranking] == [DOCUMENTS[i] for i in order]
    assert ranking[0]["score"] == float(scores[0].max())
    again = encoder.rank(QUERIES[0], encoder.encode_document(DOCUMENTS), top_k=3)
    assert [entry["score"] for entry in again] == [entry["score"] for entry in ranking]
    with pytest.raises(ConfigError, match="top_k"):
        encoder.rank("a", DOCUMENTS, top_k=0)
    with pytest.raises(ConfigError, match="a list of documents"):
        encoder.rank("a", "word")


def test_meanmaxsim_divides_by_the_vectors_of_the_query(tiny_bert, tmp_path):
    folder = save_library(tiny_bert, tmp_path / "mean", expansion=None)
    settings = folder / "config_sentence_transformers.json"
    declared = json.loads(settings.read_text(encoding="utf-8"))
    write_json(settings, declared | {"similarity_fn_name": "meanmaxsim"})
    with MultiVectorEncoder.load(folder) as one:
        query, document = one.encode_query("who runs?"), one.encode_document("word")
        expected = maxsim([query], [document]) / len(query)
        np.testing.assert_array_equal(one.similarity([query], [document]), expected)


def test_other_models_are_refused_by_name(folder_of, tiny_bert, bundle):
    for name in ("pylate", "stanford", "library, fixed"):
        with pytest.raises(BundleError, match=r"mirror_rt\.MultiVectorEncoder\.load takes it"):
            Encoder.load(folder_of(name), providers="native")
    with pytest.raises(BundleError, match="is no late-interaction model"):
        MultiVectorEncoder.load(tiny_bert)
    with pytest.raises(BundleError, match=r"mirror_rt\.Encoder\.load takes it"):
        MultiVectorEncoder.load(bundle)


def damage_projection(folder: Path) -> None:
    path = folder / "1_Dense" / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-4])


def narrow_projection(folder: Path) -> None:
    shutil.rmtree(folder / "1_Dense")
    save_dense(folder / "1_Dense", {"linear.weight": np.zeros((DIMENSION, 31), np.float32)})


def lose_projection(folder: Path) -> None:
    (folder / "1_Dense" / "model.safetensors").unlink()


def change(**values: object) -> Callable[[Path], None]:
    def apply(folder: Path) -> None:
        path = folder / "config_sentence_transformers.json"
        write_json(path, json.loads(path.read_text(encoding="utf-8")) | values)

    return apply


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (damage_projection, "1_Dense.*is not a whole safetensors file"),
        (narrow_projection, r"tokens\.layers\[0\]\.inputs is 31, expected 32"),
        (lose_projection, "1_Dense"),
        (change(query_prefix="[Z] "), r"it has no token '\[Z\] '"),
        (change(query_length=0), "query_length is 0, expected a number of tokens"),
        (change(query_length="32"), "query_length is '32'"),
        (change(document_length=1000), "tokens.document has 0 .. 1000 tokens"),
        (change(document_length=3), "leaves no room for text"),
        (change(skiplist_words=[3]), r"skiplist_words is \[3\], expected strings"),
    ],
)
def test_damaged_folders_are_refused(tiny_bert, tmp_path, spoil, message):
    folder = save_pylate(tiny_bert, tmp_path / "model")
    spoil(folder)
    with pytest.raises(BundleError, match=message):
        MultiVectorEncoder.load(folder)


def test_stanford_needs_the_cosine_and_a_projection(tiny_bert, tmp_path):
    folder = save_stanford(tiny_bert, tmp_path / "distance", similarity="l2")
    with pytest.raises(BundleError, match="similarity is not cosine"):
        MultiVectorEncoder.load(folder)
    folder = save_stanford(tiny_bert, tmp_path / "lost")
    weights = load_file(folder / "model.safetensors")
    del weights["linear.weight"]
    save_file(weights, folder / "model.safetensors")
    with pytest.raises(BundleError, match=r"lacks the tensor linear\.weight"):
        MultiVectorEncoder.load(folder)
