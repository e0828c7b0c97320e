"""The inputs of `encode` and of the scheduler: one text, several texts, or token ids."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from typing import Any

from mirror_rt.errors import ConfigError, InvalidTextError

# One text, many texts, or the token ids of many texts as `BatchEncoder.tokenize` returns them.
Inputs = str | Iterable[str] | Iterable[list[int]]


def as_list(inputs: Any) -> list[Any]:
    """Return one text or an iterable as a list; raise InvalidTextError for anything else."""
    if isinstance(inputs, str):
        return [inputs]
    if isinstance(inputs, bytes | Mapping | Set) or not isinstance(inputs, Iterable):
        raise InvalidTextError(
            [(0, f"expected str or an iterable of str, got {type(inputs).__name__}")]
        )
    return list(inputs)


def check_stream(inputs: Any, window: int) -> None:
    """Raise ConfigError if `inputs` cannot be a stream of texts, or the window is below 1."""
    if isinstance(inputs, str | bytes | Mapping | Set) or not isinstance(inputs, Iterable):
        raise ConfigError(f"expected an iterable of str, got {type(inputs).__name__}")
    if window < 1:
        raise ConfigError(f"window must be at least 1, got {window}")
