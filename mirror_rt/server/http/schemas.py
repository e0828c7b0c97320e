"""Define the bodies of requests; msgspec decodes and checks them, and writes their schemas."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

from mirror_rt.pipeline.options import OnTooLong

__all__ = ["EmbedAllRequest", "EmbedRequest", "EmbeddingsRequest", "InputList", "Inputs",
           "SimilarityRequest", "TokenizeRequest"]  # fmt: skip

Dimensions = Annotated[int, Meta(ge=1, le=1 << 20)] | None
TokenIds = list[Annotated[int, Meta(ge=0, lt=1 << 31)]]
# One or several texts, or the token ids of one or several; `inputs.items_of` tells them apart,
# because no schema language has a union of several lists.
InputList = list[str | Annotated[int, Meta(ge=0, lt=1 << 31)] | TokenIds]
Inputs = str | InputList
Direction = Literal["Right", "right"]
# The prompt is put before every text of a request, so its length is bounded.
Prompt = Annotated[str, Meta(max_length=4096)]
# A name of a model, a language or a prompt.
Name = Annotated[str, Meta(max_length=256)]


class EmbeddingsRequest(Struct, forbid_unknown_fields=True):
    """A request of OpenAI's protocol. The fields from `lang` on go beyond that protocol.

    They are arguments of `BatchEncoder.encode`. `input_type` chooses the model's own prompt, as
    `encode_query` and `encode_document` do.
    """

    input: Inputs
    model: Name | None = None
    encoding_format: Literal["float", "base64"] | None = "float"
    dimensions: Dimensions = None
    user: str | None = None
    lang: Name | None = None
    input_type: Literal["query", "document"] | None = None
    prompt_name: Name | None = None
    prompt: Prompt | None = None
    normalize: bool | None = None
    on_too_long: OnTooLong | None = None


class _OfModel(Struct, forbid_unknown_fields=True, kw_only=True):
    """The fields that go beyond text-embeddings-inference."""

    model: Name | None = None
    lang: Name | None = None


class EmbedAllRequest(_OfModel, kw_only=True):
    """A vector for each token."""

    inputs: Inputs
    truncate: bool | None = None
    truncation_direction: Direction = "Right"
    prompt_name: Name | None = None


class EmbedRequest(EmbedAllRequest, kw_only=True):
    """A vector for each text."""

    normalize: bool | None = True
    dimensions: Dimensions = None


class SimilarityInputs(Struct, forbid_unknown_fields=True):
    """A text, and those to compare it with."""

    source_sentence: str
    sentences: list[str]


class SimilarityParameters(Struct, forbid_unknown_fields=True):
    """How the texts are encoded."""

    truncate: bool | None = None
    truncation_direction: Direction = "Right"
    prompt_name: Name | None = None


class SimilarityRequest(_OfModel, kw_only=True):
    """The cosine of a text with others."""

    inputs: SimilarityInputs
    parameters: SimilarityParameters | UnsetType | None = UNSET


class TokenizeRequest(_OfModel, kw_only=True):
    """The tokens of texts."""

    inputs: str | list[str]
    add_special_tokens: bool = True
    prompt_name: Name | None = None
