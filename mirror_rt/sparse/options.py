"""The options of a call of `SparseEncoder`."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Literal, TypedDict, cast

from mirror_rt.pipeline.options import EncodeKeywords
from mirror_rt.schema import Rule, check_rules

OnLongText = Literal["truncate", "truncate-left", "error"]
OnUnusableText = Literal["raise", "zero"]
_COUNT = Rule("an integer of at least 1", lambda most: isinstance(most, int) and most >= 1)
_NOT_NEGATIVE = Rule("at least 0", lambda number: 0 <= number < math.inf)
OF_PIPELINE = ("batch_size", "prompt_name", "prompt", "on_too_long", "errors")


class SparseKeywords(TypedDict, total=False):
    """The fields of `SparseOptions`, as keyword arguments of the functions that take them."""

    batch_size: int
    max_active_dims: int | None
    threshold: float
    prompt_name: str | None
    prompt: str | None
    on_too_long: OnLongText
    errors: OnUnusableText


@dataclass(frozen=True, slots=True, kw_only=True)
class SparseOptions:
    """Say how the texts of one call become sparse vectors.

    Attributes:
        batch_size: work of one run of the model, counted in texts of 64 tokens: the token budget is
            `64 * batch_size`, as in `Encoder.encode`.
        max_active_dims: most words of a text, of which those that weigh most are kept; by default
            the number that the model declares, or all.
        threshold: leave out words that weigh no more than this.
        prompt_name: which of the model's prompts to put before every text; by default the one that
            it declares.
        prompt: text to put before every text instead; `""` for none.
        on_too_long: whether a text of more than `max_length` tokens is cut at its end
            (`"truncate"`; at its beginning if the model's tokenizer has `truncation_side` left) or
            at its beginning (`"truncate-left"`), or refused (`"error"`).
        errors: `"raise"` refuses the call for an unusable text; `"zero"` gives that text no words.

    Raises:
        ConfigError: an option has an unusable value.
    """

    batch_size: int = 32
    max_active_dims: Annotated[int | None, _COUNT] = None
    threshold: Annotated[float, _NOT_NEGATIVE] = 0.0
    prompt_name: str | None = None
    prompt: str | None = None
    on_too_long: OnLongText = "truncate"
    errors: OnUnusableText = "raise"

    def __post_init__(self) -> None:
        check_rules(self)


def of_pipeline(options: SparseOptions) -> EncodeKeywords:
    """Return the options of a call that the pipeline takes."""
    return cast(EncodeKeywords, {name: getattr(options, name) for name in OF_PIPELINE})
