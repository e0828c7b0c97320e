"""Damage bundles for tests."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np


def spoil_token(graph: Path, out: Path, token_id: int) -> None:
    """Write a graph that gives NaN for texts with a token, and unchanged vectors for others."""
    import onnx
    from onnx import numpy_helper

    model = onnx.load(graph)
    words = max(
        (tensor for tensor in model.graph.initializer if len(tensor.dims) == 2),
        key=lambda tensor: tensor.dims[0],
    )
    weights = numpy_helper.to_array(words).copy()
    weights[token_id] = np.nan
    words.CopyFrom(numpy_helper.from_array(weights, words.name))
    onnx.save(model, out)


def add_variant(bundle: Path, name: str, file: str, **fields: str) -> None:
    """Add a graph as a variant to the manifest of a bundle."""
    path = bundle / "mirror.json"
    values = json.loads(path.read_text())
    values["variants"][name] = {"file": file, "precision": "fp32", "target": "cpu"} | fields
    graph = bundle / file
    size = graph.stat().st_size if graph.exists() else 1
    values["files"][file] = {"bytes": size, "sha256": "0" * 64}
    path.write_text(json.dumps(values))
