"""Define the bodies of requests; msgspec decodes and checks them, and writes their schemas.

Readers of /docs see the descriptions of the fields.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from mirror_rt.pipeline.options import OnTooLong
from mirror_rt.server.http.client_fields import of_clients

TokenIds = list[Annotated[int, Meta(ge=0, lt=1 << 31)]]
# One or several texts, or the token ids of one or several; `inputs.items_of` tells them apart,
# because no schema language has a union of several lists.
InputList = list[str | Annotated[int, Meta(ge=0, lt=1 << 31)] | TokenIds]
# An empty one is refused with 400, and not as a body of another form (422).
Text = Annotated[str, Meta(extra_json_schema={"minLength": 1})]
SomeItems = Meta(extra_json_schema={"minItems": 1})
Inputs = Annotated[
    Text | Annotated[InputList, SomeItems],
    Meta(description="A text, a list of texts, a list of token ids, or a list of such lists."),
]
Dimensions = Annotated[
    Annotated[int, Meta(ge=0, le=1 << 20)] | None,
    Meta(description="Keep this number of the first dimensions of each vector; all if null or 0."),
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
    bool | None, Meta(description="Scale every vector to length 1; as the model declares if null.")
]
Truncate = Annotated[
    bool | None,
    Meta(description="Cut texts that are too long (true) or refuse them with 413 (false); "
         "as the server was started if null."),
]  # fmt: skip
InputType = Annotated[
    Literal["query", "document", "passage", "search_query", "search_document"] | None,
    Meta(description="Use the model's own prompt for queries or for documents, if it has one; "
         "Cohere and NIM call them by the other names."),
]  # fmt: skip
TooLong = Annotated[
    OnTooLong | None,
    Meta(description="The treatment of a text that is longer than the model takes: its end "
         "is cut off, or its beginning (truncate-left), it is refused with 413, or encoded in "
         "chunks whose vectors are averaged; as the server was started if null."),
]  # fmt: skip
Direction = Annotated[
    Literal["Right", "right", "Left", "left"] | None,
    Meta(description="The end at which long texts are cut."),
]


class VectorOptions(Struct, forbid_unknown_fields=True, kw_only=True):
    """How texts are encoded, beyond the protocols."""

    dimensions: Dimensions = None
    lang: Language = None
    input_type: InputType = None
    prompt_name: PromptName = None
    prompt: Prompt = None
    normalize: Normalize = None
    on_too_long: TooLong = None


class VectorsRequest(VectorOptions, kw_only=True):
    """The fields that all requests for vectors have."""

    input: Inputs
    model: ModelName = None


Encoding = Literal["float", "base64"]


@of_clients("openai")
class EmbeddingsRequest(VectorsRequest, kw_only=True):
    """A request of OpenAI's protocol."""

    encoding_format: Annotated[
        Encoding | Annotated[list[Encoding], Meta(min_length=1)] | None,
        Meta(description="Vectors as lists of numbers, or as base64 of little-endian float32, "
             "which is smaller and quicker to read; of a list, which Mixedbread's clients send, "
             "all in an object."),
    ] = None  # fmt: skip


Texts = Annotated[list[Text], SomeItems, Meta(description="The texts.")]


@of_clients("cohere")
class TextsRequest(VectorsRequest, kw_only=True):
    """A request for vectors, in the fields of Cohere."""

    input: Texts = msgspec.field(name="texts")  # type: ignore[assignment]
    max_tokens: Annotated[
        Annotated[int, Meta(ge=1)] | None,
        Meta(description="Where long texts are cut; less than the model takes is refused."),
    ] = None


class OfModel(Struct, forbid_unknown_fields=True, kw_only=True):
    """The fields that go beyond text-embeddings-inference."""

    model: ModelName = None
    lang: Language = None


@of_clients("all")
class EmbedAllRequest(OfModel, kw_only=True):
    """A request for a vector of each token, or for the weights of words."""

    inputs: Inputs
    truncate: Truncate = None
    truncation_direction: Direction = "Right"
    prompt_name: PromptName = None


@of_clients("tei")
class EmbedRequest(EmbedAllRequest, kw_only=True):
    """A request for a vector of each text."""

    normalize: Normalize = True
    dimensions: Dimensions = None
    encoding_format: Annotated[
        Literal["float"] | None, Meta(description="Vectors are lists of numbers.")
    ] = None


class SimilarityInputs(Struct, forbid_unknown_fields=True):
    """A text, and those to compare it with."""

    source_sentence: Annotated[Text, Meta(description="The text that is compared.")]
    sentences: Annotated[
        Annotated[list[Text], SomeItems], Meta(description="The texts that it is compared with.")
    ]


class SimilarityParameters(Struct, forbid_unknown_fields=True):
    """How the texts are encoded."""

    truncate: Truncate = None
    truncation_direction: Direction = "Right"
    prompt_name: PromptName = None


class SimilarityRequest(OfModel, kw_only=True):
    """A request for the cosines of a text with others."""

    inputs: SimilarityInputs
    parameters: SimilarityParameters | UnsetType | None = UNSET


class TokenizeRequest(OfModel, kw_only=True):
    """A request for the tokens of texts."""

    inputs: Annotated[str | list[str], Meta(description="A text, or a list of texts.")]
    add_special_tokens: Annotated[
        bool, Meta(description="Include the tokens that the model adds, such as [CLS] and [SEP].")
    ] = True
    prompt_name: PromptName = None


IdLists = list[Annotated[int, Meta(ge=0, lt=1 << 31)] | TokenIds]


class DecodeRequest(OfModel, kw_only=True):
    """A request for the texts of token ids."""

    ids: Annotated[IdLists, Meta(description="A list of token ids, or a list of such lists.")]
    skip_special_tokens: Annotated[
        bool, Meta(description="Leave out the tokens that the model adds, such as [CLS].")
    ] = True


@of_clients("tensor")
class TensorParameters(Struct, forbid_unknown_fields=True):
    """How the texts of a tensor are sent."""

    binary_data_size: Annotated[
        Annotated[int, Meta(ge=0, lt=1 << 31)] | None,
        Meta(description="The number of bytes of the texts after the JSON: each its length as a "
             "little-endian uint32, and its UTF-8."),
    ] = None  # fmt: skip


class InferInput(Struct, forbid_unknown_fields=True):
    """The tensor `text`."""

    name: Annotated[Literal["text"], Meta(description="The name of the input.")]
    datatype: Annotated[Literal["BYTES"], Meta(description="Texts are BYTES.")]
    shape: Annotated[
        list[Annotated[int, Meta(ge=0, lt=1 << 31)]],
        Meta(min_length=1, max_length=2, description="The number n of texts: [n] or [n, 1]."),
    ]
    data: Annotated[
        list[str | list[str]] | None,
        Meta(description="The texts, unless they follow the JSON as bytes."),
    ] = None
    parameters: TensorParameters | None = None


class OutputParameters(Struct, forbid_unknown_fields=True):
    """How the vectors are sent."""

    binary_data: Annotated[
        bool | None,
        Meta(description="As little-endian float32 after the JSON, or as numbers in it."),
    ] = None
    classification: Annotated[
        Annotated[int, Meta(ge=0, le=0)] | None,
        Meta(description="A vector is not a list of classes, so that only 0 is taken."),
    ] = None


class InferOutput(Struct, forbid_unknown_fields=True):
    """The tensor `embedding`."""

    name: Annotated[Literal["embedding"], Meta(description="The name of the output.")]
    parameters: OutputParameters | None = None


@of_clients("infer")
class InferParameters(VectorOptions, kw_only=True):
    """How the texts are encoded."""

    binary_data_output: Annotated[
        bool | None,
        Meta(description="The same as `binary_data`, which goes before it, of the output."),
    ] = None
    timeout: Annotated[
        Annotated[int, Meta(ge=0)] | None,
        Meta(description="The microseconds after which the answer is of no use; 0 for no limit."),
    ] = None


class IndexRequest(Struct, forbid_unknown_fields=True):
    """A request for the models, in Triton's extension of the Open Inference Protocol."""

    ready: Annotated[
        bool | None, Meta(description="Only models that can be asked, as all of them can.")
    ] = None


@of_clients("request")
class InferRequest(Struct, forbid_unknown_fields=True):
    """A request of the Open Inference Protocol."""

    inputs: Annotated[
        list[InferInput], Meta(min_length=1, max_length=1, description="The tensor `text`.")
    ]
    id: Annotated[Name | None, Meta(description="The answer repeats it.")] = None
    parameters: InferParameters | None = None
    outputs: Annotated[
        Annotated[list[InferOutput], Meta(max_length=1)] | None,
        Meta(description="The tensor `embedding`; the same if null."),
    ] = None
