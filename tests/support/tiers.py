"""Say which tests run in which tier: the fast one at every commit, the full one every night."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any, TypeVar

import pytest

T = TypeVar("T")


def tiers(every: Iterable[T], fast: Collection[T]) -> list[Any]:
    """Turn values into parameters of a test; only the `fast` ones run in the fast tier.

    Example: `@pytest.mark.parametrize("family", tiers(TINY, fast=("bert", "modernbert")))`
    """
    values = list(every)
    if unknown := [value for value in fast if value not in values]:
        raise ValueError(f"{unknown} must be among all values, {values}")
    return [
        pytest.param(value, marks=() if value in fast else pytest.mark.full) for value in values
    ]
