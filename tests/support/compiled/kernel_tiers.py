"""Say in which tier a kernel's tests run: those compiled for another processor in the full one."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import pytest

EMULATED = "emulated "


def kernel_tiers(names: Iterable[str], fast: Collection[str] | None = None) -> list[Any]:
    """Turn names of kernels into parameters of a test.

    Those that begin with `EMULATED` are full and compiled. Of the others, the `fast` ones run in
    the fast tier; with None, all do.
    """
    compiled = [pytest.mark.full, pytest.mark.compiled]
    return [
        pytest.param(
            name,
            marks=compiled
            if name.startswith(EMULATED)
            else ()
            if fast is None or name in fast
            else pytest.mark.full,
        )
        for name in names
    ]
