"""Trace encoder, pooling and normalisation into one ONNX graph, dynamic in batch and length."""

from __future__ import annotations

import contextlib
import io
import logging
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import onnx_ir
import torch
from torch import Tensor, nn
from torch.nn import functional

from mirror_export.graph.attention import fused_attention
from mirror_export.graph.fusion import describe_graph, fuse
from mirror_export.graph.onnx_file import Placed, write_onnx
from mirror_rt.errors import ModelError
from mirror_rt.reranking.score_head import ScoreHead
from mirror_train.model.pooling_head import Head

# The exporter's default opset since torch 2.9; onnxruntime has supported it since 1.17.
OPSET = 20
OUTPUT_NAMES = ("sentence_embedding", "pooled_embedding", "last_hidden_state")
# Of a cross-encoder: the first output, which other tools read.
LOGITS = "logits"
_ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {
    "identity": nn.Identity,
    "tanh": nn.Tanh,
    "relu": nn.ReLU,
    "gelu": nn.GELU,
    "gelu_tanh": partial(nn.GELU, "tanh"),
    "silu": nn.SiLU,
}


class PooledEncoder(nn.Module):
    """The module to trace: [B, L] ids and mask to text vectors [B, D] and token vectors.

    Token types are always 0 for a single text, but a model that has them takes them as an input,
    because other tools feed them.
    """

    def __init__(self, encoder: nn.Module, head: Head, scores: ScoreHead | None = None) -> None:
        super().__init__()
        self.encoder = encoder
        self.head = head
        self.logits = None if scores is None else _logit_layers(scores)

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor | None = None
    ) -> tuple[Tensor, ...]:
        """Return unit and plain text vectors [B, D], and token vectors [B, L, H].

        Before them are the logits [B, C] of a cross-encoder.
        """
        types = {} if token_type_ids is None else {"token_type_ids": token_type_ids}
        pooled, hidden = self.head.embed(
            self.encoder, input_ids=input_ids, attention_mask=attention_mask, **types
        )
        logits = () if self.logits is None else (self.logits(pooled),)
        return *logits, functional.normalize(pooled, dim=1), pooled, hidden


def _logit_layers(scores: ScoreHead) -> nn.Sequential:
    """Return the head of a cross-encoder as modules."""
    made: list[nn.Module] = []
    for layer, arrays in scores.layers():
        parts: list[nn.Linear | nn.LayerNorm] = []
        with torch.device("meta"):  # draws no numbers
            parts.append(nn.Linear(layer.inputs, layer.outputs))
            if layer.norm is not None:
                parts.append(nn.LayerNorm(layer.outputs, layer.norm))
        for part, weight, bias in zip(parts, arrays[::2], arrays[1::2], strict=True):
            part.weight, part.bias = (
                nn.Parameter(torch.from_numpy(one), requires_grad=False) for one in (weight, bias)
            )
        made += [parts[0], _ACTIVATIONS[layer.activation](), *parts[1:]]
    return nn.Sequential(*made)


def export_graph(
    encoder: nn.Module,
    path: Path,
    *,
    head: Head,
    scores: ScoreHead | None,
    input_names: tuple[str, ...],
    max_length: int,
) -> tuple[dict[str, Any], list[Placed]]:
    """Write `encoder` with its head and normalisation as ONNX, with onnxruntime's fused operators.

    `scores` are the layers that make logits of the head's vectors; None of an encoder of texts.
    The encoder is of transformers, in evaluation mode on the CPU. The inputs are input_ids,
    attention_mask and, if the model has types, token_type_ids. Return the parts of the graph,
    see `describe_graph`, and the places of its weights.
    """
    try:
        with _quiet(), torch.no_grad(), fused_attention(encoder):
            module = PooledEncoder(encoder, head, scores).eval()
            model = _trace(module, input_names, max_length)
    except torch.onnx.errors.OnnxExporterError as error:
        raise ModelError(f"torch cannot export this architecture: {_root(error)}") from error
    fuse(model)
    placed = write_onnx(model, path)
    for value in model.graph.initializers.values():
        value.const_value = None  # frees it: onnxscript's rules keep the last graph they saw
    return describe_graph(model), placed


def _trace(module: PooledEncoder, input_names: tuple[str, ...], max_length: int) -> onnx_ir.Model:
    example = torch.tensor([[5, 6, 7, 8, 9], [5, 6, 7, 0, 0]])
    mask = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]])
    inputs = (example, mask, torch.zeros_like(example))[: len(input_names)]
    axes = {0: torch.export.Dim("batch"), 1: torch.export.Dim("length", max=max_length)}
    program = torch.onnx.export(
        module,
        inputs,
        dynamo=True,
        opset_version=OPSET,
        input_names=list(input_names),
        output_names=[*([] if module.logits is None else [LOGITS]), *OUTPUT_NAMES],
        dynamic_shapes=tuple(axes for _ in inputs),
        verbose=False,
    )
    assert program is not None  # it is None only with dynamo=False
    return program.model


def _root(error: BaseException) -> str:
    """Return the first line of the exception at the start of the chain of causes."""
    while error.__cause__ is not None:
        error = error.__cause__
    return next((line for line in str(error).splitlines() if line.strip()), repr(error))


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keep the exporter's progress and its notes about a missing torchvision off the terminal."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)
