"""The options of a call of `SparseEncoder`."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Literal

from mirror_rt.pipeline.call_options import CallKeywords, CallOptions
from mirror_rt.schema import Rule

OnUnusableText = Literal["raise", "zero"]
_COUNT = Rule("an integer of at least 1", lambda most: isinstance(most, int) and most >= 1)
_NOT_NEGATIVE = Rule("at least 0", lambda number: 0 <= number < math.inf)


class SparseKeywords(CallKeywords, total=False):
    """The fields of `SparseOptions`, as keyword arguments of the functions that take them."""

    max_active_dims: int | None
    threshold: float
    errors: OnUnusableText


@dataclass(frozen=True, slots=True, kw_only=True)
class SparseOptions(CallOptions):
    """Say how the texts of one call become sparse vectors, beside the options of every call.

    Attributes:
        max_active_dims: most words of a text, of which those that weigh most are kept; by default
            the number that the model declares, or all.
        threshold: leave out words that weigh no more than this.
        errors: `"raise"` refuses the call for an unusable text; `"zero"` gives that text no words.
    """

    max_active_dims: Annotated[int | None, _COUNT] = None
    threshold: Annotated[float, _NOT_NEGATIVE] = 0.0
    errors: OnUnusableText = "raise"
