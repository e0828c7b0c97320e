"""SparseEncoder: the vectors of sentence-transformers' own, the same in every batch."""

import json
import pickle
import shutil

import numpy as np
import pytest
import sentence_transformers as peer
from safetensors.numpy import load_file, save_file

from json_files import change
from mirror_rt import BundleError, ConfigError, Encoder, InvalidTextError, SparseEncoder
from mirror_rt.bundle.word_tensors import HEADS
from mirror_rt.errors import UnknownOptionError
from mirror_rt.sparse.vectors import SparseVector, SparseVectors
from rounding import GATE
from tiers import tiers
from tiny_models import make_model

WEIGHTS, TABLE = "model.safetensors", "query_0_SparseStaticEmbedding"


@pytest.fixture(scope="module")
def texts(words):
    """From a word to texts that are too long, and equal ones."""
    lengths = [1, 2, 3, 5, 8, 13, 30, 60, 124, 125, 126, 200, 400]
    found = [" ".join(words[i : i + length]) for i, length in enumerate(lengths)]
    return [*found, found[3], "word"]


def of_peer(folder, texts, task="encode", **options):
    model = peer.SparseEncoder(str(folder), device="cpu")
    return getattr(model, task)(texts, **options).to_dense().numpy()


@pytest.mark.parametrize("family", tiers([*HEADS], fast=("bert", "modernbert")))
def test_weights_are_those_of_the_peer(family, tiny_sparse, texts):
    folder = tiny_sparse(family)
    with SparseEncoder.load(folder, threads=2) as encoder:
        found = encoder.encode(texts)
        assert found.shape == (len(texts), encoder.dimension)
        expected = of_peer(folder, texts)
        assert 0 < (expected > 0).mean() < 1  # or all would be words, or none
        np.testing.assert_allclose(found.toarray(), expected, atol=GATE)


@pytest.mark.parametrize(
    "pooling",
    tiers([("max", "log1p_relu"), ("sum", "relu"), ("sum", "log1p_relu")],
          fast=(("sum", "log1p_relu"),)),
)  # fmt: skip
def test_every_pooling_and_weighing(pooling, tiny_sparse, texts):
    folder = tiny_sparse("bert", *pooling)
    found = SparseEncoder.load(folder, threads=1).encode(texts).toarray()
    np.testing.assert_allclose(found, of_peer(folder, texts), rtol=GATE, atol=GATE)


@pytest.mark.parametrize("variant", ["fp32", "bf16", "int8"])
def test_the_same_bits_in_every_batch(variant, tiny_sparse, texts):
    def bits(vectors):
        return [(row.indices.tobytes(), row.values.tobytes()) for row in vectors]

    with SparseEncoder.load(tiny_sparse("bert"), variant=variant, threads=2) as encoder:
        whole = bits(encoder.encode(texts))
        assert bits(encoder.encode(text)[0] for text in texts) == whole
        assert bits(encoder.encode(texts[::-1]))[::-1] == whole
        assert bits(encoder.encode(texts, batch_size=1)) == whole
    with SparseEncoder.load(tiny_sparse("bert"), variant=variant, threads=1) as encoder:
        assert bits(encoder.encode(texts)) == whole


def test_less_precise_products_change_little(tiny_sparse, texts):
    folder = tiny_sparse("distilbert")
    exact = SparseEncoder.load(folder, threads=1).encode(texts).toarray()
    for variant, least in {"bf16": 0.999, "int8": 0.98}.items():
        found = SparseEncoder.load(folder, variant=variant, threads=1).encode(texts).toarray()
        cosines = np.einsum("nd,nd->n", found, exact)
        cosines /= np.linalg.norm(found, axis=1) * np.linalg.norm(exact, axis=1)
        assert cosines.min() > least, variant


def test_few_words_and_a_threshold(tiny_sparse, texts):
    folder = tiny_sparse("bert")
    with SparseEncoder.load(folder, threads=1) as encoder:
        few = encoder.encode(texts, max_active_dims=7)
        assert np.diff(few.indptr).max() == 7
        np.testing.assert_allclose(
            few.toarray(), of_peer(folder, texts, max_active_dims=7), atol=GATE
        )
        above = encoder.encode(texts, threshold=0.5).toarray()
        dense = encoder.encode(texts).toarray()
        np.testing.assert_array_equal(above, np.where(dense > 0.5, dense, 0))
        for wrong in ({"max_active_dims": 0}, {"threshold": -1.0}, {"on_too_long": "chunk"},
                      {"errors": "nan"}):  # fmt: skip
            with pytest.raises(ConfigError, match=next(iter(wrong))):
                encoder.encode(texts, **wrong)
        with pytest.raises(UnknownOptionError, match="takes no argument 'top_k'"):
            encoder.encode(texts, top_k=3)


def test_the_number_of_words_that_a_model_declares(tiny_sparse, texts, tmp_path):
    folder = shutil.copytree(tiny_sparse("bert"), tmp_path / "model")
    change(folder / "config_sentence_transformers.json", max_active_dims=5)
    found = SparseEncoder.load(folder, threads=1).encode(texts)
    assert np.diff(found.indptr).max() == 5
    np.testing.assert_allclose(found.toarray(), of_peer(folder, texts), atol=GATE)


def test_words_of_a_vector(tiny_sparse, texts):
    folder = tiny_sparse("bert")
    encoder = SparseEncoder.load(folder, threads=1)
    model = peer.SparseEncoder(str(folder), device="cpu")
    expected = model.decode(model.encode(texts[4]), top_k=5)
    found = encoder.decode(encoder.encode(texts[4])[0], top_k=5)
    assert [word for word, _ in found] == [word for word, _ in expected]
    np.testing.assert_allclose(*[[weight for _, weight in one] for one in (found, expected)],
                               atol=GATE)  # fmt: skip


def test_texts_that_cannot_be_encoded(tiny_sparse, texts):
    encoder = SparseEncoder.load(tiny_sparse("bert"), threads=1)
    given = [texts[0], " ", None, texts[12]]
    with pytest.raises(InvalidTextError, match="only white space"):
        encoder.encode(given)
    found = encoder.encode(given, errors="zero")
    assert [len(row.indices) > 0 for row in found] == [True, False, False, True]
    with pytest.raises(InvalidTextError, match="tokens"):
        encoder.encode(given[3:], on_too_long="error")
    left = encoder.encode(given[3:], on_too_long="truncate-left").toarray()
    assert not np.array_equal(left, encoder.encode(given[3:]).toarray())
    assert encoder.encode([]).shape == (0, encoder.dimension)


def test_queries_that_are_looked_up(tiny_sparse, texts):
    folder = tiny_sparse("bert", looks_up=True)
    with SparseEncoder.load(folder, threads=1) as encoder:
        assert encoder.looks_up_queries
        for task in ("encode", "encode_query", "encode_document"):
            found = getattr(encoder, task)(texts).toarray()
            np.testing.assert_allclose(found, of_peer(folder, texts, task), atol=GATE)
        few = encoder.encode_query(texts, max_active_dims=3)
        expected = of_peer(folder, texts, "encode_query", max_active_dims=3)
        np.testing.assert_array_equal(few.toarray(), expected)
        one = encoder.encode_query(texts[2])[0]
        np.testing.assert_array_equal(one.values, encoder.encode_query(texts)[2].values)
        with pytest.raises(InvalidTextError):
            encoder.encode_query(["", "a"])
        assert len(encoder.encode_query(["", "a"], errors="zero")[0].indices) == 0
    assert not SparseEncoder.load(tiny_sparse("bert"), threads=1).looks_up_queries


def test_prompts(tiny_sparse, texts, tmp_path):
    folder = shutil.copytree(tiny_sparse("bert"), tmp_path / "model")
    change(folder / "config_sentence_transformers.json", prompts={"query": "the river "})
    encoder = SparseEncoder.load(folder, threads=1)
    found = encoder.encode_query(texts).toarray()
    np.testing.assert_allclose(found, of_peer(folder, texts, "encode_query"), atol=GATE)
    assert not np.array_equal(found, encoder.encode(texts).toarray())


def test_a_masked_language_model_without_modules(made_once, words, texts):
    folder = made_once("masked", lambda out: make_model("roberta", out, words, masked=True))
    found = SparseEncoder.load(folder, threads=1).encode(texts).toarray()
    np.testing.assert_allclose(found, of_peer(folder, texts), atol=GATE)


def test_it_can_be_pickled(tiny_sparse, texts):
    encoder = SparseEncoder.load(tiny_sparse("bert"), threads=1)
    again = pickle.loads(pickle.dumps(encoder))
    np.testing.assert_array_equal(again.encode(texts).values, encoder.encode(texts).values)


def _without(tensors):
    del tensors["cls.predictions.transform.dense.weight"]


def _of_another_shape(tensors):
    tensors["cls.predictions.bias"] = tensors["cls.predictions.bias"][:-1]


def _not_finite(tensors):
    tensors["cls.predictions.transform.dense.bias"][3] = np.nan


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (_without, r"lacks the tensor cls.predictions.transform.dense.weight"),
        (_of_another_shape, r"cls.predictions.bias has the shape \[\d+\], expected \[\d+\]"),
        (_not_finite, r"dense.bias has weights that are not finite"),
    ],
)
def test_a_damaged_head(damage, said, tiny_sparse, tmp_path):
    folder = shutil.copytree(tiny_sparse("bert"), tmp_path / "model")
    tensors = load_file(folder / WEIGHTS)
    damage(tensors)
    save_file(tensors, folder / WEIGHTS)
    with pytest.raises(BundleError, match=said):
        SparseEncoder.load(folder)


@pytest.mark.parametrize(
    ("file", "values", "said"),
    [
        ("1_SpladePooling/config.json", {"pooling_strategy": "mean"}, "pooling"),
        ("1_SpladePooling/config.json", {"activation_function": "gelu"}, "weighing"),
        ("config.json", {"hidden_act": "mish"}, "hidden_act is 'mish'"),
        ("config.json", {"model_type": "deberta-v2"}, "whose head of words is not known"),
        ("config.json", {"tie_word_embeddings": False}, "lacks the tensor cls.predictions.decoder"),
        ("sentence_bert_config.json",
         {"modality_config": {"text": {"method": "forward",
                                       "method_output_name": "last_hidden_state"}}},
         "give no logits of words"),
        ("config_sentence_transformers.json", {"model_type": "CrossEncoder"}, "expected a Sparse"),
    ],
)  # fmt: skip
def test_what_is_declared_is_followed_or_refused(file, values, said, tiny_sparse, tmp_path):
    folder = shutil.copytree(tiny_sparse("bert"), tmp_path / "model")
    change(folder / file, **values)
    with pytest.raises(BundleError, match=said):
        SparseEncoder.load(folder)


def test_damaged_tables_and_routes(tiny_sparse, tmp_path):
    folder = shutil.copytree(tiny_sparse("bert", looks_up=True), tmp_path / "model")
    weights = load_file(folder / TABLE / WEIGHTS)["weight"]
    for wrong, said in {"short": "expected", "nan": "not finite"}.items():
        changed = weights[:-1] if wrong == "short" else weights * np.float32(np.nan)
        save_file({"weight": np.ascontiguousarray(changed)}, folder / TABLE / WEIGHTS)
        with pytest.raises(BundleError, match=said):
            SparseEncoder.load(folder)
    routes = json.loads((folder / "router_config.json").read_text())
    routes["parameters"]["default_route"] = "query"
    (folder / "router_config.json").write_text(json.dumps(routes))
    with pytest.raises(BundleError, match="by default to query"):
        SparseEncoder.load(folder)
    routes["structure"] = {"document": ["elsewhere"]}
    (folder / "router_config.json").write_text(json.dumps(routes))
    with pytest.raises(BundleError, match="modules without types"):
        SparseEncoder.load(folder)


def test_other_kinds_are_told_apart(tiny_sparse, tiny_bert, tiny_bundle):
    with pytest.raises(BundleError, match="SparseEncoder"):
        Encoder.load(tiny_sparse("bert"))
    with pytest.raises(BundleError, match=r"no (mirror.json|sparse encoder)|sparse encoder"):
        SparseEncoder.load(tiny_bert)
    with pytest.raises(BundleError, match=r"mirror_rt.Encoder.load takes it"):
        SparseEncoder.load(tiny_bundle("bert"))
    with pytest.raises(ConfigError, match="pooling"):
        SparseEncoder.load(tiny_sparse("bert"), pooling="mean")


def test_sparse_vectors_as_other_forms(rng):
    dense = np.where(rng.random((5, 30)) < 0.2, rng.random((5, 30)), 0).astype(np.float32)
    dense[3] = 0
    rows = [SparseVector(np.flatnonzero(row).astype(np.int32), row[row != 0]) for row in dense]
    vectors = SparseVectors.join(rows, 30)
    np.testing.assert_array_equal(vectors.toarray(), dense)
    np.testing.assert_allclose(vectors.dot(vectors), dense @ dense.T, rtol=1e-6)
    np.testing.assert_array_equal(vectors[1:4].toarray(), dense[1:4])
    np.testing.assert_array_equal(vectors[-1].values, rows[-1].values)
    assert vectors.as_dict()[3] == {"indices": [], "values": []}
    assert [len(row.indices) for row in vectors] == np.count_nonzero(dense, axis=1).tolist()
    with pytest.raises(IndexError):
        vectors[5]
