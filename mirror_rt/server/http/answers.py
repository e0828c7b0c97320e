"""Define the bodies of answers, whose schemas msgspec writes; handlers write the JSON themselves.

Readers of /docs see the descriptions of the fields.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

Vector = Annotated[list[float], Meta(description="One number a dimension.")]
Vectors = Annotated[list[Vector], Meta(description="A vector for each text, in their order.")]
TokenVectors = Annotated[
    list[Annotated[list[Vector], Meta(description="A vector for each token.")]],
    Meta(description="A list for each text, in their order."),
]


class WordWeight(Struct):
    """One word."""

    index: Annotated[int, Meta(description="The number of the word, its token id.")]
    value: Annotated[float, Meta(description="Its weight.")]


WordWeights = Annotated[
    list[Annotated[list[WordWeight], Meta(description="The words of one text.")]],
    Meta(description="A list for each text, in their order."),
]
Cosines = Annotated[list[float], Meta(description="A cosine for each of the sentences.")]
Texts = Annotated[list[str], Meta(description="A text for each list.")]
Values = dict[str, Any]
Place = Annotated[int, Meta(description="The place of the text in the request, from 0.")]
Score = Annotated[
    float, Meta(description="From 0 to 1, or by `raw_scores` the output of the model.")
]
Code = Annotated[str | None, Meta(description="A word for programs.")]
Line = Annotated[str, Meta(description="One line for people.")]


class Embedding(Struct):
    """One text."""

    object: Annotated[Literal["embedding"], Meta(description="The kind of this object.")]
    index: Place
    embedding: Annotated[
        Vector | str, Meta(description="Numbers, or base64 of little-endian float32.")
    ]


class Usage(Struct):
    """The tokens that were encoded."""

    prompt_tokens: Annotated[
        int, Meta(description="The tokens of all texts, special tokens included.")
    ]
    total_tokens: Annotated[int, Meta(description="The same number.")]


class Embeddings(Struct):
    """The vectors, in the order of the texts."""

    object: Annotated[Literal["list"], Meta(description="The kind of this object.")]
    data: Annotated[list[Embedding], Meta(description="An object for each text.")]
    model: Annotated[str, Meta(description="The model that encoded the texts.")]
    usage: Usage


class Rank(Struct):
    """One text; with `return_text` also its `text`."""

    index: Place
    score: Score


class Label(Struct):
    """One label."""

    label: Annotated[str, Meta(description="Its name.")]
    score: Score


Ranks = Annotated[list[Rank], Meta(description="The texts, the best first.")]
LabelsOfOne = Annotated[list[Label], Meta(description="The labels of one input, the best first.")]
LabelsOfAll = Annotated[
    list[LabelsOfOne], Meta(description="A list for each input, in their order.")
]


class RankedDocument(Struct):
    """One document."""

    index: Place
    relevance_score: Annotated[float, Meta(description="From 0 to 1.")]


class RankedDocuments(Struct):
    """The documents by their scores."""

    results: Annotated[
        list[RankedDocument],
        Meta(description="The documents, the best first, and their texts in `document`. It is "
             "called `data` where a field of Voyage was sent."),
    ]  # fmt: skip
    id: Annotated[str, Meta(description="The name of the request in the log.")]
    model: Annotated[str, Meta(description="The model that scored the documents.")]
    usage: Usage
    meta: Annotated[Values, Meta(description="The same numbers, as Cohere's clients read them.")]


class Token(Struct):
    """One token."""

    id: Annotated[int, Meta(description="The number of the token in the vocabulary.")]
    text: Annotated[str, Meta(description="The token as text.")]
    special: Annotated[bool, Meta(description="Whether the model added the token.")]
    start: Annotated[
        int | None, Meta(description="The first character; null for tokens that the model added.")
    ]
    stop: Annotated[int | None, Meta(description="The character after the last one, or null.")]


Tokens = Annotated[
    list[Annotated[list[Token], Meta(description="The tokens of one text.")]],
    Meta(description="A list for each text, in their order."),
]


Models = Annotated[
    list[Annotated[Values, Meta(description="The name and the state of a model.")]],
    Meta(description="The models that give vectors."),
]


class OutputTensor(Struct):
    """The tensor `embedding`, and its values, row by row, as `data`."""

    name: Annotated[Literal["embedding"], Meta(description="The name of the output.")]
    datatype: Annotated[Literal["FP32"], Meta(description="The type of the values.")]
    shape: Annotated[list[int], Meta(description="The texts, and the dimensions of a vector.")]


class Inferred(Struct):
    """The vectors; with `binary_data` they follow as bytes, and a header says where they begin."""

    model_name: Annotated[str, Meta(description="The name of the model.")]
    outputs: Annotated[list[OutputTensor], Meta(description="The one output.")]


class OpenAIProblem(Struct):
    """The description of an error."""

    message: Line
    type: Annotated[str, Meta(description="The kind of error.")]
    param: Annotated[str | None, Meta(description="The field that is wrong.")]
    code: Code


class OpenAIError(Struct):
    """An error, in which clients of OpenAI, of Cohere and of Jina find their message."""

    error: OpenAIProblem
    message: Annotated[str, Meta(description="The same line, for clients of Cohere.")]
    detail: Annotated[str, Meta(description="The same line, for clients of Jina.")]


class InferenceError(Struct):
    """An error, as the Open Inference Protocol has it."""

    error: Line


class Error(Struct):
    """An error, as text-embeddings-inference writes it."""

    error: Line
    error_type: Annotated[str, Meta(description="The kind of error.")]
