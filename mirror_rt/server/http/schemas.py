"""Define the bodies of requests; msgspec decodes and checks them, and writes their schemas.

The descriptions of the fields are what readers of /docs see.
"""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

from mirror_rt.pipeline.options import OnTooLong

TokenIds = list[Annotated[int, Meta(ge=0, lt=1 << 31)]]
# One or several texts, or the token ids of one or several; `inputs.items_of` tells them apart,
# because no schema language has a union of several lists.
InputList = list[str | Annotated[int, Meta(ge=0, lt=1 << 31)] | TokenIds]
Inputs = Annotated[
    str | InputList,
    Meta(description="A text, a list of texts, a list of token ids, or a list of such lists."),
]
Dimensions = Annotated[
    Annotated[int, Meta(ge=1, le=1 << 20)] | None,
    Meta(description="Keep so many of the first dimensions of each vector; all of them if null."),
]
Name = Annotated[str, Meta(max_length=256)]
ModelName = Annotated[
    Name | None,
    Meta(description="The model, by a name that /v1/models lists; the default model if null."),
]
Language = Annotated[
    Name | None,
    Meta(description="The language of the texts, such as `fr`, which chooses the model of a pack."),
]
PromptName = Annotated[
    Name | None,
    Meta(description="The name of a prompt of the model, which is put before every text; "
         "/info lists them."),
]  # fmt: skip
# The prompt is put before every text of a request, so its length is bounded.
Prompt = Annotated[
    Annotated[str, Meta(max_length=4096)] | None,
    Meta(description="These words are put before every text, in place of a prompt of the model."),
]
Normalize = Annotated[
    bool | None,
    Meta(description="Scale every vector to length 1; as the model declares if null."),
]
Truncate = Annotated[
    bool | None,
    Meta(description="Cut texts that are too long (true) or refuse them with 413 (false); "
         "as the server was started if null."),
]  # fmt: skip
Direction = Annotated[
    Literal["Right", "right"],
    Meta(description="The end at which long texts are cut; only the right one is supported."),
]


class EmbeddingsRequest(Struct, forbid_unknown_fields=True):
    """A request of OpenAI's protocol, which the fields from `lang` on extend."""

    input: Inputs
    model: ModelName = None
    encoding_format: Annotated[
        Literal["float", "base64"] | None,
        Meta(description="Vectors as lists of numbers, or as base64 of little-endian float32, "
             "which is smaller and quicker to read."),
    ] = "float"  # fmt: skip
    dimensions: Dimensions = None
    user: Annotated[str | None, Meta(description="It is accepted and ignored.")] = None
    lang: Language = None
    input_type: Annotated[
        Literal["query", "document"] | None,
        Meta(description="Use the model's own prompt for queries or for documents, if it has one."),
    ] = None
    prompt_name: PromptName = None
    prompt: Prompt = None
    normalize: Normalize = None
    on_too_long: Annotated[
        OnTooLong | None,
        Meta(description="What becomes of a text that is longer than the model takes: it is cut, "
             "refused with 413, or encoded in chunks whose vectors are averaged; as the server "
             "was started if null."),
    ] = None  # fmt: skip


class _OfModel(Struct, forbid_unknown_fields=True, kw_only=True):
    """The fields that go beyond text-embeddings-inference."""

    model: ModelName = None
    lang: Language = None


class EmbedAllRequest(_OfModel, kw_only=True):
    """A request for a vector of each token."""

    inputs: Inputs
    truncate: Truncate = None
    truncation_direction: Direction = "Right"
    prompt_name: PromptName = None


class EmbedRequest(EmbedAllRequest, kw_only=True):
    """A request for a vector of each text."""

    normalize: Normalize = True
    dimensions: Dimensions = None


class SimilarityInputs(Struct, forbid_unknown_fields=True):
    """A text, and those to compare it with."""

    source_sentence: Annotated[str, Meta(description="The text that is compared.")]
    sentences: Annotated[list[str], Meta(description="The texts that it is compared with.")]


class SimilarityParameters(Struct, forbid_unknown_fields=True):
    """How the texts are encoded."""

    truncate: Truncate = None
    truncation_direction: Direction = "Right"
    prompt_name: PromptName = None


class SimilarityRequest(_OfModel, kw_only=True):
    """A request for the cosines of a text with others."""

    inputs: SimilarityInputs
    parameters: SimilarityParameters | UnsetType | None = UNSET


class TokenizeRequest(_OfModel, kw_only=True):
    """A request for the tokens of texts."""

    inputs: Annotated[str | list[str], Meta(description="A text, or a list of texts.")]
    add_special_tokens: Annotated[
        bool, Meta(description="Include the tokens that the model adds, such as [CLS] and [SEP].")
    ] = True
    prompt_name: PromptName = None
