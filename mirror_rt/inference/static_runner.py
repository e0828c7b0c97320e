"""Run a static encoder: look up the vectors of tokens, and average them (csrc/tokens/lookup)."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt

from mirror_rt import _core
from mirror_rt.bundle.file_records import verifying
from mirror_rt.bundle.manifest import Manifest, Variant
from mirror_rt.bundle.static_files import TABLE_NAMES, table_of
from mirror_rt.errors import BundleError, ClosedError, ConfigError, Setting
from mirror_rt.inference.graph_files import BUNDLE_OUTPUTS
from mirror_rt.inference.load_options import LoadOptions
from mirror_rt.inference.loaded_graph import LoadedGraph
from mirror_rt.inference.providers import NATIVE
from mirror_rt.io.tensors import Array, read_tensors
from mirror_rt.tokens.padding import PaddedBatch, RaggedTokens


class StaticRunner(LoadedGraph):
    """A table of vectors, in memory as float32; safe to use from several threads.

    Args:
        path: file of the table. Beside it there may be `mapping`, the row of each token id, and
            `weights`, the factor of the vector of each, as model2vec writes them.

    Raises:
        BundleError: the file is damaged, or its parts do not fit one another.
    """

    why = "a static encoder is a table, which needs no other engine"

    def __init__(self, path: Path) -> None:
        self.graph, self.providers, self.devices = path, [NATIVE], [None]
        self.outputs = list(BUNDLE_OUTPUTS)
        table_of(path)
        tensors = read_tensors(path, (*TABLE_NAMES, "mapping", "weights"))
        table = next(tensors[name] for name in TABLE_NAMES if name in tensors)
        self._table: npt.NDArray[np.float32] | None = np.ascontiguousarray(table, np.float32)
        self.dimension = table.shape[1]
        rows, weights = tensors.get("mapping"), tensors.get("weights")
        for name, array in (("mapping", rows), ("weights", weights)):
            if array is not None and (array.ndim != 1 or not len(array)):
                raise BundleError(f"{path}: {name} has the shape {list(array.shape)}")
        if rows is not None and not (
            _integers(rows) and 0 <= rows.min() <= rows.max() < len(table)
        ):
            raise BundleError(f"{path}: mapping has rows that the table of {len(table)} has not")
        sizes = {len(array) for array in (rows, weights) if array is not None} or {len(table)}
        if len(sizes) > 1:
            raise BundleError(
                f"{path}: mapping and weights are for {sizes} tokens, expected as many"
            )
        self.tokens: int = sizes.pop()
        """The number of token ids that have a vector."""
        self._rows = None if rows is None else rows.astype(np.int32)
        self._weights = None if weights is None else weights.astype(np.float32)

    def run(self, batch: PaddedBatch, output: str) -> npt.NDArray[np.float32]:
        """Run a padded batch: float32 [rows, D]."""
        real = batch.attention_mask != 0
        offsets = np.concatenate([[0], np.cumsum(real.sum(axis=1))])
        tokens = RaggedTokens(batch.input_ids[real].astype(np.int32), offsets)
        return self.run_rows(tokens, normalize=output == BUNDLE_OUTPUTS[0])

    def run_rows(self, tokens: RaggedTokens, *, normalize: bool) -> npt.NDArray[np.float32]:
        """Run sequences of tokens: float32 [n, D]; NaN for one whose mean is zero."""
        if (table := self._table) is None:
            raise ClosedError("this Encoder is closed: load it again with Encoder.load")
        try:
            return _core.mean_rows(table, tokens.ids, tokens.offsets, row_of=self._rows,
                                   weights=self._weights, normalize=normalize)  # fmt: skip
        except IndexError as error:
            raise BundleError(f"{self.graph}: {error}") from error

    def close(self) -> None:
        """Free the memory once no run is in flight; every later run raises ClosedError."""
        self._table = None


def open_static(
    folder: Path, manifest: Manifest, options: LoadOptions
) -> tuple[StaticRunner, Variant]:
    """Open the table of a static encoder.

    Raises:
        BundleIntegrityError: a file is missing or was changed.
        ConfigError: an option asks for a card or another engine.
        BundleError: the table is damaged.
    """
    if options.providers not in ("auto", "cpu", NATIVE):
        raise ConfigError(
            Setting("providers", options.providers),
            f": {folder} is a static encoder, which this package runs itself; leave it out",
        )
    for option in options.for_cards:
        raise ConfigError(Setting(option, getattr(options, option)), " is for NVIDIA cards, and a "
                          "static encoder runs on the CPU; leave it out")  # fmt: skip
    variant = manifest.variant(options.variant)
    files = manifest.files_for([variant]) if options.verify else {}
    with verifying(folder, files):
        runner = StaticRunner(folder / variant.file)
    if runner.dimension != manifest.dimension:
        raise BundleError(f"{runner.graph} has {runner.dimension} dimensions, its manifest says "
                          f"{manifest.dimension}")  # fmt: skip
    return runner, variant


def _integers(array: Array) -> bool:
    return array.dtype.kind in "iu"
