"""Export encoders of dense vectors; other kinds are exported in the same form."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from mirror_export.parity import GATES, ParityReport, compare, encode_compared
from mirror_rt import Encoder
from mirror_rt.bundle import model_kinds
from mirror_rt.bundle.description import ModelDescription
from mirror_rt.bundle.manifest import PoolingMode, Precision
from mirror_rt.encoding.batch_encoder import Vectors
from mirror_rt.evaluation import ScoredPairs, evaluate_similarity
from mirror_rt.reranking.score_head import ScoreHead
from mirror_train.model.pooling_head import Head
from mirror_train.model.pretrained import Pretrained
from mirror_train.model.torch_encoder import TorchEncoder


class Traceable(NamedTuple):
    """A loaded model, the head that its graph has, and the description of its bundle so far."""

    pretrained: Pretrained
    head: Head
    described: ModelDescription


@dataclass(frozen=True, slots=True)
class Reference:
    """The results of the PyTorch model.

    Attributes:
        texts: n texts, or pairs of a cross-encoder, to compare on.
        vectors: unit vectors of the texts or pairs, float32 [n, D], on which layers are measured.
        expected: the outputs of such models, as `Exported.compare` takes them.
        spearman: Spearman's correlation of cosines with human scores; None without such scores.
    """

    texts: list[Any]
    vectors: Vectors
    expected: Any
    spearman: float | None = None


class Exported:
    """A model on its way into a bundle, by its kind: this one encodes texts to dense vectors.

    Attributes:
        loader: the class that loads such a bundle.
        described: the head of its own, as the manifest has it; None without one.
        pooling: the one that its head needs, or any of those where it needs none; None for the
            declared one.
        scores: the layers that make logits inside the graph, too; None without them.
    """

    loader: ClassVar[Any] = Encoder
    described: model_kinds.Head | None = None
    pooling: PoolingMode | None = None
    scores: ScoreHead | None = None

    def write(self, folder: Path) -> None:
        """Write the weights of the head of its own into a folder that is being made."""

    def run(self, made: Traceable, texts: list[str], pairs: ScoredPairs | None = None) -> Reference:
        """Run the PyTorch model over texts."""
        manifest = made.described.bundle
        encoder = TorchEncoder(
            made.pretrained,
            head=made.head,
            max_length=manifest.max_length,
            pad_to=manifest.pad_to,
            copy_tokenizer=False,
        )
        vectors = encode_compared(encoder.pipeline, texts, normalize_embeddings=True).embeddings
        spearman = evaluate_similarity(encoder, pairs) if pairs else None
        return Reference(texts, vectors, vectors, spearman)

    @staticmethod
    def compare(
        expected: Any, exported: Any, texts: list[Any], precision: Precision
    ) -> ParityReport:
        """Compare the outputs of a bundle, which `loader` loaded, with those of `Reference`."""
        return compare(expected, exported, texts, GATES[precision])
