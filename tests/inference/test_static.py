"""Static encoders: made of a bundle, and read in the layouts of other publishers."""

import importlib
import json
import os
import shutil
import struct
import sys

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file, save_file
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

from mirror_rt import (
    BundleError,
    BundleIntegrityError,
    ConfigError,
    Encoder,
    InvalidTextError,
    _core,
)
from mirror_rt.bundle.identity import digest_of
from mirror_rt.bundle.onnx_files import describe_bundle
from mirror_rt.errors import NonFiniteError
from mirror_rt.io.tensors import read_tensors, write_tensors
from mirror_rt.tokens.padding import RaggedTokens
from mirror_rt.tokens.tokenization import TextTokenizer
from mirror_rt.tokens.validity import why_invalid
from paths import ROOT
from rounding import STATIC_PEER, of_norms

sys.path.append(str(ROOT / "build" / "model2vec"))
WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "the", "river", "run", "##s", "old", "town"]
TEXTS = ["the river", "the old town", "the river runs", "the zzz river", "old town " * 50]
FUZZ = settings(max_examples=int(os.environ.get("MIRROR_RT_FUZZ", "100")), deadline=None,
                suppress_health_check=list(HealthCheck))  # fmt: skip


def tokenizer():
    vocabulary = {word: i for i, word in enumerate(WORDS)}
    made = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    made.normalizer = normalizers.BertNormalizer()
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    made.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    made.enable_truncation(4)  # as many published files have it, and which must not cut
    return made


def table(rows=10, dimension=6, dtype=np.float32, seed=0):
    found = np.random.default_rng(seed).normal(size=(rows, dimension))
    return (found * 20).astype(dtype) if dtype == np.int8 else found.astype(dtype)


def write(folder, tensors, *, key=None, config=None, modules=None, place="."):
    """Write a static encoder as its publishers do."""
    where = folder / place
    where.mkdir(parents=True, exist_ok=True)
    save_file({key: tensors} if key else tensors, where / "model.safetensors")
    tokenizer().save(str(where / "tokenizer.json"))
    if config is not None:
        (folder / "config.json").write_text(json.dumps(config))
    if modules is not None:
        entries = [{"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.{kind}"}
                   for i, (path, kind) in enumerate(modules)]  # fmt: skip
        (folder / "modules.json").write_text(json.dumps(entries))
    return folder


def of_model2vec(folder, tensors, **config):
    return write(folder, tensors, config={"model_type": "model2vec"} | config)


@pytest.fixture
def published(tmp_path):
    """A folder as model2vec writes it, with vectors of unit length."""
    return of_model2vec(tmp_path / "m2v", {"embeddings": table()}, normalize=True)


@pytest.mark.needs("model2vec")
@pytest.mark.parametrize("normalize", [True, False])
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int8])
def test_vectors_are_those_of_model2vec(tmp_path, dtype, normalize):
    model2vec = importlib.import_module("model2vec")
    folder = of_model2vec(tmp_path, {"embeddings": table(dtype=dtype)}, normalize=normalize)
    peer = model2vec.StaticModel.from_pretrained(folder)
    expected = peer.encode(TEXTS, max_length=None)
    encoder = Encoder.load(folder)
    np.testing.assert_allclose(encoder.encode(TEXTS), expected, atol=STATIC_PEER)
    one_by_one = [encoder.encode(text) for text in TEXTS]
    np.testing.assert_array_equal(one_by_one, encoder.encode(TEXTS))


@pytest.mark.needs("model2vec")
def test_a_quantised_vocabulary_of_model2vec(tmp_path):
    model2vec = importlib.import_module("model2vec")
    tensors = {
        "embeddings": table(4),
        "mapping": np.array([0, 1, 2, 3, 0, 1, 2, 3, 1, 1], np.int64),
        "weights": np.linspace(0.1, 2, len(WORDS)).astype(np.float32),
    }
    folder = of_model2vec(tmp_path, tensors, normalize=True)
    expected = model2vec.StaticModel.from_pretrained(folder).encode(TEXTS, max_length=None)
    np.testing.assert_allclose(Encoder.load(folder).encode(TEXTS), expected, atol=STATIC_PEER)


def test_float16_is_computed_in_float32(tmp_path):
    half = table(dtype=np.float16)
    folder = of_model2vec(tmp_path / "half", {"embeddings": half}, normalize=True)
    whole = {"embeddings": half.astype(np.float32)}
    same = of_model2vec(tmp_path / "whole", whole, normalize=True)
    encoder = Encoder.load(folder)
    assert encoder.variant.precision == "fp16"
    np.testing.assert_array_equal(encoder.encode(TEXTS), Encoder.load(same).encode(TEXTS))


@pytest.mark.parametrize("place", [".", "0_StaticEmbedding"])
@pytest.mark.parametrize("normalize", [True, False])
def test_vectors_are_those_of_sentence_transformers(tmp_path, place, normalize):
    from sentence_transformers import SentenceTransformer

    modules = [(place, "models.StaticEmbedding"), ("1_Normalize", "models.Normalize")]
    folder = write(tmp_path, table(), key="embedding.weight", place=place,
                   modules=modules[: 1 + normalize])  # fmt: skip
    expected = SentenceTransformer(str(folder), device="cpu").encode(TEXTS)
    np.testing.assert_allclose(Encoder.load(folder).encode(TEXTS), expected, atol=STATIC_PEER)


def test_unknown_words_count_as_the_peers_have_it(published, tmp_path):
    encoder = Encoder.load(published)
    assert encoder.tokenize(["the zzz river"]) == [[4, 5]]
    np.testing.assert_array_equal(encoder.encode("the zzz river"), encoder.encode("the river"))
    folder = write(tmp_path / "st", table(), key="embedding.weight",
                   modules=[(".", "models.StaticEmbedding")])  # fmt: skip
    assert Encoder.load(folder).tokenize(["the zzz river"]) == [[4, 1, 5]]


def test_a_text_of_unknown_words_alone_is_refused_by_itself(published):
    encoder = Encoder.load(published)
    with pytest.raises(InvalidTextError, match="item 1: it has no tokens"):
        encoder.encode(["the river", "zzz zzz"])
    with pytest.raises(InvalidTextError, match="it has no tokens"):
        encoder.encode("zzz")
    vectors = encoder.encode(["the river", "zzz"], errors="nan")
    np.testing.assert_array_equal(vectors[0], encoder.encode("the river"))
    assert np.isnan(vectors[1]).all()
    assert not encoder.encode(["the river", "zzz"], errors="zero")[1].any()  # as model2vec gives it


def test_a_mean_of_zero_is_no_vector(tmp_path):
    vectors = table()
    vectors[5] = -vectors[4]
    vectors[8] = 0
    encoder = Encoder.load(of_model2vec(tmp_path, {"embeddings": vectors}))
    for text in ("the river", "old"):
        with pytest.raises(NonFiniteError, match="item 1: the model gives it no finite vector"):
            encoder.encode(["town", text])
    assert np.isfinite(encoder.encode(["town", "old"], errors="nan")[0]).all()


def test_long_texts_are_not_cut(published):
    encoder = Encoder.load(published)
    found = encoder.encode_with_info(["old " * 100_000 + "river"])
    assert found.token_counts.tolist() == [100_001]
    assert not found.truncated.any()
    assert encoder.max_length == 1_048_576
    limited = encoder.pipeline.tokenizer
    limited.limit(5)
    assert limited(["old " * 5, "old " * 6]).truncated == [False, True]


def test_batches_of_a_scheduler_give_the_same(published):
    import asyncio

    encoder = Encoder.load(published)
    found = asyncio.run(encoder.aencode(TEXTS))
    np.testing.assert_allclose(found, encoder.encode(TEXTS), atol=of_norms(6))


def test_token_ids_in_place_of_texts(published):
    encoder = Encoder.load(published)
    plan = encoder.pipeline.plan()
    rows = encoder.pipeline.tokenize([[4, 1, 5], [4, 5]], plan)
    assert rows.tokens.lengths.tolist() == [2, 2]
    with pytest.raises(InvalidTextError, match="item 0: it has no tokens"):
        encoder.pipeline.tokenize([[1, 1]], plan)


def test_a_cache_of_vectors_is_not_opened(published, tmp_path):
    with Encoder.load(published, cache=str(tmp_path / "cache")) as encoder:
        encoder.encode(["the river", "the river"])
        assert encoder.pipeline.cache is None
    assert not (tmp_path / "cache").exists()


def test_options_for_other_engines_are_refused(published):
    for options in ({"providers": "cuda"}, {"providers": "openvino"}, {"devices": [0]}):
        with pytest.raises(ConfigError, match="static encoder"):
            Encoder.load(published, **options)
    with pytest.raises(BundleError, match="no variant 'int8'"):
        Encoder.load(published, variant="int8")
    with Encoder.load(published, providers="cpu") as encoder:
        assert encoder.providers == ["native"]
        assert "table" in encoder.provider_reason
    with pytest.raises(RuntimeError, match="closed"):
        encoder.encode("the river")


@FUZZ
@given(texts=st.lists(st.one_of(st.text(), st.text(st.characters(max_codepoint=127)),
                                st.from_regex(r"(the|RIVER|\[MASK\]|\[unk\]|Town's|[ -~]| )*")),
                      max_size=6))  # fmt: skip
@pytest.mark.parametrize("lowercase", [True, False])
def test_words_have_the_tokens_of_whole_texts(lowercase, texts):
    library = tokenizer()
    library.normalizer = normalizers.BertNormalizer(lowercase=lowercase)
    library.add_special_tokens(["[MASK]"])
    library.add_tokens(["Town's"])
    ours = TextTokenizer(library, max_length=7, pad_id=0)
    ours.leave_out_special(unknown=True)
    ours.limit(8)
    library.enable_truncation(8)
    library.post_processor = None
    texts = [text for text in texts if why_invalid(text) is None]
    expected = [[i for i in one.ids if i != 1] for one in library.encode_batch_fast(texts)]
    for _ in range(2):  # the second time all words are known
        tokens, truncated = ours(texts)
        assert [tokens.ids[a:b].tolist() for a, b in tokens.spans()] == expected
        cut = [bool(one.overflowing) for one in library.encode_batch_fast(texts)]
        assert truncated == cut


def test_the_digest_follows_the_files(published):
    before = digest_of(published)
    write(published, {"embeddings": table(seed=1)[:, :5]})
    assert digest_of(published) != before


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"embeddings": table(9)}, "token id 9, and the table vectors for 9 ids"),
        ({"embeddings": table()[0]}, "no table of vectors"),
        ({"other": table()}, "no table of vectors"),
        ({"embeddings": table(), "weights": np.ones(3, np.float32)}, "token id 9"),
        ({"embeddings": table(), "mapping": np.full(10, 10)}, "mapping has rows"),
        ({"embeddings": table(), "mapping": np.full(10, -1)}, "mapping has rows"),
        ({"embeddings": table(), "mapping": np.ones((2, 5), np.int64)}, "mapping has the shape"),
        ({"embeddings": table(), "mapping": np.ones(10, np.float32)}, "mapping has rows"),
        ({"embeddings": table(), "mapping": np.zeros(10, np.int64),
          "weights": np.ones(9, np.float32)}, "expected as many"),
        ({"embeddings": table().astype(np.complex64)}, "is of type 'C64'"),
    ],
)  # fmt: skip
def test_tables_that_do_not_fit_are_refused(tmp_path, change, said):
    with pytest.raises(BundleError, match=said):
        Encoder.load(of_model2vec(tmp_path, change))


def test_missing_files_and_other_modules_are_refused(published, tmp_path):
    folder = write(tmp_path / "st", table(), key="embedding.weight",
                   modules=[(".", "models.StaticEmbedding"), ("1", "models.Dense")])  # fmt: skip
    with pytest.raises(BundleError, match="declares StaticEmbedding, Dense"):
        describe_bundle(folder)
    (published / "tokenizer.json").unlink()
    with pytest.raises(BundleError, match=r"without the file .*tokenizer\.json"):
        describe_bundle(published)


def header(**entry):
    text = json.dumps({"embeddings": {"dtype": "F32", "shape": [2, 2], "data_offsets": [0, 16]}
                       | entry}).encode()  # fmt: skip
    return struct.pack("<Q", len(text)) + text + bytes(16)


@pytest.mark.parametrize(
    "content",
    [b"", b"1234567", struct.pack("<Q", 2**60) + b"{}", struct.pack("<Q", 2) + b"[]",
     struct.pack("<Q", 2) + b"{", struct.pack("<Q", 20000) + b"[" * 20000,
     header(data_offsets=[0, 15]), header(data_offsets=[1, 17]), header(data_offsets=[-16, 0]),
     header(shape=[2**40, 2**40]), header(shape=[-2, -2]), header(shape=[[2], 2]),
     header(dtype="F8"), header(shape=[2] * 100), header(data_offsets=[0]), header(shape=None)],
)  # fmt: skip
def test_a_damaged_file_of_tensors_is_refused(tmp_path, content):
    path = tmp_path / "model.safetensors"
    path.write_bytes(content)
    with pytest.raises(BundleError, match="is not a whole safetensors file"):
        read_tensors(path)


@FUZZ
@given(data=st.data())
def test_any_change_of_bytes_is_read_or_refused(tmp_path_factory, data):
    folder = tmp_path_factory.mktemp("fuzz")
    of_model2vec(folder, {"embeddings": table(), "mapping": np.arange(10)})
    path = folder / "model.safetensors"
    content = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, 400))] = data.draw(st.integers(0, 255))
    path.write_bytes(content[: data.draw(st.integers(0, len(content)))] if data.draw(st.booleans())
                     else content)  # fmt: skip
    try:
        encoder = Encoder.load(folder)
        assert encoder.encode(["the old river"], errors="nan").shape == (1, encoder.dimension)
    except BundleError:
        pass
    shutil.rmtree(folder)


def test_tensors_are_written_as_safetensors_reads_them(tmp_path):
    tensors = {"a": table(), "b": np.arange(3, dtype=np.float32)}
    write_tensors(tmp_path / "x", tensors)
    for found in (load_file(tmp_path / "x"), read_tensors(tmp_path / "x")):
        assert found.keys() == tensors.keys()
        for name, array in tensors.items():
            np.testing.assert_array_equal(found[name], array)


def test_bfloat16_is_read(tmp_path):
    import torch
    from safetensors.torch import save_file as save_torch

    save_torch({"embeddings": torch.from_numpy(table()).bfloat16()}, tmp_path / "x")
    np.testing.assert_allclose(read_tensors(tmp_path / "x")["embeddings"], table(), rtol=2**-8)


@pytest.mark.parametrize("length", [31, 32, 33, 1000, 100_000])
def test_the_rounding_of_a_mean_does_not_grow_with_its_length(length, rng):
    vectors = rng.random((10, 6), np.float32)
    ids = rng.integers(0, 10, length).astype(np.int32)
    (found,) = _core.mean_rows(vectors, ids, np.array([0, length]), normalize=False)
    whole = vectors.astype(np.float64)[ids]
    # 32 additions in float32 at most, then the result is rounded once more.
    bound = (32 + 1) * 2**-24 * whole.mean(axis=0)
    assert (abs(found - whole.mean(axis=0)) <= bound).all()


@FUZZ
@given(st.lists(st.lists(st.integers(0, 9), max_size=6), max_size=5), st.booleans(), st.booleans())
def test_means_are_those_of_numpy(sequences, mapped, normalize):
    tokens, vectors = RaggedTokens.from_lists(sequences), table(5 if mapped else 10)
    rows = np.arange(10, dtype=np.int32) % 5 if mapped else None
    weights = np.linspace(1, 2, 10).astype(np.float32) if mapped else None
    found = _core.mean_rows(vectors, tokens.ids, tokens.offsets, row_of=rows, weights=weights,
                            normalize=normalize)  # fmt: skip
    assert found.shape == (len(sequences), 6)
    whole = vectors.astype(np.float64)
    if mapped:
        whole = whole[rows] * weights[:, None]
    for vector, ids in zip(found, sequences, strict=True):
        if not ids:
            assert np.isnan(vector).all()
            continue
        expected = whole[ids].mean(axis=0)
        # Each number is weighed, added up and divided in float32.
        rounding = (len(ids) + 2) * 2**-24 * abs(whole[ids]).mean(axis=0).max()
        if normalize:  # which divides what was off, too, and rounds some more
            norm = np.linalg.norm(expected)
            expected, rounding = expected / norm, 4 * rounding / norm + 6 * 2**-24
        np.testing.assert_allclose(vector, expected, rtol=0, atol=rounding)


def test_lookup_refuses_ids_without_a_row():
    vectors, offsets = table(3), np.array([0, 1])
    for ids, options in (([3], {}), ([-1], {}), ([0], {"row_of": np.array([3], np.int32)}),
                         ([4], {"weights": np.ones(5, np.float32)})):  # fmt: skip
        with pytest.raises(IndexError, match=f"no row for token id {ids[0]}"):
            _core.mean_rows(vectors, np.array(ids, np.int32), offsets, normalize=True, **options)
    for bad in (np.array([0, 2]), np.array([1, 1]), np.array([], np.int64)):
        with pytest.raises(ValueError, match="offsets"):
            _core.mean_rows(vectors, np.array([0], np.int32), bad, normalize=True)
    with pytest.raises(ValueError, match="two dimensions"):
        _core.mean_rows(vectors[0], np.array([0], np.int32), offsets, normalize=True)


@FUZZ
@given(st.lists(st.lists(st.integers(0, 3), max_size=6), max_size=6), st.integers(-1, 4))
def test_an_id_is_left_out(sequences, without):
    tokens = RaggedTokens.from_lists(sequences).without(without)
    kept = [[i for i in ids if i != without] for ids in sequences]
    assert [tokens.ids[a:b].tolist() for a, b in tokens.spans()] == kept
    assert len(tokens.ids) == sum(map(len, kept))


def test_a_changed_table_of_a_bundle_is_noticed(static_bundle, tmp_path):
    folder = shutil.copytree(static_bundle, tmp_path / "copy")
    path = folder / "model.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(BundleIntegrityError, match=r"model\.safetensors has SHA-256"):
        Encoder.load(folder)
    values = json.loads((folder / "mirror.json").read_text()) | {"dimension": 7}
    (folder / "mirror.json").write_text(json.dumps(values))
    with pytest.raises(BundleError, match="dimensions, its manifest says 7"):
        Encoder.load(folder, verify=False)
