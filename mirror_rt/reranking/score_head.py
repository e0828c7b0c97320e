"""The head of a cross-encoder: layers on the vector of a pair, stored as data, applied by numpy.

mirror.json describes the layers (`Manifest.scores`). heads/scores.npy holds all their weights, one
behind the other: of each layer the matrix [outputs, inputs], the bias [outputs], and where it has a
normalisation its weight and bias [outputs].
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt

from mirror_rt.bundle.classifier import read_head
from mirror_rt.bundle.description import ModelDescription
from mirror_rt.bundle.packed_layers import pack_layers, read_packed, unpack_layers, write_packed
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
        """Return the layers with their weights, as `unpack_layers` does."""
        return unpack_layers(self.described.layers, self._weights)

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
        path = folder / ScoreLayers.file
        if described is None:
            raise BundleError(f"{folder} is no cross-encoder: its manifest has no scores")
        return cls(described, read_packed(path, described.layers))

    def write(self, folder: Path) -> None:
        """Write the weights into a folder that is being made."""
        write_packed(folder / ScoreLayers.file, self._weights)


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
