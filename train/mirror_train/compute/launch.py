"""Tell which process of a run this is, by torchrun's environment variables; works without torch."""

from __future__ import annotations

import os

from mirror_rt.errors import ConfigError


def world_size() -> int:
    """Return the number of processes that torchrun started; 1 without torchrun."""
    text = os.environ.get("WORLD_SIZE", "1")
    if not text.isdecimal() or int(text) < 1:
        raise ConfigError(f"the environment variable WORLD_SIZE must be at least 1, got {text!r}")
    return int(text)


def is_first_process() -> bool:
    """Return whether this process, the only or the first one, is the one that prints."""
    return world_size() == 1 or os.environ.get("RANK", "0") == "0"


def check_one_process(what: str) -> None:
    """Raise ConfigError where torchrun has started several processes; `what` runs in one."""
    if (count := world_size()) > 1:
        raise ConfigError(
            f"{what} runs in one process, torchrun started {count}: start it without torchrun"
        )
