"""The head of a masked language model in C++, beside numpy, with every instruction set."""

import math
from itertools import pairwise

import numpy as np
import pytest

from mirror_rt import _core
from mirror_rt.inference.vector_layers import ACTIVATIONS

SETS = _core.engine_instruction_sets()
# Texts of a few tokens, and one of more than a block of 128.
LENGTHS = [3, 1, 140, 7, 129, 2]


def make(rng, hidden=24, inner=17, words=131):
    def pair(*shape):
        return (
            rng.normal(size=shape).astype(np.float32) / math.sqrt(shape[0]),
            rng.normal(size=shape[-1:]).astype(np.float32) * np.float32(0.1),
        )

    scales = (rng.normal(size=inner).astype(np.float32) + 1, rng.normal(size=inner))
    return {
        "dense": pair(hidden, inner),
        "norm": (scales[0], scales[1].astype(np.float32) * np.float32(0.1)),
        "decoder": pair(inner, words),
    }


def weigh(weights, tokens, offsets, pooling, twice, activation="gelu"):
    """The same in float64."""
    dense, norm, decoder = (
        [np.asarray(one, np.float64) for one in weights[name]]
        for name in ("dense", "norm", "decoder")
    )
    x = ACTIVATIONS[activation](tokens.astype(np.float64) @ dense[0] + dense[1])
    x -= x.mean(axis=1, keepdims=True)
    x = x / np.sqrt((x**2).mean(axis=1, keepdims=True) + 1e-12) * norm[0] + norm[1]
    found = np.log1p(np.maximum(x @ decoder[0] + decoder[1], 0))
    found = np.log1p(found) if twice else found
    parts = [found[a:b] for a, b in pairwise(offsets)]
    return np.stack([getattr(part, pooling)(axis=0) for part in parts])


@pytest.mark.parametrize("isa", SETS)
@pytest.mark.parametrize("precision", ["fp32", "bf16", "int8"])
def test_weights_and_their_bits(isa, precision, rng):
    weights, offsets = make(rng), np.cumsum([0, *LENGTHS])
    tokens = rng.normal(size=(offsets[-1], 24)).astype(np.float32)
    head = _core.NativeVocabulary(
        precision=precision, activation="gelu", epsilon=1e-12, instruction_set=isa, **weights
    )
    for pooling, twice in (("max", False), ("max", True), ("sum", False)):
        options = {"pooling": pooling, "twice": twice, "spins": 10}
        found = head.run(tokens, offsets, threads=2, **options)
        expected = weigh(weights, tokens, offsets, pooling, twice)
        limit = {"fp32": 1e-5, "bf16": 0.05, "int8": 0.15}[precision]
        np.testing.assert_allclose(found, expected, atol=limit, rtol=limit)
        for text in range(len(LENGTHS)):
            alone = head.run(tokens, offsets[text : text + 2], threads=1, **options)
            np.testing.assert_array_equal(alone[0], found[text])


@pytest.mark.parametrize("precision", ["fp32", "bf16", "int8"])
def test_what_is_not_finite_is_seen(precision, rng):
    weights, offsets = make(rng), np.array([0, 2, 5])
    tokens = rng.normal(size=(5, 24)).astype(np.float32)
    tokens[1, 3] = np.inf
    head = _core.NativeVocabulary(precision=precision, activation="gelu", epsilon=1e-12, **weights)
    found = head.run(tokens, offsets, pooling="max", twice=False, threads=1, spins=0)
    assert np.isnan(found[0]).all()
    assert np.isfinite(found[1]).all()


def test_what_does_not_fit_is_refused(rng):
    weights = make(rng)
    options = {"precision": "fp32", "activation": "gelu", "epsilon": 1e-12}
    for name, one in {"dense": 1, "norm": 0, "decoder": 1}.items():
        wrong = list(weights[name])
        wrong[one] = wrong[one][:-1]
        with pytest.raises(ValueError, match=r"shape|sizes"):
            _core.NativeVocabulary(**options, **weights | {name: tuple(wrong)})
    for wrong in ({"precision": "fp64"}, {"activation": "tanh"}, {"epsilon": math.nan}):
        with pytest.raises(ValueError, match=r"unknown|sizes"):
            _core.NativeVocabulary(**options | wrong, **weights)
    head = _core.NativeVocabulary(**options, **weights)
    tokens = np.zeros((4, 24), np.float32)
    run = {"pooling": "max", "twice": False, "threads": 1, "spins": 0}
    assert head.run(tokens, np.array([0]), **run).shape == (0, 131)
    for offsets in ([], [0, 5], [-1, 2], [0, 2, 2], [3, 1]):
        with pytest.raises(ValueError, match="offsets must rise"):
            head.run(tokens, np.array(offsets, np.int64), **run)
    with pytest.raises(ValueError, match=r"\[n, 24\]"):
        head.run(tokens[:, 1:], np.array([0, 2]), **run)
    with pytest.raises(ValueError, match="unknown pooling"):
        head.run(tokens, np.array([0, 2]), **run | {"pooling": "mean"})
