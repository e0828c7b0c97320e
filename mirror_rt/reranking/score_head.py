"""The head of a cross-encoder: layers on the vector of a pair, stored as data, applied by numpy.

mirror.json describes the layers (`Manifest.scores`). heads/scores.npy holds all their weights, one
behind the other: of each layer the matrix [outputs, inputs], the bias [outputs], and where it has a
normalisation its weight and bias [outputs].
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
import numpy.typing as npt

from mirror_rt.bundle.classifier import read_head
from mirror_rt.bundle.description import describe_folder
from mirror_rt.bundle.manifest import Layout, Manifest
from mirror_rt.bundle.score_layers import ScoreLayer, ScoreLayers
from mirror_rt.errors import BundleError
from mirror_rt.inference.bundle_model import BundleModel
from mirror_rt.inference.pooled_model import PooledModel, Vectors
from mirror_rt.tokens.padding import PaddedBatch

Floats = npt.NDArray[np.float64]
# Abramowitz and Stegun, Handbook of Mathematical Functions, 7.1.26: erf within 1.5e-7.
_P, _A = 0.3275911, (1.061405429, -1.453152027, 1.421413741, -0.284496736, 0.254829592)


def _gelu(x: Floats) -> Floats:
    z = np.abs(x) / np.sqrt(2)
    t = 1 / (1 + _P * z)
    erf = 1 - np.polyval([*_A, 0.0], t) * np.exp(-z * z)
    return np.asarray(x * 0.5 * (1 + np.copysign(erf, x)))


def _gelu_tanh(x: Floats) -> Floats:
    return np.asarray(0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))))


def _sigmoid(x: Floats) -> Floats:
    return np.asarray(0.5 * (1 + np.tanh(0.5 * x)))  # which does not overflow


def _softmax(x: Floats) -> Floats:
    shifted = np.exp(x - x.max(axis=-1, keepdims=True))
    return np.asarray(shifted / shifted.sum(axis=-1, keepdims=True))


# Those of layers and those that make scores of logits [n, C].
ACTIVATIONS: dict[str, Callable[[Floats], Floats]] = {
    "identity": lambda x: x,
    "tanh": np.tanh,
    "relu": lambda x: np.maximum(x, 0),
    "gelu": _gelu,
    "gelu_tanh": _gelu_tanh,
    "silu": lambda x: x * _sigmoid(x),
    "sigmoid": _sigmoid,
    "softmax": _softmax,
}


class ScoreHead:
    """The layers of a head with their weights, float32 [the sum of `ScoreLayer.weights`].

    It computes in float64, and every row alike, so that logits do not depend on the batch.
    """

    def __init__(self, described: ScoreLayers, weights: npt.NDArray[np.float32]) -> None:
        self.described = described
        self._weights = weights
        ends = np.cumsum([0, *(layer.weights for layer in described.layers)]).tolist()
        self._layers: list[tuple[ScoreLayer, Floats, Floats]] = []
        for layer, (begin, end) in zip(described.layers, pairwise(ends), strict=True):
            own, size = weights[begin:end].astype(np.float64), layer.outputs * layer.inputs
            matrix = np.ascontiguousarray(own[:size].reshape(layer.outputs, layer.inputs).T)
            self._layers.append((layer, matrix, own[size:].reshape(-1, layer.outputs)))

    def __call__(self, vectors: npt.ArrayLike) -> Vectors:
        """Map vectors of pairs [n, D] to logits, float32 [n, C]."""
        x = np.asarray(vectors, np.float64, order="C")
        for layer, matrix, rows in self._layers:
            x = _apply(layer, matrix, rows, x)
        return x.astype(np.float32)

    @classmethod
    def read(cls, folder: Path, manifest: Manifest) -> ScoreHead:
        """Read the head of a cross-encoder."""
        if manifest.is_checkpoint:
            head = read_head(describe_folder(folder))
            return cls(head.described, pack_layers(head.weights))
        described, path = manifest.scores, folder / Layout.scores
        if described is None:
            raise BundleError(f"{folder} is no cross-encoder: its manifest has no scores")
        if not path.is_file():  # reading a pipe would wait forever
            raise BundleError(f"{path} is not a regular file")
        expected = sum(layer.weights for layer in described.layers)
        try:
            # What is mapped cannot be larger than the file, whatever its header says.
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


def _apply(layer: ScoreLayer, matrix: Floats, rows: Floats, x: Floats) -> Floats:
    # Not `@`: the threads of BLAS would wait for a processor behind those that run the encoder.
    x = np.einsum("ni,io->no", x, matrix)
    x = ACTIVATIONS[layer.activation](x + rows[0])
    if layer.norm is None:
        return x
    centred = x - x.mean(axis=1, keepdims=True)
    scale = np.sqrt((centred**2).mean(axis=1, keepdims=True) + layer.norm)
    return np.asarray(centred / scale * rows[1] + rows[2])
