"""Run plain ONNX files: pool and normalise what their graphs give for each token."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from mirror_rt.bundle.json_document import to_export
from mirror_rt.bundle.manifest import Manifest
from mirror_rt.bundle.plain_manifest import TOKEN_OUTPUTS
from mirror_rt.errors import BundleError, ConfigError, Setting
from mirror_rt.inference.bundle_model import BundleModel
from mirror_rt.inference.graph_files import PLAIN_OUTPUTS
from mirror_rt.inference.load_options import LoadOptions
from mirror_rt.inference.pooled_model import Vectors
from mirror_rt.tokens.padding import PaddedBatch
from mirror_rt.vectors.normalization import normalize_rows


class PlainModel(BundleModel):
    """The model of a folder of plain ONNX files, opened on its devices.

    Args:
        folder: folder of the files.
        manifest: what `read_manifest` derived from the files beside the graph.
        options: say which graph to open, and how to run it.
    """

    def __init__(self, folder: Path, manifest: Manifest, options: LoadOptions) -> None:
        if options.cuda_graphs:
            raise ConfigError(Setting("cuda_graphs", True), f" needs a bundle; {to_export(folder)}")
        self._modes = manifest.pooling.split("+")
        super().__init__(folder, manifest, options)
        given = [name for name in PLAIN_OUTPUTS if name in self.runner.outputs]
        # The graph's own vector of a text, or the vectors of tokens, to be pooled here.
        self._text_output = str(self.variant.graph.get("output", given[0]))
        if given[0] in TOKEN_OUTPUTS:
            self._token_output = given[0]

    def run_batch(self, batch: PaddedBatch, *, normalize: bool) -> Vectors:
        """Run a padded batch: float32 [rows, D]; pool and normalise what the graph does not."""
        found = np.asarray(self.runner.run(batch, self._text_output), dtype=np.float32)
        if found.ndim == 3:
            found = pool(found, batch.attention_mask, self._modes)
        if found.shape[-1] != self.dimension:
            raise BundleError(
                f"{self.runner.graph} gave {found.shape[-1]} dimensions, its manifest "
                f"says {self.dimension}"
            )
        return normalize_rows(found) if normalize else found

    def run_exactly(self, batch: PaddedBatch, *, normalize: bool) -> Vectors | None:
        """Return None: nothing tells which of the graphs computes the same in fp32."""
        return None


def pool(tokens: Vectors, mask: npt.NDArray[np.int64], modes: Sequence[str]) -> Vectors:
    """Pool a right-padded batch as sentence-transformers' Pooling does.

    Args:
        tokens: float32 [rows, L, H], a vector for each token.
        mask: int64 [rows, L], 1 for tokens and 0 for padding.
        modes: names of `PoolingMode`; the results of several are joined in this order.

    Returns:
        float32 [rows, H * len(modes)].
    """
    return np.concatenate([_POOLINGS[mode](tokens, mask) for mode in modes], axis=1)


def _weighted(tokens: Vectors, weights: npt.NDArray[np.int64], power: float = 1) -> Vectors:
    """Sum the vectors [rows, L, H] with weights [rows, L], and divide by their sum ** `power`."""
    row = weights.astype(np.float32)
    total = (row[:, None, :] @ tokens)[:, 0]
    scaled: Vectors = total / np.maximum(row.sum(axis=1, keepdims=True), 1e-9) ** power
    return scaled.astype(np.float32, copy=False)


def _last(tokens: Vectors, mask: npt.NDArray[np.int64]) -> Vectors:
    last: Vectors = tokens[np.arange(len(tokens)), mask.sum(axis=1) - 1]
    return last


def _largest(tokens: Vectors, mask: npt.NDArray[np.int64]) -> Vectors:
    lowest = np.where(mask[:, :, None] == 1, tokens, np.float32(-np.inf))
    largest: Vectors = lowest.max(axis=1)
    return largest


_POOLINGS: dict[str, Callable[[Vectors, npt.NDArray[np.int64]], Vectors]] = {
    "cls": lambda tokens, mask: tokens[:, 0],
    "mean": _weighted,
    "mean_sqrt_len_tokens": lambda tokens, mask: _weighted(tokens, mask, 0.5),
    "weightedmean": lambda tokens, mask: _weighted(tokens, mask * (1 + np.arange(mask.shape[1]))),
    "max": _largest,
    "lasttoken": _last,
}
