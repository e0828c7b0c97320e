"""Export a cross-encoder: its encoder becomes a graph, and its head is stored beside it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel

from mirror_export.kinds.dense import Exported, Reference, Traceable
from mirror_export.parity import ParityReport, compare_scores, encode_compared, parity_pairs
from mirror_rt.bundle.classifier import head_of
from mirror_rt.bundle.families import family_of
from mirror_rt.bundle.manifest import PoolingMode, Precision
from mirror_rt.bundle.packed_layers import pack_layers
from mirror_rt.encoding.batch_encoder import Vectors
from mirror_rt.errors import ModelError
from mirror_rt.evaluation import ScoredPairs
from mirror_rt.reranking.reranker import PairPipeline, Reranker
from mirror_rt.reranking.score_head import ScoreHead
from mirror_rt.vectors.normalization import normalize_rows
from mirror_train.model.cross_encoder import LogitHead, PairTokens
from mirror_train.model.model_checks import as_model_error
from mirror_train.model.pooling_head import Head
from mirror_train.model.pretrained import Pretrained
from mirror_train.model.torch_encoder import TorchModel


class Pairs(Exported):
    """A cross-encoder, with its head, which reads the vector that `pooling` makes."""

    loader = Reranker
    scores: ScoreHead

    def __init__(self, scores: ScoreHead, pooling: PoolingMode) -> None:
        self.scores, self.pooling = scores, pooling
        self.described = scores.described

    @classmethod
    def read(cls, pretrained: Pretrained) -> Pairs:
        """Read the head of a loaded classifier; ModelError for one that cannot be run."""
        model, described = pretrained.classifier, pretrained.description
        assert model is not None
        family = family_of(model)
        prefix = f"{family.tensors.prefix}." if family.tensors else ""
        state = {name.removeprefix(prefix): weight for name, weight in model.state_dict().items()}
        with as_model_error():
            head = head_of(described, family, state.keys(), lambda name: state[name].numpy())
        if problem := head.described.problem(pretrained.dimension):
            raise ModelError(f"{pretrained.folder}: the head does not fit its encoder: {problem}")
        return cls(ScoreHead(head.described, pack_layers(head.weights)), head.pooling)

    def write(self, folder: Path) -> None:
        """Write the weights of its head into a folder that is being made."""
        self.scores.write(folder)

    def run(self, made: Traceable, texts: list[str], pairs: ScoredPairs | None = None) -> Reference:
        """Run the PyTorch model over pairs of texts: their logits, float32 [n, C], are expected."""
        pretrained, given = made.pretrained, parity_pairs(texts)
        classifier, length = pretrained.classifier, made.described.bundle.max_length
        assert classifier is not None
        tokenizer = PairTokens(pretrained, length, copy=False).tokenizer

        def run(model: PreTrainedModel, head: Head, dimension: int) -> Vectors:
            run = TorchModel(model, head, dimension=dimension, device=torch.device("cpu"))
            return encode_compared(PairPipeline(tokenizer, run), given).embeddings

        logits = run(classifier, LogitHead(), int(classifier.config.num_labels))
        vectors = normalize_rows(run(pretrained.model, made.head, pretrained.dimension))
        return Reference(given, vectors, logits)

    @staticmethod
    def compare(
        expected: Any, exported: Any, texts: list[Any], precision: Precision
    ) -> ParityReport:
        """Compare logits of pairs."""
        return compare_scores(expected, exported, texts, precision)
