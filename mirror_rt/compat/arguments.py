"""Take what callers of other libraries give: arguments, devices and tensors of torch."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from typing import Any

import numpy as np

from mirror_rt.errors import ConfigError, require
from mirror_rt.inference.load_options import LoadKeywords

_DEVICE = re.compile(r"cuda(?::(\d+))?")


def device_options(device: object) -> LoadKeywords:
    """Return the options of `Encoder.load` for a device of torch: `cpu`, `cuda`, `cuda:1`."""
    if device is None:
        return {}
    name = str(device)  # a torch.device, too
    if name == "cpu":
        return {"providers": "cpu"}
    if match := _DEVICE.fullmatch(name):
        return {"providers": "cuda", "devices": [int(match[1] or 0)]}
    raise ConfigError(field="device", expected="'cpu', 'cuda' or 'cuda:N'", value=device)


def refuse(owner: str, hints: Mapping[str, str], given: Mapping[str, Any]) -> None:
    """Raise ConfigError for the first argument of a call that has a value and no meaning here.

    `hints` maps the name of such an argument to what to do instead of giving it to `owner`. None,
    False and empty values count as not given.
    """
    for name, hint in hints.items():
        if given.get(name):
            raise ConfigError(f"{owner} does not take {name}={given[name]!r} here: {hint}")


def has_tensors(values: Any) -> bool:
    """Return whether `values` is a tensor, or a list of tensors."""
    torch = sys.modules.get("torch")  # without it there are none
    first = values[0] if isinstance(values, list) and values else values
    return torch is not None and isinstance(first, torch.Tensor)


def as_tensor(values: Any) -> Any:
    """Return arrays as tensors; lists and dicts of arrays keep their form."""
    if isinstance(values, list):
        return [as_tensor(value) for value in values]
    if isinstance(values, dict):
        return {name: as_tensor(value) for name, value in values.items()}
    torch = require("torch", extra="train", purpose="a result as a tensor")
    return torch.from_numpy(np.ascontiguousarray(values))
