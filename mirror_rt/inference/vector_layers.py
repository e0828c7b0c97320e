"""Linear layers on the vectors of texts and pairs, and their activations, in numpy."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from mirror_rt.bundle.dense_files import declared_layers, read_dense
from mirror_rt.bundle.description import ModelDescription
from mirror_rt.bundle.json_document import to_export
from mirror_rt.bundle.score_layers import ScoreLayer
from mirror_rt.errors import BundleError
from mirror_rt.inference.pooled_model import Vectors
from mirror_rt.inference.pooling import POOLINGS, pool
from mirror_rt.vectors.normalization import normalize_rows

Floats = npt.NDArray[np.float64]
# The poolings of the native engine; others are computed of its vectors of tokens.
ENGINE_POOLINGS = ("mean", "cls", "max", "lasttoken", "mean-without-special")
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


class LinearLayer:
    """A layer with its weights: the matrix [outputs, inputs], the bias, and those of a norm.

    It computes in float64, and every row alike, so that vectors do not depend on the batch.
    """

    def __init__(self, described: ScoreLayer, matrix: npt.ArrayLike, *rows: npt.ArrayLike) -> None:
        self._described = described
        self._matrix = np.ascontiguousarray(np.asarray(matrix, np.float64).T)
        self._rows = [np.asarray(row, np.float64) for row in rows]

    def __call__(self, x: Floats) -> Floats:
        """Map vectors [n, inputs] to [n, outputs]."""
        # Not `@`: the threads of BLAS would wait for a processor behind those of the encoder.
        x = np.einsum("ni,io->no", x, self._matrix)
        x = ACTIVATIONS[self._described.activation](x + self._rows[0])
        if self._described.norm is None:
            return x
        centred = x - x.mean(axis=1, keepdims=True)
        scale = np.sqrt((centred**2).mean(axis=1, keepdims=True) + self._described.norm)
        return np.asarray(centred / scale * self._rows[1] + self._rows[2])


class TextHead:
    """The last steps to vectors of texts: poolings, the layers behind them, and the cut.

    Args:
        described: the description of the folder.
        size: length of the pooled vectors, or of vectors of texts.

    Attributes:
        dimension: length of a vector of a text.
        of_engine: the pooling that the native engine computes, else `none`.
        is_plain: whether that is all.

    Raises:
        BundleError: a pooling or a layer is none that is applied here.
    """

    def __init__(self, described: ModelDescription, size: int) -> None:
        manifest = described.bundle
        self._poolings = manifest.pooling.split("+")
        if manifest.pad_to is not None or not {*self._poolings} <= {*POOLINGS}:
            advice = f"; {to_export(described.folder)}" if manifest.is_checkpoint else ""
            raise BundleError(
                f"{described.folder}: pooling by {manifest.pooling} is in graphs alone{advice}"
            )
        modules, self.dimension = declared_layers(described, size * len(self._poolings))
        self._layers = [
            normalize_rows if one is None else LinearLayer(one[0], *read_dense(*one))
            for one in modules
        ]
        self.of_engine = manifest.pooling if manifest.pooling in ENGINE_POOLINGS else "none"
        self._cut = None if manifest.has_own_head else described.truncate_dim
        self.is_plain = self.of_engine != "none" and not self._layers and self._cut is None

    def finish(self, found: Vectors, mask: npt.NDArray[np.int64], *, normalize: bool) -> Vectors:
        """Return the vectors of texts, of the native engine's output, without padding."""
        if self.is_plain:
            return found
        if self.of_engine == "none":  # each text by itself, whatever the others are
            texts = np.split(found, np.cumsum(mask.sum(axis=1))[:-1])
            alone = (
                pool(one[None], np.ones((1, len(one)), np.int64), self._poolings) for one in texts
            )
            found = np.concatenate([*alone])
        return self.behind(found, normalize=normalize)

    def behind(self, pooled: Vectors, *, normalize: bool) -> Vectors:
        """Apply the layers behind the pooling."""
        if self._layers:
            x = pooled.astype(np.float64)
            for layer in self._layers:
                x = layer(x)
            pooled = x.astype(np.float32)
        pooled = pooled[:, : self._cut]
        return normalize_rows(pooled) if normalize else pooled
