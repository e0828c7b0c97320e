"""Trace an encoder once for exports with many heads, and a head once for many encoders."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Hashable
from types import SimpleNamespace
from typing import Any

import onnx
import onnx_ir as ir
import torch
from onnx_ir.passes import common

from mirror_export.graph.torch_export import OUTPUT_NAMES, PooledEncoder
from mirror_train.model.pooling_head import Head

TEXT, PLAIN, TOKENS = OUTPUT_NAMES


class _Table(torch.nn.Module):
    """Stands for an encoder of which only the token vectors matter."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.table = torch.nn.Embedding(16, size)

    def forward(self, input_ids: torch.Tensor, **_: torch.Tensor) -> Any:
        return SimpleNamespace(last_hidden_state=self.table(input_ids))


class SharedTraces:
    """Stands in for `torch_export._trace`: the graph of an encoder goes on in that of its head.

    Both are traced by the given function.
    """

    def __init__(self, trace: Callable[[Any, tuple[str, ...], int], ir.Model]) -> None:
        self._trace = trace
        self._kept: dict[Hashable, bytes] = {}

    def __call__(self, module: Any, input_names: tuple[str, ...], max_length: int) -> ir.Model:
        size = module.encoder.config.hidden_size
        stem = PooledEncoder(module.encoder, Head(["cls"])).eval()
        crown = PooledEncoder(_Table(size), module.head).eval()
        head = module.head
        encoder = self._once(stem, input_names, max_length, module.encoder.config.model_type)
        rest = self._once(
            crown, input_names[:2], max_length,
            f"{head.poolings} {head.truncate_dim} {[*map(_shown, head.layers)]}",
            weights=head,
        )  # fmt: skip
        joined = ir.from_proto(_join(encoder, rest))
        common.RemoveUnusedNodesPass()(joined)
        return joined

    def _once(
        self, module: Any, names: tuple[str, ...], most: int, kind: str, weights: Any = None
    ) -> onnx.ModelProto:
        key = kind, names, most, _digest(module if weights is None else weights)
        if key not in self._kept:
            traced = ir.to_proto(self._trace(module, names, most))
            self._kept[key] = traced.SerializeToString()
        return onnx.ModelProto.FromString(self._kept[key])


def _shown(layer: Any) -> str:
    return f"{layer} {getattr(layer, 'use_residual', None)}"


def _digest(module: torch.nn.Module) -> str:
    digest = hashlib.sha256()
    for name, weight in module.state_dict().items():
        digest.update(name.encode() + weight.numpy().tobytes())
    return digest.hexdigest()


def _join(encoder: onnx.ModelProto, rest: onnx.ModelProto) -> onnx.ModelProto:
    """Return the graph of an encoder whose token vectors and mask are inputs of another graph."""
    assert not encoder.functions
    assert not rest.functions
    graph, more = encoder.graph, rest.graph
    given = {*OUTPUT_NAMES, "input_ids", "attention_mask"}
    for name in (TEXT, PLAIN):  # those of the first graph are nobody's
        for node in graph.node:
            node.output[:] = [f"unused.{one}" if one == name else one for one in node.output]
            node.input[:] = [f"unused.{one}" if one == name else one for one in node.input]

    def named(name: str) -> str:
        return name if name in given or not name else f"head.{name}"

    for node in more.node:
        if TOKENS in node.output:
            continue
        node.name = f"head.{node.name}"
        node.input[:] = map(named, node.input)
        node.output[:] = map(named, node.output)
        graph.node.append(node)
    for values in ("initializer", "value_info"):
        for value in getattr(more, values):
            value.name = named(value.name)
            getattr(graph, values).append(value)
    outputs = {output.name: output for output in more.output}
    kept = next(output for output in graph.output if output.name == TOKENS)
    kept = onnx.ValueInfoProto.FromString(kept.SerializeToString())
    del graph.output[:]
    graph.output.extend([outputs[TEXT], outputs[PLAIN], kept])
    return encoder
