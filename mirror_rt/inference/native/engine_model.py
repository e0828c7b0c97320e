"""The encoder that the engine computes: its sizes, and its tensors by name, wherever they lie.

The reader of graphs and that of checkpoints fill it; the runner packs it, and knows no file.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from mirror_rt.errors import BundleError

Floats = npt.NDArray[np.float32]
Pair = tuple[Floats, Floats]
Names = tuple[str, str]  # of a weight and its bias, "" for none
Arguments = dict[str, Any]


class UnsupportedModelError(BundleError):
    """The model is not one that the native engine can run."""


class Tensors(Protocol):
    """The tensors of a model by name, in the layout that the engine takes."""

    path: Path

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of a float32 tensor, whose bytes are all there; else BundleError."""

    def floats(self, name: str) -> Floats:
        """Return a tensor, without copying it where it lies in a file as it is."""

    def release(self) -> None:
        """Tell the system that the pages that were read are not needed soon."""


@dataclass(frozen=True, slots=True)
class Layer:
    """A layer of an encoder, by the names of its weights.

    Attributes:
        common: arguments of `NativeEncoder` that are the same for all layers.
        weights: by the arguments of `add_layer`, matrices [inputs, outputs] and norms with their
            biases.
        relative: the bias of the scores, [buckets, heads], by distance; "" for none.
        window: how far a token attends; 0 for everywhere.
        frequencies: those by which positions rotate, float32 [d / 2]; "" for none.
    """

    common: Arguments
    weights: dict[str, Names]
    relative: str = ""
    window: int = 0
    frequencies: str = ""

    @property
    def packed(self) -> tuple[object, ...]:
        """The sizes and options that are the same in layers that share their weights."""
        return (*self.weights.values(), self.window, self.frequencies)


@dataclass(frozen=True, slots=True)
class Embeddings:
    """The embeddings of an encoder, by the names of their weights; "" for what they lack.

    Attributes:
        words: [vocabulary, E].
        norm: of E numbers.
        epsilon: of all norms.
        positions: [n, E].
        types: [types, E], whose first row is added to all positions.
        typed: whether tokens of several types are told apart.
        first: the row of `positions` for the first token of a text.
        skipped_id: a token whose position is the row before `first`; -1 for none.
        projection: [E, H].
        modern: whether layers are gated, and the norms are before them.
    """

    words: str
    norm: Names
    epsilon: float
    positions: str = ""
    types: str = ""
    typed: bool = False
    first: int = 0
    skipped_id: int = -1
    projection: Names = ("", "")
    modern: bool = False


@dataclass(frozen=True, slots=True)
class EngineModel:
    """An encoder that the engine can run, before its weights are read.

    Attributes:
        tensors: all its weights.
        longest: most tokens of a text.
        hidden: length of a vector.
        embeddings: the names of the embeddings' weights.
        layers: the layers.
        pooling: how token vectors become one: `mean`, `cls` or `max`.
        maps: the names of matrices behind the pooling, the last one first.
    """

    tensors: Tensors
    longest: int
    hidden: int
    embeddings: Embeddings
    layers: list[Layer]
    pooling: str
    maps: list[str]


def expect(tensors: Tensors, condition: bool, what: str) -> None:
    """Refuse a model with `what` of another form, unless the condition holds."""
    if not condition:
        raise UnsupportedModelError(
            f"{tensors.path}: {what} of another form than the engine computes"
        )


def pair(tensors: Tensors, names: Names) -> Pair:
    """Return a weight and its bias, which is zero without a name."""
    weight, bias = names
    found = tensors.floats(weight)
    return found, tensors.floats(bias) if bias else np.zeros(found.shape[-1], np.float32)


def short(name: str) -> str:
    """Return a name in quotes, without the middle of one that fills a screen."""
    return repr(name if len(name) <= 100 else f"{name[:60]}...{name[-20:]}")
