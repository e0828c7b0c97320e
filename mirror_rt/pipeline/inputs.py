"""What `encode` and the scheduler take: a text, texts, or token ids."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from typing import Any

from mirror_rt.errors import InvalidTextError

__all__ = ["Inputs", "as_list"]

# One text, or many; or the token ids of many, as `BatchEncoder.tokenize` gives them.
Inputs = str | Iterable[str] | Iterable[list[int]]


def as_list(inputs: Any) -> list[Any]:
    """Materialise an iterable of texts; a lone value of another type is one bad text."""
    if isinstance(inputs, bytes | Mapping | Set) or not isinstance(inputs, Iterable):
        raise InvalidTextError(
            [(0, f"expected str or an iterable of str, got {type(inputs).__name__}")]
        )
    return list(inputs)
