import json

import numpy as np
import pytest

from mirror_rt import (
    BundleError,
    ConfigError,
    Encoder,
    InvalidTextError,
    calibration_ranges,
    quantize_embeddings,
)
from mirror_rt.vectors.quantization import unit_ranges
from rounding import HALF_UNIT, NORM_ERROR, of_norms

TEXTS = [
    "the river",
    "a",
    "人人生而自由，在尊严和权利上一律平等。",
    "the old town " * 9,
    "word",
] * 3
UNIT = of_norms(32, times=1)


def test_shapes_dtype_and_unit_length(encoder):
    vectors = encoder.encode(TEXTS)
    assert vectors.shape == (15, 32)
    assert vectors.dtype == np.float32
    np.testing.assert_allclose(np.linalg.norm(vectors.astype(float), axis=1), 1, atol=UNIT)
    assert encoder.encode("one string").shape == (32,)
    assert encoder.encode([]).shape == (0, 32)
    assert (encoder.dimension, encoder.max_length, encoder.mask_token) == (32, 128, "[MASK]")


def test_unnormalised_vectors_point_the_same_way(encoder):
    plain = encoder.encode(TEXTS, normalize_embeddings=False).astype(float)
    norms = np.linalg.norm(plain, axis=1, keepdims=True)
    assert not np.allclose(norms, 1)
    np.testing.assert_allclose(plain / norms, encoder.encode(TEXTS), atol=UNIT)


def test_truncate_dim_renormalises(encoder):
    full, cut = encoder.encode(TEXTS)[:, :8].astype(float), encoder.encode(TEXTS, truncate_dim=8)
    expected = full / np.linalg.norm(full, axis=1, keepdims=True)
    np.testing.assert_allclose(cut, expected, atol=UNIT)
    plain = encoder.encode(TEXTS, truncate_dim=8, normalize_embeddings=False)
    np.testing.assert_array_equal(plain, encoder.encode(TEXTS, normalize_embeddings=False)[:, :8])


@pytest.mark.parametrize("precision", ["float32", "float16", "int8", "uint8", "binary", "ubinary"])
@pytest.mark.parametrize("truncate_dim", [None, 12])
def test_precision_is_that_of_the_quantised_vectors(encoder, precision, truncate_dim):
    vectors = encoder.encode(TEXTS, truncate_dim=truncate_dim)
    found = encoder.encode(TEXTS, precision=precision, truncate_dim=truncate_dim)
    expected = quantize_embeddings(vectors, precision)
    assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
    np.testing.assert_array_equal(found, expected)
    one = encoder.encode(TEXTS[0], precision=precision, truncate_dim=truncate_dim)
    assert one.shape == found.shape[1:]


def test_int8_with_ranges_of_vectors_that_are_not_unit(encoder, bundle_copy):
    plain = encoder.encode(TEXTS, normalize_embeddings=False)
    ranges = calibration_ranges(plain)
    found = encoder.encode(TEXTS, normalize_embeddings=False, precision="uint8", ranges=ranges)
    np.testing.assert_array_equal(found, quantize_embeddings(plain, "uint8", ranges))
    path = bundle_copy / "mirror.json"
    path.write_text(json.dumps(json.loads(path.read_text("utf-8")) | {"normalize": False}))
    for unsure, options in (
        (encoder, {"normalize_embeddings": False}),
        (Encoder.load(bundle_copy), {}),
    ):
        with pytest.raises(ConfigError, match="not of unit length needs ranges"):
            unsure.encode(TEXTS, precision="int8", **options)


def test_similarity(encoder):
    vectors = encoder.encode(TEXTS[:4])
    # The first side is made unit vectors again; then 32 products are added up, in any order.
    expected = vectors.astype(float) @ vectors.astype(float).T
    found = encoder.similarity(3 * vectors, vectors)
    np.testing.assert_allclose(found, expected, atol=3 * UNIT + 32 * HALF_UNIT)


def test_any_iterable(encoder):
    expected = encoder.encode(TEXTS)
    np.testing.assert_array_equal(encoder.encode(text for text in TEXTS), expected)
    np.testing.assert_array_equal(encoder.encode(np.array(TEXTS)), expected)
    np.testing.assert_array_equal(encoder.encode(tuple(TEXTS)), expected)


def test_order_over_several_windows(encoder):
    many = [f"{TEXTS[i % 5]} {i % 7}" for i in range(9000)]
    vectors = encoder.encode(many, show_progress_bar=True)
    for i in (0, 1, 8191, 8192, 8999):
        np.testing.assert_array_equal(vectors[i], encoder.encode(many[i]))


@pytest.mark.parametrize(
    "bad", [None, b"bytes", 7, 1.5, {"a": 1}, {"set"}], ids=lambda value: type(value).__name__
)
def test_a_bad_input_is_one_clear_error(encoder, bad):
    with pytest.raises(InvalidTextError, match=f"got {type(bad).__name__}"):
        encoder.encode(bad)
    if isinstance(bad, bytes):
        with pytest.raises(InvalidTextError, match="item 1: expected str, got bytes"):
            encoder.encode(["good", bad])


@pytest.mark.parametrize("bad", ["", "  ", "a\udfffb", None, 3, b"x"])
def test_a_bad_item_is_named_or_alone_suffers(encoder, bad):
    texts = ["good", bad, "fine"]
    with pytest.raises(InvalidTextError) as caught:
        encoder.encode(texts)
    assert [position for position, _ in caught.value.items] == [1]
    vectors = encoder.encode(texts, errors="nan")
    assert np.isnan(vectors[1]).all()
    np.testing.assert_array_equal(vectors[[0, 2]], encoder.encode(["good", "fine"]))


def test_many_bad_items_are_counted(encoder):
    with pytest.raises(InvalidTextError, match="and 7 more") as caught:
        encoder.encode([""] * 10)
    assert len(caught.value.items) == 10


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_size": 0}, "batch_size must be at least 1, got 0"),
        ({"truncate_dim": 0}, r"truncate_dim must be in 1 .. 32, got 0"),
        ({"truncate_dim": 33}, r"truncate_dim must be in 1 .. 32, got 33"),
        ({"batch_size": 2.5}, "batch_size must be an integer, got 2.5"),
        ({"precision": "int4"}, "precision must be one of float32, .*, got 'int4'"),
        ({"precision": "int8", "errors": "nan"}, "needs precision float32 or float16: int8 has no"),
        ({"ranges": np.zeros((2, 32))}, "ranges are for int8 and uint8, not float32"),
        ({"errors": "ignore"}, "errors must be 'raise', 'nan' or 'zero', got 'ignore'"),
    ],
)
def test_bad_options(encoder, options, message):
    with pytest.raises(ConfigError, match=message):
        encoder.encode(["a"], **options)


@pytest.mark.parametrize("precision", ["float32", "float16", "int8", "binary"])
def test_zeros_for_what_cannot_be_encoded(bundle, caplog, precision):
    encoder = Encoder.load(bundle)
    vectors = encoder.encode(["a", None, "b", " "], errors="zero", precision=precision)
    ranges = unit_ranges(32) if precision == "int8" else None
    zeros = quantize_embeddings(np.zeros((1, 32), np.float32), precision, ranges)
    np.testing.assert_array_equal(vectors[[1, 3]], np.repeat(zeros, 2, axis=0))
    np.testing.assert_array_equal(vectors[0], encoder.encode("a", precision=precision))
    assert "2 of 4 texts cannot be encoded, and get vectors of zeros" in caplog.text


def test_tokenize(encoder):
    ids = encoder.tokenize(["the river", "a"])
    assert [row[0] for row in ids] == [2, 2]
    assert [row[-1] for row in ids] == [3, 3]
    assert encoder.tokenize("the river") == ids[:1]
    assert encoder.tokenize([]) == []
    with pytest.raises(InvalidTextError):
        encoder.tokenize([""])


@pytest.mark.parametrize("threads", [0, -1, 10**12])
def test_threads(bundle, threads):
    with pytest.raises(ConfigError, match=r"threads must be in 1 .. 1024"):
        Encoder.load(bundle, threads=threads)


def test_a_text_of_no_tokens(bundle_copy):
    path = bundle_copy / "tokenizer.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"post_processor": None}))
    encoder = Encoder.load(bundle_copy, verify=False)
    texts = ["river", "\x01\x02", "town"]
    with pytest.raises(InvalidTextError, match="item 1: it has no tokens"):
        encoder.encode(texts)
    vectors = encoder.encode(texts, errors="nan")
    assert np.isnan(vectors).all(axis=1).tolist() == [False, True, False]


def test_a_graph_without_pooled_outputs_is_refused(bundle_copy):
    import onnx

    path = bundle_copy / "onnx" / "model.onnx"
    model = onnx.load(path)
    del model.graph.output[1]
    onnx.save(model, path)
    with pytest.raises(
        BundleError, match="expected the pooled sentence_embedding, pooled_embedding"
    ):
        Encoder.load(bundle_copy, verify=False, providers="cpu")


def test_a_file_that_is_no_graph_is_refused(bundle_copy):
    (bundle_copy / "onnx" / "model.onnx").write_bytes(b"not a graph")
    with pytest.raises(BundleError, match="onnxruntime cannot load"):
        Encoder.load(bundle_copy, verify=False)


def test_the_weights_stay_in_the_file_where_they_can(bundle, tmp_path):
    """Mapped, not copied: where the file is the very one, and no link of a hub's cache."""
    import shutil

    mapped = Encoder.load(bundle, providers="cpu")
    assert mapped.pipeline.model.runner.graph.name == "model_mapped.onnx"
    linked = shutil.copytree(bundle, tmp_path / "linked")
    (linked / "onnx" / "model.onnx").unlink()
    (linked / "onnx" / "model.onnx").symlink_to(bundle / "onnx" / "model.onnx")
    copied = Encoder.load(linked, providers="cpu")
    assert copied.pipeline.model.runner.graph.name == "model.onnx"
    texts = ["a river", "the old town hall by the river"]
    np.testing.assert_allclose(mapped.encode(texts), copied.encode(texts), atol=NORM_ERROR)


def test_a_column_of_arrow_is_texts(bundle):
    import pyarrow

    encoder = Encoder.load(bundle)
    found = encoder.encode(pyarrow.chunked_array([["the river"], ["old town"]]))
    np.testing.assert_array_equal(found, encoder.encode(["the river", "old town"]))
