"""Prompts: text that a model wants before a text, by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from mirror_rt.errors import ConfigError

__all__ = ["DOCUMENT_NAMES", "QUERY_NAMES", "Prompts"]

# What models call them, the first that is there preferred.
QUERY_NAMES = ("query",)
DOCUMENT_NAMES = ("document", "passage")


@dataclass(frozen=True, slots=True)
class Prompts:
    """The prompts of a model.

    Attributes:
        by_name: name -> text.
        default_name: which one is used unless told; None for none.
    """

    by_name: Mapping[str, str] = field(default_factory=dict)
    default_name: str | None = None

    def choose(self, prompt: str | None, name: str | None) -> str:
        """The text to put before every text: `prompt`, the one called `name`, or the default.

        An empty `prompt` is none at all, not even the default.

        Raises:
            ConfigError: both are given, there is none of that name, or `prompt` is not valid text.
        """
        if prompt is not None:
            if name is not None:
                raise ConfigError(f"give prompt or prompt_name, not both ({prompt!r}, {name!r})")
            _check(prompt)
            return prompt
        name = self.default_name if name is None else name
        if name is None:
            return ""
        if name not in self.by_name:
            known = ", ".join(map(repr, self.by_name)) or "none"
            raise ConfigError(f"no prompt is called {name!r}; this model has {known}")
        return self.by_name[name]

    def first_of(self, names: Sequence[str]) -> str | None:
        """The first of `names` that there is a prompt for, or None."""
        return next((name for name in names if name in self.by_name), None)


def _check(prompt: object) -> None:
    if not isinstance(prompt, str):
        raise ConfigError(f"prompt must be str, got {type(prompt).__name__}")
    try:
        prompt.encode("utf-8")
    except UnicodeEncodeError as error:
        raise ConfigError(f"prompt is not valid Unicode: {error}") from None
