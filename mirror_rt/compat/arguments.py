"""Read the arguments that other libraries take, and refuse what has no meaning here."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from mirror_rt.errors import ConfigError
from mirror_rt.inference.load_options import LoadKeywords

_DEVICE = re.compile(r"cuda(?::(\d+))?")


def device_options(device: object) -> LoadKeywords:
    """Return the options of `Encoder.load` for a device in torch's words: `cpu`, `cuda`, `cuda:1`.

    Raises:
        ConfigError: it is another device.
    """
    if device is None:
        return {}
    name = str(device)  # a torch.device, too
    if name == "cpu":
        return {"providers": "cpu"}
    if match := _DEVICE.fullmatch(name):
        return {"providers": "cuda", "devices": [int(match[1] or 0)]}
    raise ConfigError(f"device must be 'cpu', 'cuda' or 'cuda:N', got {device!r}")


def refuse(owner: str, hints: Mapping[str, str], given: Mapping[str, Any]) -> None:
    """Raise ConfigError for the first argument that has a value and no meaning here.

    Args:
        owner: the class or function, for the error.
        hints: name of such an argument -> what to do instead.
        given: the arguments of the call by name; None, False and empty values count as not given.
    """
    for name, hint in hints.items():
        if given.get(name):
            raise ConfigError(f"{owner} does not take {name}={given[name]!r} here: {hint}")
