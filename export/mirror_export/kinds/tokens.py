"""Export a late-interaction model: its encoder becomes a graph, its layers are stored beside it."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import torch

from mirror_export.kinds.dense import Exported, Reference, Traceable
from mirror_export.parity import BATCH, GATES, ParityReport
from mirror_rt import Manifest
from mirror_rt.bundle.late_interaction import describe_late_interaction
from mirror_rt.bundle.manifest import Precision
from mirror_rt.bundle.packed_layers import write_packed
from mirror_rt.bundle.token_vectors import TokenVectors
from mirror_rt.encoding.batch_encoder import Vectors
from mirror_rt.evaluation import ScoredPairs
from mirror_rt.inference.pooled_model import PooledModel
from mirror_rt.late_interaction.encoder import MultiVectorEncoder
from mirror_rt.late_interaction.projection import Projection, TokenModel
from mirror_rt.late_interaction.token_encoder import TokenEncoder
from mirror_rt.pipeline.options import EncodeKeywords
from mirror_rt.tokens.padding import PaddedBatch
from mirror_rt.vectors.normalization import normalize_rows
from mirror_train.model.model_checks import as_model_error
from mirror_train.model.pretrained import Pretrained


class Tokens(Exported):
    """A late-interaction model, whose folder says how it makes vectors of tokens.

    Attributes:
        manifest: that of its folder.
    """

    loader = MultiVectorEncoder

    def __init__(self, manifest: Manifest, layers: Projection) -> None:
        self.manifest, self._layers = manifest, layers
        self.described = manifest.tokens

    @classmethod
    def read(cls, pretrained: Pretrained) -> Tokens:
        """Read the layers beside a loaded encoder; ModelError for those that are not run here."""
        with as_model_error():
            manifest = describe_late_interaction(pretrained.description)
            described = dataclasses.replace(pretrained.description, manifest=manifest)
            return cls(manifest, Projection.read(described))

    def write(self, folder: Path) -> None:
        """Write the weights of its layers into a folder that is being made."""
        write_packed(folder / TokenVectors.file, self._layers.weights)

    def run(self, made: Traceable, texts: list[str], pairs: ScoredPairs | None = None) -> Reference:
        """Run the PyTorch model: vectors of tokens are expected, as `encode_tokens` gives them."""
        found = super().run(made, texts)
        model = TokenModel(TorchTokens(made.pretrained), self._layers)
        encoder = TokenEncoder(made.described, model)
        return dataclasses.replace(found, expected=encode_tokens(encoder, texts))

    @staticmethod
    def compare(
        expected: Any, exported: Any, texts: list[Any], precision: Precision
    ) -> ParityReport:
        """Compare vectors of tokens; the cosine of a text is the mean of those of its tokens."""
        found = encode_tokens(exported.encoder, texts)
        both = [[normalize_rows(one.astype(np.float64)) for one in pair]
                for pair in zip(expected, found, strict=True) if len(pair[0])]  # fmt: skip
        cosines = np.array([np.einsum("td,td->t", *pair).mean() for pair in both])
        largest = max(float(np.abs(a - b).max()) for a, b in both)
        lengths = [len(a) for a, _ in both]
        means = float(cosines.mean()), float(cosines.min())
        return ParityReport(
            len(both), min(lengths), max(lengths), largest, *means, GATES[precision]
        )


class TorchTokens(PooledModel):
    """The token vectors of a model of transformers on the CPU, in float32."""

    def __init__(self, pretrained: Pretrained) -> None:
        super().__init__(pretrained.dimension)
        self._model = pretrained.model

    def run_batch(self, batch: PaddedBatch, *, normalize: bool) -> Vectors:
        """Raise NotImplementedError: token vectors alone are asked for."""
        raise NotImplementedError

    def check_token_vectors(self) -> None:
        """Do nothing: it gives them."""

    def token_vectors(self, batch: PaddedBatch) -> Vectors:
        """Run a padded batch: float32 [rows, length, H]."""
        ids, mask = map(torch.from_numpy, batch[:2])
        with torch.inference_mode():
            found = self._model(input_ids=ids, attention_mask=mask)
        return np.asarray(found.last_hidden_state.numpy())


def encode_tokens(encoder: TokenEncoder, texts: list[str]) -> list[Vectors]:
    """Return the vectors of the tokens of texts, as queries and then as documents."""
    options: EncodeKeywords = {"batch_size": BATCH}
    return [*encoder.encode("query", texts, options), *encoder.encode("document", texts, options)]
