"""The model of a late-interaction bundle: its encoder, and the layers behind every token.

mirror.json describes the layers (`Manifest.tokens`). heads/projection.npy holds all their weights,
one behind the other: of each layer the matrix [outputs, inputs] and the bias [outputs].
"""

from __future__ import annotations

from typing import Never, Self

import numpy as np
import numpy.typing as npt

from mirror_rt.bundle.description import ModelDescription
from mirror_rt.bundle.late_interaction import projection
from mirror_rt.bundle.packed_layers import pack_layers, read_packed, unpack_layers
from mirror_rt.bundle.score_layers import ScoreLayer
from mirror_rt.bundle.token_vectors import TokenVectors
from mirror_rt.inference.bundle_model import BundleModel
from mirror_rt.inference.pooled_model import PooledModel, Vectors
from mirror_rt.inference.providers import NATIVE
from mirror_rt.inference.vector_layers import ACTIVATIONS
from mirror_rt.tokens.padding import PaddedBatch
from mirror_rt.vectors.normalization import normalize_rows


class Projection:
    """Layers with their weights, applied to the vectors of the tokens of one text.

    A text is mapped by itself, in products of one shape, so that no other changes its vectors.

    Attributes:
        dimension: length of the vectors that they give.
        weights: float32, packed as in the file.
    """

    def __init__(
        self, layers: list[ScoreLayer], weights: npt.NDArray[np.float32], size: int, *, unit: bool
    ) -> None:
        self.weights, self._unit = weights, unit
        self._layers = [
            (ACTIVATIONS[layer.activation], matrix.T, bias)
            for layer, (matrix, bias) in unpack_layers(layers, weights)
        ]
        self.dimension = layers[-1].outputs if layers else size

    @classmethod
    def read(cls, described: ModelDescription) -> Self:
        """Read the layers of a folder or a bundle; BundleError if they are damaged."""
        manifest = described.bundle
        assert manifest.tokens is not None
        layers = manifest.tokens.layers
        if manifest.is_checkpoint:
            weights = pack_layers(arrays for _, arrays in projection(described))
        else:
            weights = read_packed(described.folder / TokenVectors.file, layers)
        return cls(layers, weights, manifest.dimension, unit=manifest.normalize)

    def __call__(self, vectors: Vectors) -> Vectors:
        """Map the vectors of tokens, float32 [t, H] to [t, D]."""
        for activate, matrix, bias in self._layers:
            x = vectors @ matrix + bias
            vectors = np.asarray(activate(x.astype(np.float64)), np.float32)
        return normalize_rows(vectors) if self._unit else vectors


class TokenModel(PooledModel):
    """The model of a late-interaction bundle, which gives vectors of tokens alone.

    Args:
        encoder: gives the vectors that the layers map.
        layers: the layers.
        unattended: the mask of tokens that none attends to: 2 for the native engine, and 0
            for graphs, which compute the vectors of all tokens.
    """

    def __init__(self, encoder: PooledModel, layers: Projection, *, unattended: int = 0) -> None:
        super().__init__(
            layers.dimension, run_cost=encoder.run_cost, parallel_runs=encoder.parallel_runs
        )
        self._encoder, self._layers, self._unattended = encoder, layers, unattended

    @classmethod
    def open(cls, encoder: BundleModel, described: ModelDescription) -> Self:
        """Make it of the opened encoder of a folder or a bundle; errors as `Projection.read`."""
        unattended = 2 if encoder.runner.providers == [NATIVE] else 0
        return cls(encoder, Projection.read(described), unattended=unattended)

    def run_batch(self, batch: PaddedBatch, *, normalize: bool) -> Never:
        """Raise NotImplementedError: there is no vector of a text."""
        raise NotImplementedError

    def check_token_vectors(self) -> None:
        """Raise ConfigError if the graph gives no token vectors."""
        self._encoder.check_token_vectors()

    def token_vectors(self, batch: PaddedBatch) -> Vectors:
        """Run a padded batch, float32 [rows, length, D]; tokens of type 1 are not attended to."""
        mask = np.where(batch.token_type_ids == 1, self._unattended, batch.attention_mask)
        types = np.zeros_like(batch.token_type_ids)
        found = self._encoder.token_vectors(PaddedBatch(batch.input_ids, mask, types))
        made = np.zeros((*found.shape[:2], self.dimension), np.float32)
        for row, length in enumerate(batch.attention_mask.sum(axis=1).tolist()):
            made[row, :length] = self._layers(found[row, :length].astype(np.float32, copy=False))
        return made

    def prepare_concurrent_runs(self) -> int:
        """Prepare for concurrent runs; return the best number of runs in flight."""
        return self._encoder.prepare_concurrent_runs()
