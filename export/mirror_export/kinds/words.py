"""Export a sparse encoder: its encoder becomes a graph, and its head is stored beside it."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import torch
from transformers import AutoModelForMaskedLM

from mirror_export.kinds.dense import Exported, Reference, Traceable
from mirror_export.parity import encode_compared
from mirror_rt.bundle.checkpoint_files import open_weights, refuse_pickled
from mirror_rt.bundle.manifest import Layout
from mirror_rt.bundle.sparse_files import (
    Queries,
    check_sparse,
    describe_queries,
    describe_words,
    read_queries,
)
from mirror_rt.bundle.word_layers import WordLayers
from mirror_rt.bundle.word_tensors import Floats, take_words
from mirror_rt.errors import ModelError
from mirror_rt.evaluation import ScoredPairs
from mirror_rt.io.tensors import write_tensors
from mirror_rt.pipeline.pipeline import Pipeline
from mirror_rt.sparse.sparse_encoder import SparseEncoder
from mirror_rt.tokens.tokenizer_file import read_tokenizer
from mirror_train.model.model_checks import as_model_error
from mirror_train.model.pretrained import Pretrained, quiet_transformers
from mirror_train.model.torch_encoder import TorchModel
from mirror_train.model.word_head import WordHead

# The parts of a tokenizer that leave the tokens of a text itself alone.
_AROUND = ("post_processor", "truncation", "padding")


class Words(Exported):
    """A sparse encoder.

    Args:
        described: the description of its head.
        tensors: the weights of its head, by their names in the file of a bundle.
        queries: the weights of the words of queries, float32 [V]; None where the model makes them.
    """

    loader, pooling = SparseEncoder, "max"
    described: WordLayers

    def __init__(
        self, described: WordLayers, tensors: dict[str, Floats], queries: Floats | None
    ) -> None:
        self.described, self._tensors, self._queries = described, tensors, queries

    @classmethod
    def read(cls, pretrained: Pretrained) -> Words:
        """Read the head beside a loaded encoder; ModelError for one that is not run here."""
        described = pretrained.description
        with as_model_error():
            check_sparse(described)
            if described.weights is None:
                refuse_pickled(described)
            stored = open_weights(described)
            layers, tensors = describe_words(described, stored), take_words(described, stored)
            if (queries := describe_queries(described)) is None:
                return cls(layers, tensors, None)
            _check_tokens(pretrained, queries)
            return cls(layers, tensors, read_queries(queries, layers.size))

    def write(self, folder: Path) -> None:
        """Write the weights into a folder that is being made."""
        (folder / WordLayers.file).parent.mkdir()
        write_tensors(folder / WordLayers.file, self._tensors)
        if self._queries is not None:
            write_tensors(folder / WordLayers.table, {"weight": self._queries})

    def run(self, made: Traceable, texts: list[str], pairs: ScoredPairs | None = None) -> Reference:
        """Run the PyTorch model: weights of words, of unit length, float32 [n, V], are expected."""
        found, pretrained = super().run(made, texts), made.pretrained
        with quiet_transformers():
            model = AutoModelForMaskedLM.from_pretrained(
                pretrained.model_folder, dtype=torch.float32
            ).eval()
        size, layers = self.described.size, self.described
        words = WordHead(size, layers.pooling, layers.weighing)
        run = TorchModel(model, words, dimension=size, device=torch.device("cpu"))
        tokenizer = pretrained.text_tokenizer(made.described.bundle.max_length, copy=False)
        pipeline = Pipeline(tokenizer, run, normalize=False)
        weights = encode_compared(pipeline, texts, normalize_embeddings=True).embeddings
        return dataclasses.replace(found, expected=weights)


def _check_tokens(pretrained: Pretrained, queries: Queries) -> None:
    """Raise ModelError if the tokens of queries are others than those of documents."""
    described = queries.described

    def steps(tokenizer_json: str) -> dict[str, object]:
        found = json.loads(tokenizer_json)
        return {name: value for name, value in found.items() if name not in _AROUND}

    path = described.transformer / Layout.tokenizer
    theirs, _ = read_tokenizer(path, described.tokenizer, pad_id=0)
    if steps(theirs.to_str()) != steps(pretrained.hf_tokenizer.backend_tokenizer.to_str()):
        raise ModelError(
            f"{path} cuts queries into other tokens than documents have, and a bundle has one "
            "tokenizer: mirror_rt.SparseEncoder.load runs the folder as it is"
        )
