"""Prompts: named pieces of text that a model expects before the texts that it encodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from mirror_rt.errors import ConfigError, Setting

# The names that models give to these prompts; the first one that a model has is used.
QUERY_NAMES = ("query",)
DOCUMENT_NAMES = ("document", "passage")


@dataclass(frozen=True, slots=True)
class Prompts:
    """The prompts of a model."""

    by_name: Mapping[str, str] = field(default_factory=dict)  # name -> text
    default_name: str | None = None  # name of the prompt to use by default; None for no prompt

    def choose(self, prompt: str | None, name: str | None) -> str:
        """Return the prompt for every text: `prompt`, the one called `name`, or the default.

        An empty `prompt` means no prompt at all, not even the default.
        """
        if prompt is not None:
            if name is not None:
                raise ConfigError(
                    "give prompt or ", Setting("prompt_name"), f", not both ({prompt!r}, {name!r})"
                )
            check_text("prompt", prompt)
            return prompt
        name = self.default_name if name is None else name
        if name is None:
            return ""
        if name not in self.by_name:
            known = ", ".join(map(repr, self.by_name)) or "none"
            raise ConfigError(f"no prompt is called {name!r}; this model has {known}")
        return self.by_name[name]

    def first_of(self, names: Sequence[str]) -> str | None:
        """Return the first of `names` for which there is a prompt, or None."""
        return next((name for name in names if name in self.by_name), None)


def check_text(name: str, value: object) -> None:
    """Raise ConfigError unless an option is valid text, or None."""
    if value is None:
        return
    if not isinstance(value, str):
        raise ConfigError(Setting(name), f" must be str, got {type(value).__name__}")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise ConfigError(Setting(name), f" is not valid Unicode: {error}") from None
