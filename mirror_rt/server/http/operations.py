"""Say of each path who answers it, and how it is documented: a decorator of its handler."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from typing import Any

import msgspec
import orjson

from mirror_rt.server.exchange import Answer
from mirror_rt.server.http.answers import Values
from mirror_rt.server.http.call import Call
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
    """One method of a path: a POST if it has a request, else a GET."""

    tag: str  # the protocol that it belongs to
    path: str  # as Starlette writes it
    summary: str  # a heading in the documents, which differs from all others of the tag
    description: str  # a sentence or two for the documents
    answers: tuple[Any, ...]  # the types of the answer, of which msgspec makes the schemas
    handler: Handler  # the function that answers it
    _: KW_ONLY
    about: str = ""  # describes the answer, where its type does not
    example: Any = None  # an answer; None for one that is a text
    request: type[msgspec.Struct] | None = None  # decodes the body; None for a GET
    or_requests: tuple[type[msgspec.Struct], ...] = ()  # other types that the body may have
    body: dict[str, Any] | None = None  # an example of the request
    may_be_empty: bool = False  # whether the request may have no body
    media: str = "application/json"  # the media type of the answer
    octets: bool = False  # whether the answer may be bytes, too
    statuses: tuple[int, ...] | None = None  # of its errors; None for the usual ones of the method
    parameters: tuple[dict[str, Any], ...] = ()  # of path, query and headers, by `parameter`
    also: tuple[str, ...] = ()  # other paths at which it answers, as those of other servers

    @property
    def requests(self) -> tuple[type[msgspec.Struct], ...]:
        """The types that the body may have."""
        return () if self.request is None else (self.request, *self.or_requests)


OPERATIONS: list[Operation] = []


def operation(
    tag: str, path: str, summary: str, description: str, answer: Any, **more: Any
) -> Callable[[Handler], Handler]:
    """Let a handler answer a path, with the further fields of `Operation`."""
    answers = answer if isinstance(answer, tuple) else (answer,)

    def add(handler: Handler) -> Handler:
        OPERATIONS.append(Operation(tag, path, summary, description, answers, handler, **more))
        return handler

    return add


def always(answer: Answer) -> Handler:
    """Return a handler of a path whose answer is always the same."""

    async def handler(_: Call) -> Answer:
        return answer

    return handler


def constant(
    tag: str, path: str, summary: str, description: str, value: dict[str, Any], **more: Any
) -> None:
    """Let a GET of a path always answer the same JSON value, which is its example, too."""
    answers = operation(tag, path, summary, description, Values, example=value, **more)
    answers(always(Answer(orjson.dumps(value))))
