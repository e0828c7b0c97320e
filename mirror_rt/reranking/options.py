"""The options of a call of `Reranker`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from mirror_rt.bundle.score_layers import ScoreActivation
from mirror_rt.pipeline.call_options import CallKeywords, CallOptions
from mirror_rt.tokens.pairs import Truncation

__all__ = ["PredictKeywords", "PredictOptions", "ScoreActivation", "Truncation"]

OnPairError = Literal["raise", "nan"]


class PredictKeywords(CallKeywords, total=False):
    """The fields of `PredictOptions`, as keyword arguments of the functions that take them."""

    activation: ScoreActivation | None
    truncation: Truncation
    errors: OnPairError


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictOptions(CallOptions):
    """Say how the pairs of one call get scores, beside the options of every call.

    Attributes:
        activation: makes scores of the logits: `"identity"`, `"sigmoid"`, `"softmax"` or `"tanh"`;
            by default the one that the bundle declares.
        truncation: of a pair of more than `max_length` tokens, `"longest_first"` cuts the longer
            text, and both once they are equally long; `"only_second"` cuts the document alone, and
            refuses a query that leaves no room for it.
        errors: `"raise"` refuses the call for an unusable pair; `"nan"` gives that pair NaN.
    """

    activation: ScoreActivation | None = None
    truncation: Truncation = "longest_first"
    errors: OnPairError = "raise"
