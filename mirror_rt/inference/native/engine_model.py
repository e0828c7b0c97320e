"""The encoder that the engine computes: its sizes, and its weights wherever they lie.

`checkpoint.py` finds it in files of weights, and the runner packs it, and knows no file.

A model comes from a stranger: what is allocated later follows from the sizes that are checked here
before a number of a weight is read, and the engine checks the shapes of what it is given once more
(csrc/bindings/engine.cpp).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from mirror_rt.errors import BundleError
from mirror_rt.inference.native.rotation import Rotation
from mirror_rt.inference.vector_layers import TextHead

Floats = npt.NDArray[np.float32]
Shape = tuple[int, ...]
# Numbers that are computed of weights, 128 MiB: the angles of two kinds of layers for 262,144
# tokens and heads of 64 numbers, or the table of distances of DeBERTa-v3-large.
_MOST_COMPUTED = 1 << 25
# The buckets of MPNet's distances end at 128 tokens, so that there are fewer than 4 x 128.
_BUCKETS = range(4, 512)


class UnsupportedModelError(BundleError):
    """The model is not one that the native engine can run."""


class Weight(NamedTuple):
    """A weight in the layout that the engine takes, whose bytes are all there.

    `parts` are what a bundle may hold in its place.
    """

    name: str
    shape: Shape
    read: Callable[[], Floats]
    parts: tuple[Weight, ...] = ()


class Pair(NamedTuple):
    """A matrix [inputs, outputs] or the weight of a norm, and its bias, which is zero for None."""

    weight: Weight
    bias: Weight | None

    def shaped(self, *shape: int) -> Iterator[tuple[Weight, Shape]]:
        """Yield both, and the shapes that they must have."""
        yield self.weight, shape
        if self.bias is not None:
            yield self.bias, shape[-1:]


@dataclass(frozen=True, slots=True)
class Layer:
    """A layer of an encoder.

    Attributes:
        place: layers of one place are the same.
        weights: by the arguments of `add_layer`.
        window: how far a token attends; 0 for everywhere.
        rotation: by which positions rotate queries and keys; None for none.
    """

    place: str
    weights: dict[str, Pair]
    window: int
    rotation: Rotation | None


@dataclass(frozen=True, slots=True)
class EngineModel:
    """An encoder that the engine can run, before its weights are read; None for parts it lacks.

    Attributes:
        path: the file of its weights, for errors.
        release: tells the system that what was read of the file is not needed soon.
        head: makes vectors of texts of those of tokens.
        longest: most tokens of a text.
        kind: the arguments of `NativeEncoder` that are neither weights nor the precision.
        typed: whether tokens of several types are told apart.
        first: the row of `positions` for the first token of a text; that of the token
            `skipped_id` is the one before it.
        words, positions: of embeddings, [n, E].
        types: of embeddings, [n, E]; the first row is added to all positions.
        norm: of embeddings.
        projection: [E, H].
        relative: the bias of the scores in all layers, [buckets, heads], by distance.
        distances: vectors of distances, [2 span, H], those of the first keys last.
        buckets: their span, and the distance from which on all have one vector; 0 where each has
            its own up to the span.
        layers: the layers, in the order in which they are computed.
    """

    path: Path
    release: Callable[[], None]
    head: TextHead
    longest: int
    kind: dict[str, Any]
    typed: bool
    first: int
    words: Weight
    positions: Weight | None
    types: Weight | None
    norm: Pair
    projection: Pair | None
    relative: Weight | None
    distances: Weight | None
    buckets: tuple[int, int]
    layers: list[Layer]

    @property
    def hidden(self) -> int:
        """The length of a token's vector."""
        return self.layers[0].weights["attention_out"].weight.shape[-1]

    @property
    def inner(self) -> int:
        """The width of the feed-forward part."""
        return self.layers[0].weights["out"].weight.shape[0]


def check_sizes(model: EngineModel) -> None:
    """Refuse an encoder whose sizes do not go together.

    Raises:
        BundleError: a weight has another shape than the others say, or texts may be longer than
            there are positions.
    """
    positions = model.longest
    for weight, wanted in weights_of(model):
        if weight.shape != wanted:
            raise UnsupportedModelError(
                f"{model.path}: weight {weight.name[:100]} is {list(weight.shape)}, the others say "
                f"{list(wanted)}"
            )
    if model.positions is not None:
        positions = model.positions.shape[0] - model.first
    if positions < model.longest:
        raise BundleError(
            f"{model.path} has positions for {max(positions, 0)} tokens, and the max_length of its "
            f"manifest is {model.longest}"
        )
    heads, size = model.kind["heads"], model.kind["size"]
    computed = 0 if model.relative is None else heads * (2 * positions - 1)
    if model.distances is not None:
        computed += 2 * heads * size * model.distances.shape[0] * len(model.layers)
    computed += positions * size * len({one.rotation for one in model.layers} - {None})
    if computed > _MOST_COMPUTED:
        raise UnsupportedModelError(
            f"{model.path} takes {computed:,} numbers for texts of {positions:,} tokens, expected "
            f"at most {_MOST_COMPUTED:,}"
        )


def weights_of(model: EngineModel) -> Iterator[tuple[Weight, Shape]]:
    """Yield every weight, and the shape that it must have."""
    hidden, inner, kind = model.hidden, model.inner, model.kind
    heads, size = kind["heads"], kind["size"]
    width = hidden if model.projection is None else model.words.shape[-1]
    for table in (model.words, model.positions, model.types):
        if table is not None:
            yield table, (table.shape[0], width)
    yield from model.norm.shaped(width)
    if model.projection is not None:
        yield from model.projection.shaped(width, hidden)
    if model.relative is not None:
        buckets = model.relative.shape[0]
        yield model.relative, (buckets if buckets in _BUCKETS else _BUCKETS[-1], heads)
    if model.distances is not None:
        yield model.distances, (2 * model.buckets[0], hidden)
    shapes = {
        "query_key_value": (hidden, (heads + 2 * kind["key_heads"]) * size),
        "attention_out": (heads * size, hidden),
        "inner": (hidden, (2 if kind["gated"] else 1) * inner),
        "out": (inner, hidden),
        "query_norm": (size,),
        "key_norm": (size,),
    }
    for layer in model.layers:
        for name, pair in layer.weights.items():
            yield from pair.shaped(*shapes.get(name, (hidden,)))
