"""Packages whose public names are imported on first use, because most of them need torch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from importlib import import_module
from typing import Any

from mirror_rt.errors import importing

__all__ = ["lazy_exports"]


def lazy_exports(
    package: str,
    names: Sequence[str],
    modules: Sequence[str],
    *,
    needs: Sequence[str],
    extra: str,
    purpose: str,
) -> Callable[[str], Any]:
    """Return the `__getattr__` (PEP 562) of a package.

    Args:
        package: the package's full name.
        names: its public names.
        modules: the modules below it that have them in their `__all__`, in the order in which
            they are looked through: the quick ones first.
        needs: the packages that the slow ones import.
        extra: the extra of mirror-rt that brings those.
        purpose: what they are for, in the error that names the extra.
    """

    def get(name: str) -> Any:
        if name in names:
            with ExitStack() as missing:
                for need in needs:
                    missing.enter_context(importing(need, extra=extra, purpose=purpose))
                for module in modules:
                    found = import_module(f"{package}.{module}")
                    if name in found.__all__:
                        return getattr(found, name)
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    return get
