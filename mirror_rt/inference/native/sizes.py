"""Bound every size that a model names by every other, before a number of a weight is read.

A model comes from a stranger: what is allocated later follows from the sizes that are checked here,
and the engine checks the shapes of what it is given once more (csrc/bindings/engine.cpp).
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from mirror_rt.errors import BundleError
from mirror_rt.inference.native.engine_model import (
    Embeddings,
    Layer,
    Names,
    Tensors,
    UnsupportedModelError,
    expect,
    short,
)

# Numbers that are computed of weights: the angles of two kinds of layers for 131,072 tokens and
# heads of 64 numbers, or 64 MiB.
_MOST_COMPUTED = 1 << 24
# The buckets of MPNet's distances end at 128 tokens, so that there are fewer than 4 x 128.
_BUCKETS = range(4, 512)
Shape = tuple[int, ...]


def check_sizes(tensors: Tensors, embeddings: Embeddings, layers: list[Layer], longest: int) -> int:
    """Refuse an encoder whose sizes do not go together; return the length of its vectors.

    Args:
        tensors: the weights of the encoder.
        embeddings: its embeddings.
        layers: its layers.
        longest: most tokens of a text.

    Raises:
        BundleError: a weight has another shape than the others say, layers share some of their
            weights only, or texts may be longer than there are positions.
    """
    if not layers:
        raise UnsupportedModelError(f"{tensors.path} has no layers")
    first = layers[0]
    for layer in layers:
        alike = (layer.common, layer.relative) == (first.common, first.relative)
        expect(tensors, alike, "a layer")
    width = _matrix(tensors, embeddings.words)[1]
    hidden = _matrix(tensors, first.weights["attention_out"][0])[0]
    for name, wanted in _embeddings(embeddings, width, hidden):
        _check(tensors, name, wanted)
    expect(tensors, bool(embeddings.projection[0]) or width == hidden, f"a projection to {hidden}")
    packed = {layer.packed: layer for layer in layers}.values()
    for layer in packed:
        for name, wanted in _layer(layer, hidden, 2 if embeddings.modern else 1):
            _check(tensors, name, wanted)
    _check_packed(tensors, packed)
    positions = _check_positions(tensors, embeddings, width, longest)
    _check_computed(tensors, layers, hidden, positions)
    return hidden


def _embeddings(of: Embeddings, width: int, hidden: int) -> Iterable[tuple[str, Shape]]:
    yield from _pair(of.norm, (width,))
    if of.projection[0]:
        yield from _pair(of.projection, (width, hidden))


def _layer(layer: Layer, hidden: int, halves: int) -> Iterable[tuple[str, Shape]]:
    """Yield the names and the shapes of the weights of a layer."""
    inner = layer.common["inner"]
    shapes = {
        "query_key_value": (hidden, 3 * hidden),
        "attention_out": (hidden, hidden),
        "attention_norm": (hidden,),
        "inner": (hidden, halves * inner),
        "out": (inner, hidden),
        "out_norm": (hidden,),
    }
    for name, shape in shapes.items():
        yield from _pair(layer.weights[name], shape)


def _pair(names: Names, shape: Shape) -> Iterable[tuple[str, Shape]]:
    weight, bias = names
    yield weight, shape
    if bias:
        yield bias, shape[-1:]


def _matrix(tensors: Tensors, name: str) -> Shape:
    shape = tensors.shape(name)
    expect(tensors, len(shape) == 2, f"weight {short(name)} {list(shape)}")
    return shape


def _check(tensors: Tensors, name: str, wanted: Shape) -> None:
    found = tensors.shape(name)
    if found != wanted:
        raise UnsupportedModelError(
            f"{tensors.path}: weight {short(name)} is {list(found)}, the others say {list(wanted)}"
        )


def _check_packed(tensors: Tensors, layers: Iterable[Layer]) -> None:
    """Refuse layers that share large weights without being the same: each packs a copy."""
    sizes = {
        names: math.prod(tensors.shape(names[0]))
        for layer in layers
        for names in layer.weights.values()
    }
    copied = sum(sizes[names] for layer in layers for names in layer.weights.values())
    expect(tensors, copied <= 2 * sum(sizes.values()), "layers that share some of their weights")


def _check_positions(tensors: Tensors, embeddings: Embeddings, width: int, longest: int) -> int:
    """Return how many positions a text has."""
    if not embeddings.positions:
        return longest
    rows, columns = _matrix(tensors, embeddings.positions)
    expect(tensors, columns == width, f"positions of {columns} numbers")
    if embeddings.types:
        expect(tensors, _matrix(tensors, embeddings.types)[1] == width, "token types")
    if rows - embeddings.first < longest:
        raise BundleError(
            f"{tensors.path} has positions for {max(rows - embeddings.first, 0)} tokens, and the "
            f"max_length of its manifest is {longest}"
        )
    return rows - embeddings.first


def _check_computed(tensors: Tensors, layers: list[Layer], hidden: int, positions: int) -> None:
    """Bound the tables that are computed for every position or distance."""
    heads, relative = layers[0].common["heads"], layers[0].relative
    computed = 0
    if relative:
        buckets, columns = _matrix(tensors, relative)
        expect(tensors, columns == heads and buckets in _BUCKETS, "a bias of attention")
        computed += heads * (2 * positions - 1)
    for name in {layer.frequencies for layer in layers} - {""}:
        size = math.prod(tensors.shape(name)) * 2
        expect(tensors, size == hidden // heads, f"a rotation of {size} numbers")
        computed += positions * size
    if computed > _MOST_COMPUTED:
        raise UnsupportedModelError(
            f"{tensors.path} takes {computed:,} numbers for texts of {positions:,} tokens, "
            f"expected at most {_MOST_COMPUTED:,}"
        )
