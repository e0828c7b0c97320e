"""Turn numpy arrays into torch tensors for callers that use torch; this package does not."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from mirror_rt.errors import require


def has_tensors(values: Any) -> bool:
    """Return whether `values` is a tensor, or a list of tensors."""
    torch = sys.modules.get("torch")  # without it there are none
    first = values[0] if isinstance(values, list) and values else values
    return torch is not None and isinstance(first, torch.Tensor)


def as_tensor(values: Any) -> Any:
    """Return arrays as tensors; lists and dicts of arrays keep their form.

    Raises:
        MissingDependencyError: torch is not installed.
    """
    if isinstance(values, list):
        return [as_tensor(value) for value in values]
    if isinstance(values, dict):
        return {name: as_tensor(value) for name, value in values.items()}
    torch = require("torch", extra="train", purpose="a result as a tensor")
    return torch.from_numpy(np.ascontiguousarray(values))
