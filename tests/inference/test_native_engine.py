"""The engine in C++ gives what numpy gives, with every instruction set, alone and in a batch."""

import functools

import numpy as np
import pytest

from kernel_tiers import EMULATED, kernel_tiers
from mirror_rt import _core
from native_build import build_emulated, emulated_sets
from native_reference import RandomEncoder, Sizes
from rounding import assert_within_gate, of_runs
from tiers import tiers

ISAS = _core.engine_instruction_sets()
# What this processor lacks is compiled for it, for the tiling is what differs.
KERNELS = kernel_tiers([*ISAS, *(EMULATED + name for name in emulated_sets()["engine"])])
FEW = ("bert", "odd", "modernbert", "gemma", "deberta")
SHAPES = {
    "bert": Sizes(),
    "narrow": Sizes(hidden=36, heads=3, inner=50, layers=1),  # no multiple of any vector
    "odd heads": Sizes(hidden=30, heads=6, inner=31, layers=1),
    "wide heads": Sizes(hidden=160, heads=2, inner=200, layers=1),
    "roberta": Sizes(skipped_id=1),
    "mpnet": Sizes(skipped_id=1, relative=True),
    "albert": Sizes(embedded=20, activation="gelu_tanh"),
    "odd": Sizes(hidden=35, heads=5, inner=51, layers=2),
    "wide embeddings": Sizes(embedded=512, layers=1),
    "modernbert": Sizes(layers=3, windows=(0, 16, 5)),
    "narrow modernbert": Sizes(hidden=36, heads=3, inner=50, layers=2, windows=(70, 3)),
    "pairs": Sizes(layers=1, types=2),
    "deberta": Sizes(distances=True),
    "odd deberta": Sizes(hidden=35, heads=5, inner=51, layers=1, distances=True),
    "qwen": Sizes(
        windows=(0, 0), activation="silu", decoder=True, causal=True, key_heads=2, size=24
    ),
    "gemma": Sizes(
        hidden=36,
        heads=6,
        inner=50,
        layers=3,
        windows=(7, 0, 20),
        activation="relu",
        decoder=True,
        key_heads=1,
        size=14,
    ),
    "causal windows": Sizes(
        layers=1, heads=3, hidden=33, windows=(9,), decoder=True, causal=True, size=10
    ),
}
LENGTHS = [1, 2, 3, 7, 8, 15, 16, 17, 31, 33, 64, 65, 129, 150]
PRECISIONS = ("fp32", "bf16", "int8")


@pytest.fixture(scope="session")
def emulated_core():
    return build_emulated()


@pytest.fixture
def make(request):
    def make(encoder, precision, kernel=""):
        emulated = kernel.startswith(EMULATED)
        core = request.getfixturevalue("emulated_core") if emulated else _core
        return encoder.native(core, precision, kernel.removeprefix(EMULATED))

    return make


def texts_of(lengths, vocabulary=60, seed=1):
    generator = np.random.default_rng(seed)
    return [generator.integers(0, vocabulary, n).tolist() for n in lengths]


@functools.cache
def expected_of(shape):
    """A random encoder, texts, and the vectors of their tokens by numpy."""
    random, texts = RandomEncoder(SHAPES[shape]), texts_of(LENGTHS)
    return random, texts, [random.token_vectors(text) for text in texts]


def run(encoder, texts, pooling="mean", *, normalize=True, threads=1, alone=None):
    longest = max(map(len, texts))
    ids, mask = np.zeros((2, len(texts), longest), np.int64)
    for row, text in enumerate(texts):
        ids[row, : len(text)], mask[row, : len(text)] = text, 1
        if alone is not None:
            mask[row, len(text) - alone[row] : len(text)] = 2
    options = {"normalize": normalize, "threads": threads, "spins": 100}
    return encoder.run(ids, mask, pooling=pooling, **options)


def error_of(shape):
    """Bound the components of a unit vector, the reference of which is float64."""
    s = SHAPES[shape]
    return of_runs(max(LENGTHS), layers=s.layers, hidden=max(s.hidden, s.embedded),
                   head=s.head, inner=s.inner) / 2  # fmt: skip


def assert_close(found, expected, shape):
    error = error_of(shape) * np.linalg.norm(expected, axis=1).max()
    np.testing.assert_allclose(found, expected, rtol=0, atol=error)


def unit(x):
    return x / np.linalg.norm(x, axis=-1, keepdims=True)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("kernel", KERNELS)
def test_float32_is_that_of_numpy(make, kernel, shape):
    random, texts, expected = expected_of(shape)
    encoder = make(random, "fp32", kernel)
    tokens = run(encoder, texts, "none", normalize=False)
    assert_close(tokens, np.concatenate(expected), shape)
    means = unit(np.array([vectors.mean(0) for vectors in expected]))
    assert_close(run(encoder, texts), means, shape)
    firsts = np.array([vectors[0] for vectors in expected])
    assert_close(run(encoder, texts, "cls", normalize=False), firsts, shape)
    lasts = np.array([vectors[-1] for vectors in expected])
    assert_close(run(encoder, texts, "lasttoken", normalize=False), lasts, shape)
    largest = np.array([vectors.max(0) for vectors in expected])
    assert_close(run(encoder, texts, "max", normalize=False), largest, shape)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("kernel", KERNELS)
def test_the_last_tokens_may_attend_alone(make, kernel, shape):
    random, texts, _ = expected_of(shape)
    encoder = make(random, "fp32", kernel)
    window = min((one for one in SHAPES[shape].windows if one), default=max(LENGTHS))
    alone = [min(n // 3, window) for n in LENGTHS]
    expected = [
        random.token_vectors(text, attended=len(text) - last)
        for text, last in zip(texts, alone, strict=True)
    ]
    tokens = run(encoder, texts, "none", normalize=False, alone=alone)
    assert_close(tokens, np.concatenate(expected), shape)


def test_each_token_has_one_to_attend_to():
    ids = np.ones((1, 12), np.int64)
    options = {"pooling": "none", "normalize": False, "threads": 1, "spins": 0}
    encoder = RandomEncoder(SHAPES["bert"]).native(_core, "fp32")
    for mask, message in (([2] * 12, "none to attend to"), ([1, 2] * 6, "must be the last")):
        with pytest.raises(ValueError, match=message):
            encoder.run(ids, np.array([mask]), **options)
    windowed = RandomEncoder(SHAPES["modernbert"]).native(_core, "fp32")
    windowed.run(ids, np.array([[1] * 7 + [2] * 5]), **options)
    with pytest.raises(ValueError, match="none to attend to"):
        windowed.run(ids, np.array([[1] * 6 + [2] * 6]), **options)


@pytest.mark.parametrize("number", [0, 3, 7])
def test_the_largest_of_numbers_that_are_not_finite(number):
    random = RandomEncoder(Sizes(layers=1))
    random.words[5] = np.nan
    encoder, text = random.native(_core, "fp32"), [1] * 8
    text[number] = 5
    assert np.isnan(run(encoder, [text], "max", normalize=False)).all()


def test_pairs_of_texts_have_two_types():
    random = RandomEncoder(SHAPES["pairs"])
    encoder, texts = random.native(_core, "fp32"), texts_of([2, 9, 30])
    ids, mask, types = np.zeros((3, len(texts), 30), np.int64)
    given = [[0] * (len(text) // 2) + [1] * (len(text) - len(text) // 2) for text in texts]
    for row, (text, kinds) in enumerate(zip(texts, given, strict=True)):
        ids[row, : len(text)], mask[row, : len(text)], types[row, : len(text)] = text, 1, kinds
    options = {"normalize": False, "threads": 2, "spins": 0}
    found = encoder.run(ids, mask, types=types, pooling="none", **options)
    vectors = [random.token_vectors(*each) for each in zip(texts, given, strict=True)]
    assert_close(found, np.concatenate(vectors), "pairs")
    firsts = encoder.run(ids, mask, types=types, pooling="cls", **options)
    assert_close(firsts, np.array([vectors_of[0] for vectors_of in vectors]), "pairs")
    with pytest.raises(IndexError, match=r"token type 2 is outside 0 .. 1"):
        encoder.run(ids, mask, types=types * 2, pooling="cls", **options)
    with pytest.raises(ValueError, match="same two dimensions"):
        encoder.run(ids, mask, types=types[:1], pooling="cls", **options)


@pytest.mark.parametrize("precision", ["bf16", "int8"])
@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("shape", tiers(SHAPES, fast=FEW))
def test_other_precisions_are_close(make, shape, kernel, precision):
    random, texts, expected = expected_of(shape)
    means = unit(np.array([vectors.mean(0) for vectors in expected]))
    found = run(make(random, precision, kernel), texts)
    assert_within_gate(found, means, precision)


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("shape", ["mpnet", "modernbert", "qwen", "gemma", "deberta"])
def test_a_text_has_the_same_vector_in_every_batch(make, shape, kernel, precision):
    encoder = make(RandomEncoder(SHAPES[shape]), precision, kernel)
    texts = texts_of([*LENGTHS, *LENGTHS[::-1], 5, 5])
    alone = np.concatenate([run(encoder, [text]) for text in texts])
    for order in (range(len(texts)), range(len(texts))[::-1], [3, 27, 13], [13, 0]):
        for threads in (1, 2, 5):
            assert np.array_equal(
                run(encoder, [texts[i] for i in order], threads=threads), alone[list(order)]
            )


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("shape", tiers(["odd", "odd heads", "wide embeddings"], fast=["odd"]))
def test_memory_that_is_used_again_changes_no_vector(make, shape, kernel, precision):
    random, texts, _ = expected_of(shape)
    encoder = make(random, precision, kernel)
    expected = run(encoder, texts)
    assert np.isfinite(expected).all()
    words = random.words
    random.words = words.copy()
    random.words[59] = np.nan  # no text has it but those that leave NaN in all memory
    try:
        dirty = make(random, precision, kernel)
    finally:
        random.words = words
    clean = [[id % 59 for id in text] for text in texts]
    assert np.isnan(run(dirty, [[59] * 150] * 20)).all()
    assert np.array_equal(run(dirty, clean), run(encoder, clean))


@pytest.mark.parametrize("number", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("kernel", KERNELS)
def test_numbers_that_are_not_finite_are_seen(make, kernel, precision, number):
    for matrix in ("query_key_value", "attention_out", "inner", "out"):
        random = RandomEncoder(SHAPES["bert"])
        random.layers[0][matrix][0][3, 5] = number
        assert not np.isfinite(run(make(random, precision, kernel), [[1, 2, 3]])).any()


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("size", [1e-40, 1e-30, 1e30])
def test_weights_of_any_size_give_finite_int8(make, kernel, size):
    random = RandomEncoder(SHAPES["bert"])
    for layer in random.layers:
        layer["inner"] = tuple((x * size).astype(np.float32) for x in layer["inner"])
        layer["out"] = (layer["out"][0] / max(size, 1e-30), layer["out"][1])
    assert np.isfinite(run(make(random, "int8", kernel), [[1, 2, 3], [4]])).all()


@pytest.mark.parametrize("kernel", KERNELS)
def test_int8_products_of_weights_of_one_sign(make, kernel):
    """Neighbours that are all as large as they can be are added without overflow."""
    random, texts = RandomEncoder(SHAPES["bert"]), texts_of(LENGTHS)
    for layer in random.layers:
        weight, bias = layer["inner"]
        layer["inner"] = (weight, bias + 10)  # all activations are near the largest
        signs = np.where(np.arange(layer["out"][0].shape[1]) % 2, 1, -1)
        layer["out"] = (
            (np.ones_like(layer["out"][0]) * signs / 20).astype(np.float32),
            layer["out"][1],
        )
    expected = unit(np.array([random.token_vectors(text).mean(0) for text in texts]))
    found = run(make(random, "int8", kernel), texts)
    assert_within_gate(found, expected, "int8")


@pytest.mark.parametrize("kernel", KERNELS)
def test_large_numbers_make_only_their_own_block_coarse_in_int8(make, kernel):
    random = RandomEncoder(Sizes(hidden=512, heads=8, inner=256, layers=1, windows=(0,)))
    texts = texts_of(LENGTHS)
    (layer,) = random.layers
    gains, weights = layer["attention_norm"][0], layer["inner"][0]
    gains[0], weights[0] = 1000, 0  # a large activation, which nothing is made of
    gains[1], layer["attention_norm"][1][1], weights[1] = 0, 0, 1000  # weights likewise
    weights[2:256] = 0  # what is made comes from other blocks
    expected = unit(np.array([random.token_vectors(text).mean(0) for text in texts]))
    assert_within_gate(run(make(random, "int8", kernel), texts), expected, "int8")
    weights[:] = 0  # as if the large numbers had rounded all others to 0
    lost = unit(np.array([random.token_vectors(text).mean(0) for text in texts]))
    assert (lost * expected).sum(1).max() < 0.97


def test_shared_layers_are_those_of_a_copy():
    random = RandomEncoder(SHAPES["bert"])
    random.layers[1:] = [random.layers[0]] * 3
    copied = random.native(_core, "int8")
    random.layers[1:] = []
    shared = random.native(_core, "int8")
    for _ in range(3):
        shared.repeat_layer(0)
    texts = texts_of(LENGTHS)
    assert np.array_equal(run(shared, texts), run(copied, texts))


def test_wrong_shapes_and_ids_are_refused():
    random = RandomEncoder(SHAPES["bert"])
    encoder = random.native(_core, "fp32")
    with pytest.raises(IndexError, match="token id 60 is outside"):
        run(encoder, [[1, 60]])
    with pytest.raises(IndexError, match="token id -1 is outside"):
        run(encoder, [[-1]])
    with pytest.raises(IndexError, match=r"151 tokens: expected 1 .. 150"):
        run(encoder, [[1] * 151])
    ids = np.ones((2, 3), np.int64)
    options = {"pooling": "mean", "normalize": True, "threads": 1, "spins": 0}
    with pytest.raises(IndexError, match="a text of 0 tokens"):
        encoder.run(ids, ids * 0, **options)
    with pytest.raises(ValueError, match="padded on the right"):
        encoder.run(ids, np.array([[1, 0, 1], [1, 1, 1]]), **options)
    with pytest.raises(ValueError, match="same two dimensions"):
        encoder.run(ids, ids[:1], **options)
    for sizes, message in [
        (Sizes(positions=2**20 + 1), "the number of positions is 1048577, expected 1 .. 1048576"),
        (Sizes(hidden=65537, heads=1, layers=0), "the hidden size is 65537"),
        (Sizes(heads=6, key_heads=4, size=10), "of keys do not divide"),
        (Sizes(distances=True, key_heads=2), "distances need a head of keys for each"),
    ]:
        with pytest.raises(ValueError, match=message):
            RandomEncoder(sizes).native(_core, "fp32")
    layer = random.layers[0]
    with pytest.raises(ValueError, match="inner has another shape"):
        encoder.add_layer(**layer | {"inner": layer["out"]})
    with pytest.raises(ValueError, match="distances need buckets"):
        encoder.add_layer(**layer, distances=layer["inner"][0])
    disentangled = RandomEncoder(SHAPES["deberta"])
    with pytest.raises(ValueError, match="distances has another shape"):
        disentangled.layers[0]["distances"] = disentangled.layers[0]["distances"][1:]
        disentangled.native(_core, "fp32")
    with pytest.raises(ValueError, match=r"2 positions - 1 distances, in order"):
        disentangled.buckets = disentangled.buckets[::-1]
        disentangled.native(_core, "fp32")
    with pytest.raises(ValueError, match="no layer 2"):
        encoder.repeat_layer(2)
    assert run(encoder, [[1]]).shape == (1, 64)
