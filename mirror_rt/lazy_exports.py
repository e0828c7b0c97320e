"""Import the public names of a package on first use, because most of them need large libraries."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from importlib import import_module
from typing import Any

from mirror_rt.errors import importing

_NEEDS = {
    "serve": ("starlette", "uvicorn", "msgspec", "orjson", "prometheus_client"),
    "train": ("torch", "transformers"),
    "export": ("torch", "transformers", "onnx", "onnxscript"),
}


def lazy_exports(
    package: str, names: Sequence[str], modules: Sequence[str], *, extra: str
) -> Callable[[str], Any]:
    """Return the `__getattr__` (PEP 562) of a package with these public names.

    Its `modules` are searched in their order: those that import quickly come first. The `extra` of
    mirror-rt installs the dependencies of the slow ones.
    """

    def get(name: str) -> Any:
        if name in names:
            with ExitStack() as missing:
                for need in _NEEDS[extra]:
                    missing.enter_context(importing(need, extra=extra, purpose=f"{package}.{name}"))
                for module in modules:
                    found = import_module(f"{package}.{module}")
                    if hasattr(found, name):
                        return getattr(found, name)
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    return get
