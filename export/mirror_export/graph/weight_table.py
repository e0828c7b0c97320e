"""Write down where the file of a graph has the weights that the native engine takes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence
from pathlib import Path

import numpy as np
import torch

from mirror_export.graph.onnx_file import Placed
from mirror_rt import BundleError
from mirror_rt.bundle.description import ModelDescription
from mirror_rt.bundle.manifest import WeightTable
from mirror_rt.inference.native.checkpoint import find_encoder, read_encoder
from mirror_rt.inference.native.engine_model import EngineModel, Floats, Weight, weights_of
from mirror_rt.io.tensors import MappedTensors


class ModuleWeights(MappedTensors):
    """The weights of a model in PyTorch, by the names of its family's checkpoints."""

    def __init__(self, model: torch.nn.Module, path: Path) -> None:
        super().__init__(path, ())
        self._weights = model.state_dict()

    @property
    def names(self) -> Collection[str]:
        """The names of all tensors."""
        return self._weights.keys()

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of a tensor; BundleError if there is none of that name."""
        if name not in self._weights:
            raise BundleError(f"{self.path}: the model has no tensor {name}")
        return tuple(self._weights[name].shape)

    def floats(self, name: str) -> Floats:
        """Return a tensor as float32."""
        found: Floats = self._weights[name].float().numpy()
        return found


def table_of(
    described: ModelDescription, weights: ModuleWeights, placed: Sequence[Placed], *, typed: bool
) -> WeightTable | None:
    """Return the table of a bundle; None if the native engine does not compute its model.

    `placed` says where the file of its float32 graph has weights, and `typed` whether tokens of
    several types are told apart.
    """
    try:
        return _table(find_encoder(described, weights, typed=typed), placed)
    except BundleError:
        return None


def table_again(described: ModelDescription, placed: Sequence[Placed]) -> WeightTable | None:
    """Return the table of a bundle whose graph is written anew, with the same weights."""
    return None if described.bundle.native is None else _table(read_encoder(described), placed)


def _table(model: EngineModel, placed: Sequence[Placed]) -> WeightTable | None:
    by_shape = defaultdict[tuple[int, ...], list[Placed]](list)
    for one in placed:
        by_shape[tuple(one.tensor.shape.numpy())].append(one)
    places, files = dict[str, list[int]](), set[Path]()

    def place(weight: Weight) -> bool:
        """Find a weight, or else its parts."""
        wanted = weight.read()
        alike = by_shape[wanted.shape]
        found = next((one for one in alike if np.array_equal(one.tensor.numpy(), wanted)), None)
        if found is None:
            return weight.parts != () and all(map(place, weight.parts))
        places[weight.name] = [found.offset, *wanted.shape]
        files.add(found.file)
        return True

    if not all(map(place, {one.name: one for one, _ in weights_of(model)}.values())):
        return None  # the graph has other numbers, or some apart from the file of the others
    (file,) = files
    return WeightTable("/".join(file.parts[-2:]), model.typed, places)
