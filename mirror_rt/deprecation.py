"""Let a dataclass still accept the keyword arguments that have become fields of one object."""

from __future__ import annotations

import dataclasses
import functools
import warnings
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

T = TypeVar("T")


def accept_flat(**parts: type[Any]) -> Callable[[type[T]], type[T]]:
    """Decorate a dataclass so that the fields of its parts may still be given and read directly.

    With `accept_flat(load=LoadOptions)`, `Config(threads=2)` is `Config(load=LoadOptions(
    threads=2))` and `config.threads` is `config.load.threads`; both warn. A part may also be given
    as a mapping of its fields.

    Args:
        **parts: name of the field that holds a part -> dataclass of the part.
    """
    homes = {field.name: part for part in parts for field in dataclasses.fields(parts[part])}

    def decorate(cls: type[T]) -> type[T]:
        init = cls.__init__

        @functools.wraps(init)
        def construct(self: T, *arguments: Any, **keywords: Any) -> None:
            for part, type_ in parts.items():
                if isinstance(keywords.get(part), Mapping):
                    keywords[part] = type_(**keywords[part])
            for name in [name for name in keywords if name in homes and name not in parts]:
                part = homes[name]
                _warn(f"{cls.__name__}({name}=...)", f"{part}={parts[part].__name__}({name}=...)")
                before = keywords.get(part, parts[part]())
                keywords[part] = dataclasses.replace(before, **{name: keywords.pop(name)})
            init(self, *arguments, **keywords)

        def read(self: T, name: str) -> Any:
            if name not in homes:
                raise AttributeError(f"{cls.__name__!r} object has no attribute {name!r}")
            _warn(f"{cls.__name__}.{name}", f"{cls.__name__}.{homes[name]}.{name}")
            return getattr(getattr(self, homes[name]), name)

        cls.__init__ = construct  # type: ignore[assignment]  # it accepts more than the original
        cls.__getattr__ = read  # type: ignore[attr-defined]
        return cls

    return decorate


def _warn(old: str, new: str) -> None:
    warnings.warn(f"{old} is deprecated: use {new}", DeprecationWarning, stacklevel=3)
