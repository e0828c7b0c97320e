"""The options of `encode`, which are checked and prepared once per call."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple, TypedDict, get_args

import numpy.typing as npt

from mirror_rt.errors import ConfigError, NonFiniteError, Setting
from mirror_rt.pipeline.prompts import Prompts
from mirror_rt.schema import one_of
from mirror_rt.tokens.chunking import OnTooLong
from mirror_rt.vectors.quantization import EmbeddingPrecision, Quantizer

__all__ = ["EncodeKeywords", "EncodeOptions", "EncodePlan", "ModelDefaults", "OnError", "OnTooLong"]

FLOATS = ("float32", "float16")  # the precisions that have a NaN
OnError = Literal["raise", "nan", "zero"]
_ON_TOO_LONG, _ON_ERROR = get_args(OnTooLong), get_args(OnError)

# `batch_size` counts texts of this many tokens, so the default 32 is a budget of 2,048 tokens
# (benchmarks/encode/batching.py compares budgets).
_TOKENS_PER_TEXT = 64


class EncodeKeywords(TypedDict, total=False):
    """The fields of `EncodeOptions`, as keyword arguments of the functions that take them."""

    batch_size: int
    normalize_embeddings: bool | None
    truncate_dim: int | None
    precision: EmbeddingPrecision
    ranges: npt.ArrayLike | None
    prompt_name: str | None
    prompt: str | None
    on_too_long: OnTooLong
    errors: OnError


def add_prompt(prompts: Prompts, names: Sequence[str], options: EncodeKeywords) -> EncodeKeywords:
    """Add the name of the first prompt that a model has of `names`, unless options have one."""
    own = options.get("prompt"), options.get("prompt_name")
    if own != (None, None) or (name := prompts.first_of(names)) is None:
        return options
    return {**options, "prompt_name": name}


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodeOptions:
    """Say how the texts of one call become vectors.

    Attributes:
        batch_size: work of one run of the model, counted in texts of 64 tokens: the token budget
            is `64 * batch_size`. Short texts run more at a time, long ones fewer.
        normalize_embeddings: whether vectors get unit length (a cosine is then a dot product), or
            stay as pooled; by default as the model declares: unit length, mostly.
        truncate_dim: number of first dimensions to keep (then normalise, if asked to).
        precision: type of the numbers of the result, made as by `quantize_embeddings`.
        ranges: NumPy's array [2, D] of the ranges of `int8` and `uint8`, of `calibration_ranges`;
            by default those of unit vectors.
        prompt_name: which of the model's prompts to put before every text; by default the one that
            it declares.
        prompt: text to put before every text instead; `""` for none.
        on_too_long: a text of more than `max_length` tokens is cut at its end (`"truncate"`; where
            the model's tokenizer declares its left side, at the beginning, with the prompt), or at
            its beginning behind the prompt (`"truncate-left"`), refused (`"error"`), or encoded in
            consecutive chunks whose vectors are averaged, weighted by length (`"chunk"`).
        errors: `"raise"` refuses the call for an unusable text; `"nan"` gives that text a row of
            NaN and encodes the others; `"zero"` gives it zeros, whose similarity to anything is 0.
    """

    batch_size: int = 32
    normalize_embeddings: bool | None = None
    truncate_dim: int | None = None
    precision: EmbeddingPrecision = "float32"
    ranges: npt.ArrayLike | None = None
    prompt_name: str | None = None
    prompt: str | None = None
    on_too_long: OnTooLong = "truncate"
    errors: OnError = "raise"


@dataclass(frozen=True, slots=True, eq=False)
class ModelDefaults:
    """The defaults that a model declares, and that the options of a call may change."""

    dimension: int  # length D of its vectors
    normalize: bool  # whether its vectors are of unit length by default
    prompts: Prompts  # prompts that it expects before texts


class EncodePlan(NamedTuple):
    """The options of one call (`EncodeOptions`), checked and prepared for its model."""

    token_budget: int  # most padded tokens of a run
    normalize: bool
    dimension: int  # number of the model's dimensions that are kept
    quantizer: Quantizer  # converts the vectors to the requested precision, as the last step
    prompt: str
    on_too_long: OnTooLong
    errors: OnError
    tells_of_cut: bool = True  # whether texts that were cut are logged

    def non_finite_error(self, texts: Iterable[int]) -> NonFiniteError | None:
        """Return the error for texts that have no finite vector; None if they get one of NaN."""
        return NonFiniteError(texts) if self.errors == "raise" else None

    @classmethod
    def make(cls, model: ModelDefaults, options: EncodeOptions) -> EncodePlan:
        """Check the options of a call for a model."""
        dimension, normalize = model.dimension, model.normalize
        if _integer("batch_size", options.batch_size) < 1:
            raise ConfigError(field="batch_size", expected="at least 1", value=options.batch_size)
        if options.truncate_dim is not None:
            if not 1 <= _integer("truncate_dim", options.truncate_dim) <= dimension:
                raise ConfigError(
                    field="truncate_dim",
                    expected=f"in 1 .. {dimension}",
                    value=options.truncate_dim,
                )
            dimension = operator.index(options.truncate_dim)
        _one_of("on_too_long", options.on_too_long, _ON_TOO_LONG)
        _one_of("errors", options.errors, _ON_ERROR)
        if options.normalize_embeddings is not None:
            normalize = options.normalize_embeddings
        quantizer = Quantizer.make(options.precision, dimension, options.ranges, unit=normalize)
        if options.errors == "zero":
            quantizer = replace(quantizer, nan_as_zero=True)
        if options.errors == "nan" and quantizer.dtype.kind != "f":
            raise ConfigError(
                Setting("errors", "nan"),
                f" needs precision float32 or float16: {options.precision} has no NaN; zero goes "
                "with every precision",
            )
        return cls(
            token_budget=_TOKENS_PER_TEXT * operator.index(options.batch_size),
            normalize=normalize,
            dimension=dimension,
            quantizer=quantizer,
            prompt=model.prompts.choose(options.prompt, options.prompt_name),
            on_too_long=options.on_too_long,
            errors=options.errors,
        )


def _integer(name: str, value: object) -> int:
    try:
        return operator.index(value)  # type: ignore[arg-type]  # that is the question
    except TypeError:
        raise ConfigError(field=name, expected="an integer", value=value) from None


def _one_of(name: str, value: object, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise ConfigError(field=name, expected=one_of(choices), value=value)
