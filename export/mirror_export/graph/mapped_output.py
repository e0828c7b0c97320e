"""Append a linear map to a written graph, between the pooling and the normalisation."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from mirror_export.graph.graph_edit import constant, insert_behind
from mirror_export.graph.torch_export import OUTPUT_NAMES
from mirror_rt.errors import ModelError

_POOLED = OUTPUT_NAMES[1]


def map_output(model: ir.Model, matrix: npt.NDArray[np.float32]) -> None:
    """Multiply the pooled vector [B, D] by `matrix`, float32 [D, D], before it is normalised."""
    graph = model.graph
    pooled = next((value for value in graph.outputs if value.name == _POOLED), None)
    if pooled is None or pooled.producer() is None:
        raise ModelError(f"the graph has no output {_POOLED}: export the model again")
    number = sum(name.startswith("alignment") for name in graph.initializers)
    weight = constant(graph, f"alignment.{number}.weight", matrix)
    node = ir.Node("", "MatMul", [pooled, weight])
    insert_behind(graph, pooled, node, f"unaligned.{number}")
