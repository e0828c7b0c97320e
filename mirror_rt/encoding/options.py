"""The options of `encode`, checked and made ready once a call."""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import Literal, TypedDict, get_args

import numpy.typing as npt

from mirror_rt.encoding.prompts import Prompts
from mirror_rt.errors import ConfigError
from mirror_rt.vectors.quantization import EmbeddingPrecision, Quantizer

__all__ = ["EncodeOptions", "Job", "OnError", "OnTooLong"]

OnTooLong = Literal["truncate", "error", "chunk"]
OnError = Literal["raise", "nan"]
_ON_TOO_LONG, _ON_ERROR = get_args(OnTooLong), get_args(OnError)

# `batch_size` counts texts of this many tokens, so the default 32 is a budget of 2,048 tokens
# (benchmarks/batching.py compares budgets).
_TOKENS_PER_TEXT = 64


class EncodeOptions(TypedDict, total=False):
    """Options of `BatchEncoder.encode`, which says what they mean."""

    batch_size: int
    normalize_embeddings: bool | None
    truncate_dim: int | None
    precision: EmbeddingPrecision
    ranges: npt.ArrayLike | None
    prompt_name: str | None
    prompt: str | None
    on_too_long: OnTooLong
    errors: OnError


@dataclass(frozen=True, slots=True)
class Job:
    """What a call of `encode` does with its texts.

    Attributes:
        token_budget: most padded tokens of a run.
        normalize: give unit vectors.
        dimension: kept, of the model's.
        quantizer: applied last.
        prompt: put before every text.
        on_too_long: what becomes of a text of more tokens than the model takes.
        errors: what becomes of a call with a text that cannot be encoded.
    """

    token_budget: int
    normalize: bool
    dimension: int
    quantizer: Quantizer
    prompt: str
    on_too_long: OnTooLong
    errors: OnError

    @classmethod
    def make(
        cls,
        dimension: int,
        prompts: Prompts,
        normalize: bool,
        *,
        batch_size: int = 32,
        normalize_embeddings: bool | None = None,
        truncate_dim: int | None = None,
        precision: EmbeddingPrecision = "float32",
        ranges: npt.ArrayLike | None = None,
        prompt_name: str | None = None,
        prompt: str | None = None,
        on_too_long: OnTooLong = "truncate",
        errors: OnError = "raise",
    ) -> Job:
        """Check the options of `encode` for a model.

        The model is the first three arguments: dimensions of its vectors, its prompts, and
        whether its vectors are of unit length unless asked otherwise.

        Raises:
            ConfigError: naming the option, its value and what was expected.
        """
        if _integer("batch_size", batch_size) < 1:
            raise ConfigError(f"batch_size must be at least 1, got {batch_size}")
        if truncate_dim is not None:
            if not 1 <= _integer("truncate_dim", truncate_dim) <= dimension:
                raise ConfigError(f"truncate_dim must be in 1 .. {dimension}, got {truncate_dim}")
            dimension = operator.index(truncate_dim)
        _one_of("on_too_long", on_too_long, _ON_TOO_LONG)
        _one_of("errors", errors, _ON_ERROR)
        if normalize_embeddings is not None:
            normalize = normalize_embeddings
        quantizer = Quantizer.make(precision, dimension, ranges, unit=normalize)
        if errors == "nan" and quantizer.dtype.kind != "f":
            raise ConfigError(
                f"errors='nan' needs precision float32 or float16: {precision} has no NaN"
            )
        return cls(
            token_budget=_TOKENS_PER_TEXT * operator.index(batch_size),
            normalize=normalize,
            dimension=dimension,
            quantizer=quantizer,
            prompt=prompts.choose(prompt, prompt_name),
            on_too_long=on_too_long,
            errors=errors,
        )


def _integer(name: str, value: object) -> int:
    try:
        return operator.index(value)  # type: ignore[arg-type]  # that is the question
    except TypeError:
        raise ConfigError(f"{name} must be an integer, got {value!r}") from None


def _one_of(name: str, value: object, choices: tuple[str, ...]) -> None:
    if value not in choices:
        *most, last = map(repr, choices)
        raise ConfigError(f"{name} must be {', '.join(most)} or {last}, got {value!r}")
