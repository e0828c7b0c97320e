"""Define the bodies of requests for scores; see `schemas`."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

from mirror_rt.server.http.schemas import Direction, ModelName, OfModel, Truncate


class ScoreRequest(OfModel, kw_only=True):
    """The fields that /rerank and /predict share."""

    truncate: Truncate = None
    truncation_direction: Direction = "Right"
    raw_scores: Annotated[
        bool, Meta(description="Return the outputs of the model, not scores from 0 to 1.")
    ] = False


Query = Annotated[str, Meta(description="The text that the others are compared with.")]
TopN = Annotated[
    Annotated[int, Meta(ge=1)] | None,
    Meta(description="Return only so many of the best; all of them if null."),
]


class RerankRequest(ScoreRequest, kw_only=True):
    """A request for the order of texts by a query."""

    query: Query
    texts: Annotated[list[str], Meta(description="The texts to put in order.")]
    return_text: Annotated[bool, Meta(description="Return the texts, too.")] = False


class PredictParameters(Struct, forbid_unknown_fields=True):
    """How Hugging Face's client asks for scores."""

    function_to_apply: Annotated[
        Literal["sigmoid", "softmax", "none"] | None,
        Meta(description="What makes scores of the outputs of the model."),
    ] = None
    top_k: TopN = None


class PredictRequest(ScoreRequest, kw_only=True):
    """A request for the labels of texts or pairs of texts."""

    inputs: Annotated[
        str | list[str | list[str]],
        Meta(description="A text, a pair of texts, or a list of lists of one or two texts."),
    ]
    parameters: PredictParameters | None = None


class Document(Struct):
    """A document with other fields, which have no effect."""

    text: Annotated[str, Meta(description="Its text.")]


class JinaRerankRequest(OfModel, kw_only=True):
    """A request for the order of documents, in the fields of Jina and of Cohere's first version."""

    query: Query
    documents: Annotated[
        list[str | Document],
        Meta(description="The documents to put in order: texts, or objects with a `text`."),
    ]
    top_n: TopN = None
    return_documents: Annotated[
        bool | None, Meta(description="Return the texts, too, as Jina does.")
    ] = True
    max_chunks_per_doc: Annotated[
        int | None, Meta(description="It is accepted and ignored: a document is not divided.")
    ] = None


class CohereRerankRequest(Struct, forbid_unknown_fields=True, kw_only=True):
    """A request for the order of documents, in the fields of Cohere's second version."""

    query: Query
    documents: Annotated[list[str], Meta(description="The documents to put in order.")]
    model: ModelName = None
    top_n: TopN = None
    max_tokens_per_doc: Annotated[
        Annotated[int, Meta(ge=1, lt=1 << 31)] | None,
        Meta(description="Cut every document after so many tokens."),
    ] = None
    priority: Annotated[int | None, Meta(description="It is accepted and ignored.")] = None
