"""Run plain ONNX files: pool and normalise the vectors that their graphs give for each token."""

from __future__ import annotations

import numpy as np

from mirror_rt.bundle.description import ModelDescription
from mirror_rt.bundle.json_document import to_export
from mirror_rt.bundle.plain_manifest import TOKEN_OUTPUTS, width
from mirror_rt.errors import BundleError, ConfigError, Setting
from mirror_rt.inference.bundle_model import BundleModel
from mirror_rt.inference.graph_files import outputs_of
from mirror_rt.inference.load_options import LoadOptions
from mirror_rt.inference.pooled_model import Vectors
from mirror_rt.inference.pooling import pool
from mirror_rt.inference.vector_layers import TextHead
from mirror_rt.tokens.padding import PaddedBatch


class PlainModel(BundleModel):
    """The model of a folder of plain ONNX files, opened on its devices.

    Args:
        described: the files beside the graph, with the manifest derived from them.
        options: say which graph to open, and how to run it.
    """

    def __init__(self, described: ModelDescription, options: LoadOptions) -> None:
        if options.cuda_graphs:
            raise ConfigError(
                Setting("cuda_graphs", True), f" needs a bundle; {to_export(described.folder)}"
            )
        super().__init__(described, options)
        given = [name for name in outputs_of(described.bundle) if name in self.runner.outputs]
        # The graph's own vector of a text, or the vectors of tokens, to be pooled here.
        self._text_output = str(self.variant.graph.get("output", given[0]))
        if given[0] in TOKEN_OUTPUTS:
            self._token_output = given[0]
        self._width = self.variant.graph.get("width") or width(described)
        self._head = TextHead(described, self._width)

    def run_batch(self, batch: PaddedBatch, *, normalize: bool) -> Vectors:
        """Run a padded batch: float32 [rows, D]; pool and normalise where the graph does not."""
        found = np.asarray(self.runner.run(batch, self._text_output), dtype=np.float32)
        if found.shape[-1] != self._width:
            raise BundleError(
                f"{self.runner.graph} gave {found.shape[-1]} dimensions, its manifest "
                f"says {self._width}"
            )
        if found.ndim == 3:
            found = pool(found, batch.attention_mask, self._described.bundle.pooling.split("+"))
        return self._head.behind(found, normalize=normalize)

    def run_exactly(self, batch: PaddedBatch, *, normalize: bool) -> Vectors | None:
        """Return None: nothing tells which of the graphs computes the same in fp32."""
        return None
