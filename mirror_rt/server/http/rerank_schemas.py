"""Define the bodies of requests for scores; see `schemas`."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct, field

from mirror_rt.server.http.client_fields import of_clients
from mirror_rt.server.http.schemas import Direction, OfModel, SomeItems, Text, Truncate


class ScoreRequest(OfModel, kw_only=True):
    """The fields that /rerank and /predict share."""

    truncate: Truncate = None
    truncation_direction: Direction = "Right"
    raw_scores: Annotated[
        bool, Meta(description="Return the outputs of the model, not scores from 0 to 1.")
    ] = False


Query = Annotated[Text, Meta(description="The text that the others are compared with.")]
Texts = Annotated[list[Text], SomeItems]
TopN = Annotated[
    Annotated[int, Meta(ge=1)] | None,
    Meta(description="The number of the best to return; all of them if null."),
]


class RerankRequest(ScoreRequest, kw_only=True):
    """A request for the order of texts by a query."""

    query: Query
    texts: Annotated[Texts, Meta(description="The texts to put in order.")]
    return_text: Annotated[bool, Meta(description="Return the texts, too.")] = False
    top_n: TopN = None


class PredictParameters(Struct, forbid_unknown_fields=True):
    """How Hugging Face's client asks for scores."""

    function_to_apply: Annotated[
        Literal["sigmoid", "softmax", "none"] | None,
        Meta(description="The function that makes scores of the outputs of the model."),
    ] = None
    top_k: TopN = None


class PredictRequest(ScoreRequest, kw_only=True):
    """A request for the labels of texts or pairs of texts."""

    inputs: Annotated[
        Text | Annotated[list[Text | list[Text]], SomeItems],
        Meta(description="A text, a pair of texts, or a list of lists of one or two texts."),
    ]
    parameters: PredictParameters | None = None


class Document(Struct):
    """A document with other fields, which have no effect."""

    text: Annotated[Text, Meta(description="Its text.")]


Documents = list[str | Document]
RawScores = Annotated[
    bool | None,
    Meta(description="Return the outputs of the model; with this field, in Infinity's form."),
]


class CutRequest(OfModel, kw_only=True):
    """The fields of requests for scores that cut long texts unless they say otherwise."""

    truncate: Annotated[
        bool | None, Meta(description="Cut texts that are too long, or refuse them if false.")
    ] = None


DocumentList = Annotated[
    Annotated[Documents, SomeItems],
    Meta(description="The documents to put in order: texts, or objects with a `text`."),
]
Returned = Annotated[
    bool | Literal["true"] | None,  # RAGFlow sends the word
    Meta(description="Return the texts, too; if null, /v1/rerank does, as Jina and vLLM do."),
]


class RankedRequest(CutRequest, kw_only=True):
    """The fields that all requests for the order of documents have."""

    query: Query
    documents: DocumentList
    top_n: TopN = None
    return_documents: Returned = None
    max_tokens_per_doc: Annotated[
        Annotated[int, Meta(ge=1, lt=1 << 31)] | None,
        Meta(description="Cut every document after this number of tokens."),
    ] = None
    raw_scores: RawScores = None


@of_clients("documents")
class DocumentsRequest(RankedRequest, kw_only=True):
    """A request for the order of documents, in the fields of Cohere, Jina, Voyage and Infinity."""


@of_clients("input")
class InputRequest(RankedRequest, kw_only=True):
    """A request for the order of documents, in the fields of Mixedbread."""

    documents: DocumentList = field(name="input")
    top_n: TopN = field(name="top_k", default=None)
    return_documents: Returned = field(name="return_input", default=None)


class PassagesRequest(OfModel, kw_only=True):
    """A request for the order of passages, in the fields of NIM."""

    query: Annotated[Document, Meta(description="The text that the others are compared with.")]
    passages: Annotated[
        Annotated[list[Document], SomeItems], Meta(description="The passages to put in order.")
    ]
    truncate: Annotated[
        Literal["NONE", "END"] | None, Meta(description="Refuse pairs that are too long, or cut.")
    ] = None


Side = Annotated[Text | Texts | None, Meta(description="One text, or the texts of all pairs.")]


@of_clients("pairs")
class PairsRequest(CutRequest, kw_only=True):
    """A request for a score of each pair of texts, in the fields of vLLM."""

    text_1: Side = None
    text_2: Side = None


@of_clients("labels")
class LabelsRequest(CutRequest, kw_only=True):
    """A request for the labels of texts, in the fields of vLLM and of Infinity."""

    input: Annotated[Text | Texts, Meta(description="A text, or a list of texts.")]
    raw_scores: RawScores = None
