"""Trace a model into the float32 graph of a bundle, and encode the texts to compare it on."""

from __future__ import annotations

import dataclasses
import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedModel

from mirror_export.config import ExportConfig
from mirror_export.graph.torch_export import export_graph
from mirror_export.graph.weight_table import ModuleWeights, table_of
from mirror_export.load import Loaded
from mirror_export.parity import encode_compared, encode_tokens, parity_pairs, parity_texts
from mirror_export.words import torch_weights
from mirror_rt import Manifest
from mirror_rt.bundle.description import describe_folder
from mirror_rt.bundle.families import FAMILIES, family_of, takes_token_types
from mirror_rt.bundle.manifest import Layout, with_records
from mirror_rt.bundle.packed_layers import write_packed
from mirror_rt.encoding.batch_encoder import Vectors
from mirror_rt.errors import ConfigError
from mirror_rt.evaluation import ScoredPairs, evaluate_similarity, read_scored_pairs
from mirror_rt.heads.task_heads import Heads
from mirror_rt.inference.pooled_model import PooledModel
from mirror_rt.late_interaction.projection import TokenModel
from mirror_rt.late_interaction.token_encoder import TokenEncoder
from mirror_rt.reranking.reranker import PairPipeline
from mirror_rt.tokens.padding import PaddedBatch
from mirror_rt.vectors.normalization import normalize_rows
from mirror_train.model.cross_encoder import LogitHead, PairTokens
from mirror_train.model.pooling_head import Head
from mirror_train.model.pretrained import Pretrained
from mirror_train.model.sentence_transformers import save_tokenizer, write_modules
from mirror_train.model.torch_encoder import TorchEncoder, TorchModel

logger = logging.getLogger("mirror_export")


@dataclass(frozen=True, slots=True)
class Traced:
    """A bundle in the making with its float32 graph, and the results of the PyTorch model.

    Attributes:
        config: the model and the options of the export.
        folder: where the bundle is made.
        manifest: that of the bundle, without its variants, with the files of the float32 graph.
        graph: description of the float32 graph.
        texts: n texts, or pairs of a cross-encoder, to compare on.
        vectors: PyTorch's unit vectors of the texts or pairs, float32 [n, D].
        scores: PyTorch's logits of the pairs, float32 [n, C]; None of an encoder.
        tokens: of a late-interaction model PyTorch's vectors of the tokens of the texts, as queries
            and then as documents; None of any other.
        words: PyTorch's unit vectors of a sparse encoder, float32 [n, V]; None of any other.
        pairs: text pairs with human scores; None if none were given.
        spearman: Spearman's correlation of PyTorch's cosines with those scores.
    """

    config: ExportConfig
    folder: Path
    manifest: Manifest
    graph: dict[str, Any]
    texts: list[Any]
    vectors: Vectors
    scores: Vectors | None = None
    tokens: list[Vectors] | None = None
    words: Vectors | None = None
    pairs: ScoredPairs | None = None
    spearman: float | None = None


def trace(loaded: Loaded, folder: Path) -> Traced:
    """Write the float32 graph and the files beside it; encode the parity texts with PyTorch.

    The model is of no use afterwards: its tokenizer is taken, and its weights are freed.
    """
    pretrained, manifest = loaded.pretrained, loaded.manifest
    pairs = _read_pairs(loaded.config.parity_pairs, manifest.language)  # before any work
    _write_companions(loaded, folder)
    path = folder / Layout.model
    path.parent.mkdir()
    names = _input_names(pretrained)
    graph, placed = export_graph(
        pretrained.model,
        path,
        head=loaded.head,
        scores=loaded.scores,
        input_names=names,
        max_length=pretrained.max_length,
    )
    described = describe_folder(folder, manifest=manifest)
    weights = ModuleWeights(pretrained.model, path)
    table = table_of(described, weights, placed, typed="token_type_ids" in names)
    # The engine, in which variants are compared, takes a table of a file that is recorded.
    manifest = with_records(dataclasses.replace(manifest, native=table), folder)
    del placed, weights
    _tell_of_missing_fusion(pretrained, graph["fused"])
    tokenizer = pretrained.text_tokenizer(manifest.max_length, copy=False)
    texts: list[Any] = loaded.config.parity_texts or parity_texts(tokenizer, manifest.language)
    scores, tokens, words, spearman = None, None, None, None
    if loaded.words is not None:
        words = torch_weights(pretrained, loaded.words, tokenizer, texts)
    if pretrained.classifier is None:
        encoder = TorchEncoder(
            pretrained,
            head=loaded.head,
            max_length=manifest.max_length,
            pad_to=manifest.pad_to,
            copy_tokenizer=False,
        )
        vectors = encode_compared(encoder.pipeline, texts, normalize_embeddings=True).embeddings
        spearman = evaluate_similarity(encoder, pairs) if pairs else None
        if loaded.layers is not None:
            model = TokenModel(TorchTokens(pretrained), loaded.layers)
            tokens = encode_tokens(TokenEncoder(described, model), texts)
    else:
        texts = parity_pairs(texts)
        scores, vectors = _score(loaded, texts)
    for parameter in pretrained.model.parameters():
        parameter.data = parameter.data.new_empty(0)  # the exporter's rules would keep them alive
    return Traced(
        loaded.config, folder, manifest, graph, texts, vectors, scores, tokens, words, pairs,
        spearman,
    )  # fmt: skip


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


def _score(loaded: Loaded, pairs: list[Any]) -> tuple[Vectors, Vectors]:
    """Return the logits of pairs, and their unit vectors, on which layers are measured."""
    base, cpu = loaded.pretrained, torch.device("cpu")
    assert base.classifier is not None
    tokenizer = PairTokens(base, loaded.manifest.max_length, copy=False).tokenizer

    def run(model: PreTrainedModel, head: Head, dimension: int) -> Vectors:
        made = TorchModel(model, head, dimension=dimension, device=cpu)
        return encode_compared(PairPipeline(tokenizer, made), pairs).embeddings

    logits = run(base.classifier, LogitHead(), int(base.classifier.config.num_labels))
    return logits, normalize_rows(run(base.model, loaded.head, base.dimension))


def _write_companions(loaded: Loaded, folder: Path) -> None:
    """Write the tokenizer, configuration, modules and heads of a bundle into `folder`."""
    pretrained, manifest = loaded.pretrained, loaded.manifest
    save_tokenizer(pretrained.hf_tokenizer, folder, max_length=manifest.max_length)
    config = pretrained.model.config
    if loaded.layers is not None:
        write_packed(folder / Layout.projection, loaded.layers.weights)
    if loaded.scores is not None:
        loaded.scores.write(folder)
    if loaded.scores is not None or loaded.layers is not None:
        config.save_pretrained(folder)
        return
    if loaded.words is not None:
        config.save_pretrained(folder)
        loaded.words.write(folder)
        return
    config.architectures = [type(pretrained.model).__name__]  # without task layers
    config.save_pretrained(folder)
    write_modules(
        folder,
        loaded.head,
        manifest,
        hidden_size=pretrained.dimension,
        similarity=pretrained.description.similarity,
    )
    _write_heads(pretrained.folder, manifest, folder)


def _write_heads(source: Path, manifest: Manifest, folder: Path) -> None:
    """Copy the task heads, if the bundle gives the kind of vectors that they were trained on."""
    if not Heads.present(source):
        return
    heads = Heads.read(source)
    if (heads.dimension, heads.pooling) != (manifest.dimension, manifest.pooling):
        logger.warning(
            "the task heads of %s are left out: they take %d dimensions by %s pooling, the bundle "
            "gives %d by %s",
            source,
            heads.dimension,
            heads.pooling,
            manifest.dimension,
            manifest.pooling,
        )
        return
    heads.write(folder)


def _input_names(pretrained: Pretrained) -> tuple[str, ...]:
    """Return the names of the graph's inputs: token types if both model and tokenizer have them.

    The tokenizer decides, as in transformers: a RoBERTa may have that of a BERT.
    """
    given = pretrained.gives_token_types and takes_token_types(pretrained.model)
    return ("input_ids", "attention_mask", *(("token_type_ids",) if given else ()))


def _tell_of_missing_fusion(pretrained: Pretrained, fused: dict[str, int]) -> None:
    family, config = family_of(pretrained.model), pretrained.model.config
    if not family.fused:
        logger.warning(
            "no fusion is known for the family %r: its attention stays as PyTorch wrote it, which "
            "works (known are %s)",
            config.model_type,
            ", ".join(name for name, known in FAMILIES.items() if known.fused),
        )
        return
    for operator, count in family.expected(config.num_hidden_layers).items():
        names = ("BiasGelu", "FastGelu") if operator == "BiasGelu" else (operator,)
        found = sum(fused.get(name, 0) for name in names)
        if found < count:
            logger.warning("%s: fused %d of %d; the graph works", operator, found, count)


def _read_pairs(path: Path | None, language: str | None) -> ScoredPairs | None:
    """Read the pairs from a file, or from LANGUAGE.tsv in a folder."""
    if path is None:
        return None
    if not path.is_dir():
        return read_scored_pairs(path)
    file = path / f"{language}.tsv"
    if language is None or not file.is_file():
        raise ConfigError(
            f"--parity-pairs {path}: the folder has no {language}.tsv for a model of language "
            f"{language}: pass a file, or a folder with one for every language"
        )
    return read_scored_pairs(file)
