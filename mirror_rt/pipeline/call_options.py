"""The options that a call of any model but an encoder of dense vectors has."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, TypedDict, cast

from mirror_rt.pipeline.options import EncodeKeywords
from mirror_rt.schema import check_rules

OnLongItem = Literal["truncate", "truncate-left", "error"]


class CallKeywords(TypedDict, total=False):
    """The fields of `CallOptions`, as keyword arguments of the functions that take them."""

    batch_size: int
    prompt_name: str | None
    prompt: str | None
    on_too_long: OnLongItem


@dataclass(frozen=True, slots=True, kw_only=True)
class CallOptions:
    """Say how the items of one call, texts or pairs of them, are run.

    Attributes:
        batch_size: work of one run of the model, counted in items of 64 tokens: the token budget is
            `64 * batch_size`, as in `Encoder.encode`.
        prompt_name: which of the model's prompts to put before every text, or the query of every
            pair; by default the one that it declares.
        prompt: text to put there instead; `""` for none.
        on_too_long: whether an item of more than `max_length` tokens is cut at the end of a text
            (`"truncate"`; at the beginning if the model's tokenizer has `truncation_side` left) or
            at its beginning (`"truncate-left"`), or refused (`"error"`).

    Raises:
        ConfigError: an option has an unusable value.
    """

    batch_size: int = 32
    prompt_name: str | None = None
    prompt: str | None = None
    on_too_long: OnLongItem = "truncate"

    def __post_init__(self) -> None:
        check_rules(self)

    def of_pipeline(self) -> EncodeKeywords:
        """Return the options that the pipeline takes."""
        taken = of_pipeline(type(self).__dataclass_fields__)
        return cast(EncodeKeywords, {name: getattr(self, name) for name in taken})


def of_pipeline(names: Any) -> list[str]:
    """Return those of the names of options that the pipeline takes."""
    return [name for name in EncodeKeywords.__annotations__ if name in names]
