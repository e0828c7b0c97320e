"""The head of a cross-encoder: layers on the vector of a pair, stored as data, applied by numpy.

mirror.json describes the layers (`Manifest.scores`). heads/scores.npy holds all their weights, one
behind the other: of each layer the matrix [outputs, inputs], the bias [outputs], and where it has a
normalisation its weight and bias [outputs].
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
import numpy.typing as npt

from mirror_rt.bundle.classifier import read_head
from mirror_rt.bundle.description import ModelDescription
from mirror_rt.bundle.manifest import Layout
from mirror_rt.bundle.score_layers import ScoreLayer, ScoreLayers
from mirror_rt.errors import BundleError
from mirror_rt.inference.bundle_model import BundleModel
from mirror_rt.inference.pooled_model import PooledModel, Vectors
from mirror_rt.inference.vector_layers import LinearLayer
from mirror_rt.tokens.padding import PaddedBatch


class ScoreHead:
    """The layers of a head with their weights, float32 [the sum of `ScoreLayer.weights`]."""

    def __init__(self, described: ScoreLayers, weights: npt.NDArray[np.float32]) -> None:
        self.described = described
        self._weights = weights
        self._layers = [LinearLayer(layer, *arrays) for layer, arrays in self.layers()]

    def layers(self) -> Iterator[tuple[ScoreLayer, list[npt.NDArray[np.float32]]]]:
        """Yield each layer with its matrix [outputs, inputs], its bias, and those of its norm."""
        ends = np.cumsum([0, *(layer.weights for layer in self.described.layers)]).tolist()
        for layer, (begin, end) in zip(self.described.layers, pairwise(ends), strict=True):
            matrix, rows = np.split(self._weights[begin:end], [layer.outputs * layer.inputs])
            shaped = matrix.reshape(layer.outputs, layer.inputs)
            yield layer, [shaped, *rows.reshape(-1, layer.outputs)]

    def __call__(self, vectors: npt.ArrayLike) -> Vectors:
        """Map vectors of pairs [n, D] to logits, float32 [n, C]."""
        x = np.asarray(vectors, np.float64, order="C")
        for layer in self._layers:
            x = layer(x)
        return x.astype(np.float32)

    @classmethod
    def read(cls, model: ModelDescription) -> ScoreHead:
        """Read the head of a cross-encoder."""
        if model.bundle.is_checkpoint:
            head = read_head(model)
            return cls(head.described, pack_layers(head.weights))
        folder, described = model.folder, model.bundle.scores
        if described is not None and not described.layers:  # the graph gives logits
            return cls(described, np.empty(0, np.float32))
        path = folder / Layout.scores
        if described is None:
            raise BundleError(f"{folder} is no cross-encoder: its manifest has no scores")
        if not path.is_file():  # reading a pipe would wait forever
            raise BundleError(f"{path} is not a regular file")
        expected = sum(layer.weights for layer in described.layers)
        try:
            # A mapped array cannot be larger than the file, whatever its header says.
            found = np.load(path, mmap_mode="r", allow_pickle=False)
            if (found.dtype, found.shape) != (np.float32, (expected,)):
                raise ValueError(
                    f"it holds {found.dtype} {found.shape}, expected float32 [{expected}]"
                )
        except (OSError, EOFError, ValueError, AttributeError, SyntaxError) as error:
            raise BundleError(f"{path} cannot be read: {error}") from error
        weights = np.array(found)
        if not np.isfinite(weights).all():
            raise BundleError(f"{path} holds weights that are not finite")
        return cls(described, weights)

    def write(self, folder: Path) -> None:
        """Write the weights into a folder that is being made."""
        path = folder / Layout.scores
        path.parent.mkdir()
        with path.open("wb") as file:
            np.save(file, self._weights)


class ScoredModel(PooledModel):
    """The model of a bundle with a head: its vectors are the logits of pairs, float32 [n, C]."""

    def __init__(self, encoder: BundleModel, head: ScoreHead) -> None:
        super().__init__(
            len(head.described.labels),
            run_cost=encoder.run_cost,
            parallel_runs=encoder.parallel_runs,
        )
        self._encoder, self._head = encoder, head

    def run_batch(self, batch: PaddedBatch, *, normalize: bool) -> Vectors:
        """Run a padded batch: logits, float32 [rows, C]."""
        return self._head(self._encoder.run_batch(batch, normalize=False))

    def run_exactly(self, batch: PaddedBatch, *, normalize: bool) -> Vectors | None:
        """Run rows in fp32; return None if the bundle has no other graph that is fp32."""
        vectors = self._encoder.run_exactly(batch, normalize=False)
        return None if vectors is None else self._head(vectors)

    def prepare_concurrent_runs(self) -> int:
        """Prepare for concurrent runs; return the best number of runs in flight."""
        return self._encoder.prepare_concurrent_runs()


def pack_layers(layers: Sequence[Sequence[npt.ArrayLike]]) -> npt.NDArray[np.float32]:
    """Join the arrays of each layer (matrix, bias, norms) to the weights of a `ScoreHead`."""
    arrays = [np.asarray(array, np.float32).ravel() for layer in layers for array in layer]
    return np.concatenate(arrays)
