"""Say of each path who answers it, and how it is documented: a decorator of its handler."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from typing import Any

import msgspec

from mirror_rt.server.http.request_gate import Handler

# The tags of the protocols.
OPENAI, TEI, WATCH = "OpenAI", "text-embeddings-inference", "Operation"
OIP, RERANK = "Open Inference Protocol", "Rerankers"
# The model, the text and the vector of the examples.
MODEL_NAME, TEXT = "all-MiniLM-L6-v2", "A cat sleeps."
EMBEDDED = [0.6463976, 0.12261579, -0.21663997, 0.72125083]
GET_STATUSES, POST_STATUSES = (401,), (400, 401, 404, 408, 413, 415, 422, 424, 429, 503)


def parameter(where: str, name: str, description: str, **schema: Any) -> dict[str, Any]:
    """Describe a parameter of the path, the query or the headers."""
    return {"in": where, "name": name, "description": description, "schema": schema}


# The name of a model in a path.
NAMED = parameter("path", "name", "The name of a model.", type="string") | {
    "required": True, "example": MODEL_NAME,
}  # fmt: skip


@dataclass(frozen=True)
class Operation:
    """One method of a path: a POST if it has a request, else a GET.

    Attributes:
        tag: the protocol that it belongs to.
        path: its path, as Starlette writes it.
        summary: a heading in the documents, which differs from all others of the tag.
        description: a sentence or two for the documents.
        answer: the type of the answer, which msgspec makes the schema of.
        handler: the function that answers it.
        about: what the answer is, where its type does not say so.
        example: an answer; None for one that is a text.
        request: the type that the body is decoded to; None for a GET.
        or_requests: other types that the body may have.
        body: an example of the request.
        may_be_empty: whether the request may have no body.
        media: the media type of the answer.
        octets: whether the answer may be bytes, too.
        statuses: the statuses of its errors; None for the usual ones of its method.
        parameters: of the path, the query or the headers, as `parameter` describes them.
        also: other paths at which it answers, as those of other servers.
    """

    tag: str
    path: str
    summary: str
    description: str
    answer: Any
    handler: Handler
    _: KW_ONLY
    about: str = ""
    example: Any = None
    request: type[msgspec.Struct] | None = None
    or_requests: tuple[type[msgspec.Struct], ...] = ()
    body: dict[str, Any] | None = None
    may_be_empty: bool = False
    media: str = "application/json"
    octets: bool = False
    statuses: tuple[int, ...] | None = None
    parameters: tuple[dict[str, Any], ...] = ()
    also: tuple[str, ...] = ()


OPERATIONS: list[Operation] = []


def operation(
    tag: str, path: str, summary: str, description: str, answer: Any, **more: Any
) -> Callable[[Handler], Handler]:
    """Let a handler answer a path, with the further fields of `Operation`."""

    def add(handler: Handler) -> Handler:
        OPERATIONS.append(Operation(tag, path, summary, description, answer, handler, **more))
        return handler

    return add
