"""Make weights of words of the vectors of tokens (csrc/engine/vocabulary.cpp)."""

from __future__ import annotations

from typing import Any

import numpy as np

from mirror_rt import _core
from mirror_rt.bundle.description import ModelDescription
from mirror_rt.bundle.word_tensors import read_words
from mirror_rt.errors import BundleError
from mirror_rt.inference.bundle_model import BundleModel
from mirror_rt.inference.load_options import LoadOptions
from mirror_rt.inference.native.kernel_choice import kernels_for
from mirror_rt.inference.native.runner import SPINS
from mirror_rt.inference.pooled_model import PooledModel, Vectors
from mirror_rt.tokens.padding import PaddedBatch
from mirror_rt.vectors.normalization import normalize_rows

_NATIVE = ("fp32", "bf16", "int8")


class WordModel(PooledModel):
    """The model of a sparse encoder: its vectors are the weights of all words, float32 [n, V].

    Args:
        encoder: gives vectors of tokens, by whatever engine.
        described: the declarations of its folder.
        options: say how many threads the head has.

    Raises:
        BundleError: the weights of the head are damaged, or `encoder` gives no vectors of tokens.
    """

    def __init__(
        self, encoder: BundleModel, described: ModelDescription, options: LoadOptions
    ) -> None:
        words = described.bundle.words
        assert words is not None
        super().__init__(words.size, run_cost=encoder.run_cost, parallel_runs=encoder.parallel_runs)
        if not encoder.has_token_vectors:
            raise BundleError(f"{encoder.runner.graph} gives no vectors of tokens")
        path, tensors = read_words(described)
        arrays: dict[str, Any] = {
            layer: (_kept(tensors[f"{layer}.weight"]), _kept(tensors[f"{layer}.bias"]))
            for layer in ("dense", "norm", "decoder")
        }
        precision = encoder.variant.precision
        kernels = kernels_for(precision if precision in _NATIVE else "fp32")
        try:
            self._head = _core.NativeVocabulary(
                **kernels._asdict(), activation=words.activation, epsilon=words.norm, **arrays
            )
        except (ValueError, TypeError) as error:
            raise BundleError(f"{path}: {error}") from error
        self._encoder, self._words = encoder, words
        self._threads, self._spins = options.resolved_threads, SPINS[options.resolved_spinning]

    def run_batch(self, batch: PaddedBatch, *, normalize: bool) -> Vectors:
        """Run a padded batch: the weights of words, float32 [rows, V]."""
        mask = batch.attention_mask != 0
        tokens = np.ascontiguousarray(self._encoder.token_vectors(batch)[mask], np.float32)
        weights = self._head.run(
            tokens,
            np.append(0, np.cumsum(mask.sum(axis=1))),
            pooling=self._words.pooling,
            twice=self._words.weighing == "log1p_relu",
            threads=self._threads,
            spins=self._spins,
        )
        return normalize_rows(weights) if normalize else weights

    def prepare_concurrent_runs(self) -> int:
        """Prepare for concurrent runs; return the best number of runs in flight."""
        return self._encoder.prepare_concurrent_runs()


def _kept(array: Vectors) -> Vectors:
    """Return a matrix with its inputs first, as the engine takes it."""
    return np.ascontiguousarray(array.T)
