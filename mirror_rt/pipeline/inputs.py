"""The inputs of `encode` and of the scheduler: one text, several texts, or token ids."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from typing import Any

from mirror_rt.errors import InvalidTextError

__all__ = ["Inputs", "as_list"]

# One text, many texts, or the token ids of many texts as `BatchEncoder.tokenize` returns them.
Inputs = str | Iterable[str] | Iterable[list[int]]


def as_list(inputs: Any) -> list[Any]:
    """Return an iterable of texts as a list; raise InvalidTextError for anything else."""
    if isinstance(inputs, bytes | Mapping | Set) or not isinstance(inputs, Iterable):
        raise InvalidTextError(
            [(0, f"expected str or an iterable of str, got {type(inputs).__name__}")]
        )
    return list(inputs)
