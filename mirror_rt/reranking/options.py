"""The options of a call of `Reranker`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypedDict, cast

from mirror_rt.bundle.score_layers import ScoreActivation
from mirror_rt.pipeline.options import EncodeKeywords
from mirror_rt.schema import check_rules
from mirror_rt.tokens.pairs import Truncation

__all__ = ["PredictKeywords", "PredictOptions", "ScoreActivation", "Truncation"]

OnPairTooLong = Literal["truncate", "truncate-left", "error"]
OnPairError = Literal["raise", "nan"]
OF_PIPELINE = ("batch_size", "prompt_name", "prompt", "on_too_long", "errors")


class PredictKeywords(TypedDict, total=False):
    """The fields of `PredictOptions`, as keyword arguments of the functions that take them."""

    batch_size: int
    activation: ScoreActivation | None
    truncation: Truncation
    prompt_name: str | None
    prompt: str | None
    on_too_long: OnPairTooLong
    errors: OnPairError


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictOptions:
    """Say how the pairs of one call get scores.

    Attributes:
        batch_size: work of one run of the model, counted in pairs of 64 tokens: the token budget is
            `64 * batch_size`, as in `Encoder.encode`.
        activation: makes scores of the logits: `"identity"`, `"sigmoid"`, `"softmax"` or `"tanh"`;
            by default the one that the bundle declares.
        truncation: of a pair of more than `max_length` tokens, `"longest_first"` cuts the longer
            text, and both once they are equally long; `"only_second"` cuts the document alone, and
            refuses a query that leaves no room for it.
        prompt_name: which of the model's prompts to put before every query; by default the one that
            it declares.
        prompt: text to put before every query instead; `""` for none.
        on_too_long: whether a pair of more than `max_length` tokens is cut at the ends of its texts
            (`"truncate"`; at their beginnings if the model's tokenizer has `truncation_side` left)
            or at their beginnings (`"truncate-left"`), or refused (`"error"`).
        errors: `"raise"` refuses the call for an unusable pair; `"nan"` gives that pair NaN.

    Raises:
        ConfigError: an option has an unusable value.
    """

    batch_size: int = 32
    activation: ScoreActivation | None = None
    truncation: Truncation = "longest_first"
    prompt_name: str | None = None
    prompt: str | None = None
    on_too_long: OnPairTooLong = "truncate"
    errors: OnPairError = "raise"

    def __post_init__(self) -> None:
        check_rules(self)


def of_pipeline(options: PredictOptions) -> EncodeKeywords:
    """Return the options of a call that the pipeline of pairs takes."""
    return cast(EncodeKeywords, {name: getattr(options, name) for name in OF_PIPELINE})
