"""The head of a sparse encoder (SPLADE) in PyTorch: a masked language model that weighs words."""

from __future__ import annotations

import copy
import dataclasses
import logging
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import AutoModelForMaskedLM

from mirror_rt.bundle.declarations import write_modules
from mirror_rt.bundle.word_layers import WordPooling, WordWeighing
from mirror_rt.bundle.word_tensors import HEADS
from mirror_rt.encoding.batch_encoder import Vectors
from mirror_rt.errors import ModelError
from mirror_rt.io.atomic import write_json
from mirror_train.model.model_checks import as_model_error
from mirror_train.model.pooling_head import Head
from mirror_train.model.pretrained import Pretrained, quiet_transformers

logger = logging.getLogger("mirror_train")

_SPARSE = "sentence_transformers.sparse_encoder.models"  # which versions 5 and 6 know


class WordHead(Head):
    """The head of a sparse encoder, whose weights of words [B, V] stand in for text vectors.

    Args:
        size: the number V of words.
        pooling: whether the weight of a word is its largest over the tokens, or their sum.
        weighing: `relu` for log(1 + x) of a logit x above 0; `log1p_relu` for log(1 + that).
    """

    gives_text_vectors = False

    def __init__(
        self, size: int, pooling: WordPooling = "max", weighing: WordWeighing = "relu"
    ) -> None:
        super().__init__(["max"], normalize=False)
        self._size, self._sums, self._twice = size, pooling == "sum", weighing == "log1p_relu"

    def dimension(self, hidden_size: int) -> int:
        """Return the number of words."""
        return self._size

    def embed(self, model: nn.Module, **inputs: Tensor) -> tuple[Tensor, Tensor]:
        """Run a masked language model; return the weights of words [B, V], twice."""
        weights: Tensor = model(**inputs).logits * inputs["attention_mask"].unsqueeze(-1)
        if not self._sums:
            weights = weights.amax(dim=1)  # before functions that keep the order: fewer numbers
        weights = weights.relu().log1p()
        weights = weights.log1p() if self._twice else weights
        pooled = weights.sum(dim=1) if self._sums else weights
        return pooled, pooled


def as_masked(base: Pretrained, *, seed: int) -> tuple[Pretrained, bool]:
    """Return the masked language model of a folder, with the dropout of `base`; is its head new?

    A head that the folder lacks begins with a linear layer that changes nothing where the widths
    allow it, and is told of by a warning.
    """
    kind = base.model.config.model_type
    if kind not in HEADS:
        raise ModelError(
            f"{base.name} is of the family {kind}, whose head of words is not known: choose one of "
            f"{', '.join(HEADS)}"
        )
    config = copy.deepcopy(base.model.config)
    drawn = torch.random.fork_rng(devices=[])
    with quiet_transformers(), as_model_error(base.model_folder), drawn:
        torch.manual_seed(seed)
        model, report = AutoModelForMaskedLM.from_pretrained(
            base.model_folder, config=config, dtype=torch.float32, output_loading_info=True
        )
    if missing := sorted(report["missing_keys"]):
        logger.warning(
            "%s has no head of a masked language model (%s): a new one begins with its word "
            "embeddings, and knows less of words than one that has been trained",
            base.name,
            missing[0],
        )
        dense = model.get_submodule(HEADS[kind].dense)
        if dense.in_features == dense.out_features:
            nn.init.eye_(dense.weight)
    return dataclasses.replace(base, model=model.eval()), bool(missing)


def centre_words(model: Any, weights: Vectors) -> None:
    """Lower the biases of a new head, whose logits of nearly all words are above 0.

    `weights` [n, V] are those of some texts. Afterwards, a word has a weight in those texts alone
    where its logit is above its mean by two standard deviations.
    """
    logits = np.expm1(weights.astype(np.float64))
    lower = logits.mean(axis=0) + 2 * logits.std(axis=0)
    bias = model.get_output_embeddings().bias
    bias.data -= torch.from_numpy(lower).to(bias)


def declare_words(folder: Path, *, max_length: int) -> None:
    """Write the files by which sentence-transformers describes a sparse encoder."""
    settings = {"model_type": "SparseEncoder", "prompts": {}, "similarity_fn_name": "dot"}
    write_json(folder / "config_sentence_transformers.json", settings)
    limit = {"max_seq_length": max_length, "do_lower_case": False}
    write_json(folder / "sentence_bert_config.json", limit)
    (folder / "1_SpladePooling").mkdir()
    pooling = {"pooling_strategy": "max", "activation_function": "relu"}
    write_json(folder / "1_SpladePooling" / "config.json", pooling)
    kinds = {"": f"{_SPARSE}.MLMTransformer", "1_SpladePooling": f"{_SPARSE}.SpladePooling"}
    write_modules(folder, kinds)
