"""Files of the weights of linear layers: one array, of one layer behind the other.

Of each layer it has the matrix [outputs, inputs], the bias [outputs], and where the layer has a
normalisation its weight and bias [outputs].
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
import numpy.typing as npt

from mirror_rt.bundle.score_layers import ScoreLayer
from mirror_rt.errors import BundleError

Floats = npt.NDArray[np.float32]


def pack_layers(layers: Iterable[Sequence[npt.ArrayLike]]) -> Floats:
    """Join the arrays of each layer: matrix, bias, norms."""
    arrays = [np.asarray(array, np.float32).ravel() for layer in layers for array in layer]
    return np.concatenate([*arrays, np.empty(0, np.float32)])


def unpack_layers(
    layers: Sequence[ScoreLayer], weights: Floats
) -> Iterator[tuple[ScoreLayer, list[Floats]]]:
    """Yield each layer with its matrix [outputs, inputs], its bias, and those of its norm."""
    ends = np.cumsum([0, *(layer.weights for layer in layers)]).tolist()
    for layer, (begin, end) in zip(layers, pairwise(ends), strict=True):
        matrix, rows = np.split(weights[begin:end], [layer.outputs * layer.inputs])
        shaped = matrix.reshape(layer.outputs, layer.inputs)
        yield layer, [shaped, *rows.reshape(-1, layer.outputs)]


def read_packed(path: Path, layers: Sequence[ScoreLayer]) -> Floats:
    """Read the weights of layers; BundleError for a file that is damaged, or of others."""
    if not path.is_file():  # reading a pipe would wait forever
        raise BundleError(f"{path} is not a regular file")
    expected = sum(layer.weights for layer in layers)
    try:
        # A mapped array cannot be larger than the file, whatever its header says.
        found = np.load(path, mmap_mode="r", allow_pickle=False)
        if (found.dtype, found.shape) != (np.float32, (expected,)):
            raise ValueError(f"it holds {found.dtype} {found.shape}, expected float32 [{expected}]")
    except (OSError, EOFError, ValueError, AttributeError, SyntaxError) as error:
        raise BundleError(f"{path} cannot be read: {error}") from error
    weights = np.array(found)
    if not np.isfinite(weights).all():
        raise BundleError(f"{path} holds weights that are not finite")
    return weights


def write_packed(path: Path, weights: Floats) -> None:
    """Write weights into a folder that is being made."""
    path.parent.mkdir(exist_ok=True)
    with path.open("wb") as file:
        np.save(file, weights)
