"""The ONNX graph: encoder, pooling and normalisation in one, dynamic in batch and length."""

from __future__ import annotations

import contextlib
import io
import logging
import warnings
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional

from mirror_rt.manifest import Pooling
from mirror_train.pooling import pool

__all__ = ["PooledEncoder", "export_graph"]

# The exporter's own set since torch 2.9; onnxruntime has it since 1.17.
OPSET = 20
OUTPUT_NAMES = ("sentence_embedding", "pooled_embedding")


class PooledEncoder(torch.nn.Module):
    """What the graph computes: [B, L] ids and mask to unit and plain text vectors [B, D].

    Token types are always 0 for a single text, so a model with one type table still takes them
    as an input: other tools feed them.
    """

    def __init__(self, encoder: torch.nn.Module, pooling: Pooling) -> None:
        super().__init__()
        self.encoder = encoder
        self.pooling = pooling

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return (sentence_embedding, pooled_embedding), the first of unit length."""
        types = {} if token_type_ids is None else {"token_type_ids": token_type_ids}
        hidden = self.encoder(
            input_ids=input_ids, attention_mask=attention_mask, **types
        ).last_hidden_state
        pooled = pool(hidden, attention_mask, self.pooling)
        return functional.normalize(pooled, dim=1), pooled


def export_graph(
    encoder: torch.nn.Module,
    path: Path,
    *,
    pooling: Pooling,
    input_names: tuple[str, ...],
    max_length: int,
) -> None:
    """Write `encoder` with pooling and normalisation as ONNX.

    Args:
        encoder: a transformers encoder, in evaluation mode on the CPU.
        path: the .onnx file to write.
        pooling: see `mirror_train.pooling.pool`.
        input_names: input_ids, attention_mask and, where the model has types, token_type_ids.
        max_length: most tokens of a text.
    """
    example = torch.tensor([[5, 6, 7, 8, 9], [5, 6, 7, 0, 0]])
    mask = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]])
    inputs = (example, mask, torch.zeros_like(example))[: len(input_names)]
    axes = {0: torch.export.Dim("batch"), 1: torch.export.Dim("length", max=max_length)}
    with _quiet(), torch.no_grad():
        torch.onnx.export(
            PooledEncoder(encoder, pooling).eval(),
            inputs,
            path,
            dynamo=True,
            opset_version=OPSET,
            input_names=list(input_names),
            output_names=list(OUTPUT_NAMES),
            dynamic_shapes=tuple(axes for _ in inputs),
            external_data=False,
            verbose=False,
        )


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keep the exporter's progress and notes about absent torchvision off the terminal."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)
