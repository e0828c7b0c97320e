"""Walk from operator to operator of a graph, and refuse what is not as expected."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from mirror_rt.errors import BundleError
from mirror_rt.inference.native.onnx_graph import Graph, Node

Floats = npt.NDArray[np.float32]
Pair = tuple[Floats, Floats]


class UnsupportedGraphError(BundleError):
    """The graph is not one that the native engine can run."""


def made(graph: Graph, name: str, *op_types: str, behind: tuple[str, ...] = ()) -> Node:
    """Return the operator of a type given that makes `name`, behind those of types `behind`."""
    node = graph.producers.get(name)
    for _ in graph.nodes:  # there may be a circle
        if node is None or node.op_type not in behind:
            break
        node = graph.producers.get(node.input(0))
    if node is None or node.op_type not in op_types:
        found = f"{'nothing' if node is None else node.op_type} makes {name!r}"
        raise UnsupportedGraphError(f"{graph.path}: {found}, expected {' or '.join(op_types)}")
    return node


def expect(graph: Graph, condition: bool, what: str) -> None:
    """Refuse a graph with `what` of another form, unless the condition holds."""
    if not condition:
        raise UnsupportedGraphError(
            f"{graph.path}: {what} of another form than the engine computes"
        )


def floats(graph: Graph, name: str) -> Floats:
    """Return a weight, which must be float32."""
    array = graph.weight(name)
    expect(graph, array.dtype == np.float32, f"weight {name} ({array.dtype})")
    return array


def pair(graph: Graph, weight: str, bias: str = "") -> Pair:
    """Return a weight and its bias, which is zero without a name."""
    found = floats(graph, weight)
    return found, floats(graph, bias) if bias else np.zeros(found.shape[-1], np.float32)


def attribute(node: Node, name: str, default: Any) -> Any:
    """Return an attribute of a node, or the default of one that is not there."""
    value = node.attributes.get(name)
    return default if value is None else value
