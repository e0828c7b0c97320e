"""Read inner values of a graph, which are not outputs, over a few batches of real text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from mirror_rt.bundle.manifest import Layout, Manifest
from mirror_rt.inference.load_options import LoadOptions
from mirror_rt.inference.session import GraphSession
from mirror_rt.tokens.padding import PaddedBatch
from mirror_rt.tokens.pairs import PairTokenizer
from mirror_rt.tokens.tokenization import TextTokenizer

Array = npt.NDArray[Any]


class Probe:
    """Runs graphs derived from those of a bundle; they read the bundle's weights in place.

    They run on `texts` (pairs of a cross-encoder), `rows` at a time, where texts of similar lengths
    share a batch.

    Attributes:
        batches: the texts, padded.
        rows: indices of the texts of each batch, int64 [b].
    """

    def __init__(self, folder: Path, manifest: Manifest, texts: list[Any], rows: int) -> None:
        self._path = (folder / Layout.model).with_name("probe.onnx")
        kind = TextTokenizer if manifest.scores is None else PairTokenizer
        tokenizer = kind.from_file(
            folder / Layout.tokenizer, max_length=manifest.max_length, pad_id=manifest.pad_id
        )
        tokens = tokenizer(texts).tokens
        order = np.argsort(tokens.lengths, kind="stable")
        self.rows = [order[i : i + rows] for i in range(0, len(order), rows)]
        self.batches: list[PaddedBatch] = [
            tokens.pad(rows, pad_id=manifest.pad_id, length=manifest.pad_to) for rows in self.rows
        ]

    def session(self, model: ir.Model) -> Any:
        """Return an onnxruntime session of the graph on the CPU."""
        try:
            ir.save(model, self._path)
            return GraphSession(self._path, ["CPUExecutionProvider"], LoadOptions()).session()
        finally:
            self._path.unlink(missing_ok=True)

    def run(self, model: ir.Model, outputs: Sequence[ir.Value]) -> Iterator[list[Array]]:
        """Yield the values of `outputs` for every batch."""
        session = self.session(model)
        for batch in self.batches:
            yield run_batch(session, batch, [str(value.name) for value in outputs])


def run_batch(
    session: Any, batch: PaddedBatch, outputs: Sequence[str], **more: Array
) -> list[Array]:
    """Run a session on a batch, with the additional inputs `more`."""
    arrays = batch._asdict() | more
    feeds = {node.name: arrays[node.name] for node in session.get_inputs()}
    return [np.asarray(array) for array in session.run(list(outputs), feeds)]
