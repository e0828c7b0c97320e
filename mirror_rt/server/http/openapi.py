"""Write the OpenAPI document from the operations and the types of their requests and answers."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from mirror_rt.server.admission.problems import (
    ProblemShape,
    inference_shape,
    openai_shape,
    tei_shape,
)
from mirror_rt.server.http import (  # noqa: F401  # their handlers are the operations
    answers,
    open_inference,
    openai,
    pages,
    rerank,
    tei,
)
from mirror_rt.server.http.operations import (
    GET_STATUSES,
    MODEL_NAME,
    OIP,
    OPENAI,
    OPERATIONS,
    POST_STATUSES,
    RERANK,
    TEI,
    WATCH,
    Operation,
    parameter,
)
from mirror_rt.server.http.request_gate import shape_of
from mirror_rt.version import __version__

# The server's address in the curl samples, which the page at /docs replaces by its own.
ADDRESS = "http://localhost:8080"
_TAGS = {
    OPENAI: "The protocol of OpenAI's clients: set their base URL to this server's `/v1`.",
    TEI: "The protocol of Hugging Face's server of that name, and of its clients.",
    OIP: "The protocol of KServe, Triton and their clients, version 2; `text` is its input, "
    "`embedding` its output.",
    RERANK: "The protocols of the rerankers of Cohere, Jina, Voyage, Mixedbread and vLLM; "
    "text-embeddings-inference's are /rerank and /predict.",
    WATCH: "Probes, load and metrics of the server.",
}
_INTRODUCTION = """
Text embeddings, in the protocols of OpenAI, of text-embeddings-inference and of KServe.

Each path has a sample for curl. Where the server wants an API key, add
`-H 'Authorization: Bearer KEY'`; the paths that stay open are the probes and these pages.

An answer with status 429 or 503 may be asked for again after the seconds in `Retry-After`. Every
answer has an `X-Request-Id`, which the server's log repeats.
"""
_REASONS = {
    400: "The body is not JSON, or has nothing to encode; under /v1/ also: a text is too long.",
    401: "There is no API key, or a wrong one.",
    404: "There is no such model.",
    408: "The answer was not ready within the time given.",
    413: "There are too many items, bytes or tokens.",
    415: "The body is compressed, and not by gzip or deflate.",
    422: "A field has an unusable value.",
    424: "The model failed on the input.",
    429: "Too much waits: `Retry-After` says when to come back.",
    501: "The graph gives no token vectors.",
    503: "The server is not ready.",
}


_TIMEOUT = parameter(
    "header", "X-Request-Timeout", "The seconds after which the answer is of no use.",
    type="number", exclusiveMinimum=0,
)  # fmt: skip
_ERRORS: dict[ProblemShape, Any] = {
    openai_shape: answers.OpenAIError, inference_shape: answers.InferenceError,
    tei_shape: answers.Error,
}  # fmt: skip


@functools.cache
def openapi_document() -> dict[str, Any]:
    """Return the document, in OpenAPI 3.1."""
    types = dict.fromkeys(
        kind for one in OPERATIONS for kind in (*one.requests, *one.answers, _error(one))
    )
    made, components = msgspec.json.schema_components(
        list(types), ref_template="#/components/schemas/{name}"
    )
    schemas = dict(zip(types, made, strict=True))
    paths: dict[str, Any] = {}
    for one in OPERATIONS:
        method = "get" if one.request is None else "post"
        path = one.path.replace(":path", "")
        paths.setdefault(path, {})[method] = _operation(one, method, path, schemas)
    return {
        "openapi": "3.1.0",
        "info": {"title": "mirror_rt", "version": __version__, "description": _INTRODUCTION},
        "tags": [{"name": name, "description": text} for name, text in _TAGS.items()],
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{"key": []}, {}],
    }


def _error(one: Operation) -> Any:
    return _ERRORS[shape_of(one.path)]


def _any_of(types: Sequence[Any], schemas: Mapping[Any, Any]) -> dict[str, Any]:
    found = [schemas[kind] for kind in types]
    return found[0] if len(found) == 1 else {"anyOf": found}


def _operation(
    one: Operation, method: str, path: str, schemas: Mapping[Any, Any]
) -> dict[str, Any]:
    problem = schemas[_error(one)]
    content: dict[str, Any] = {"schema": _any_of(one.answers, schemas)}
    content |= {} if one.example is None else {"example": one.example}
    about = one.about or content["schema"].get("description") or one.answers[0].__doc__
    media: dict[str, Any] = {one.media: content}
    if one.octets:
        media["application/octet-stream"] = {"schema": {"type": "string"}}
    responses: dict[str, Any] = {"200": {"description": about, "content": media}}
    usual = GET_STATUSES if one.request is None else POST_STATUSES
    for status in usual if one.statuses is None else one.statuses:
        responses[str(status)] = {
            "description": _REASONS[status], "content": {"application/json": {"schema": problem}},
        }  # fmt: skip
    described = {
        "tags": [one.tag],
        "summary": f"{path}: {one.summary}",  # a name of its own in the list of /docs
        "description": one.description + "".join(f" Also at `{path}`." for path in one.also),
        "operationId": f"{method}{path.translate({ord(c): '_' for c in '/{}'})}",
        "parameters": list(one.parameters),
        "responses": responses,
        "x-codeSamples": [{"lang": "shell", "label": "curl", "source": _curl(path, one.body)}],
    }
    if one.request is not None:
        asked = {"schema": _any_of(one.requests, schemas), "example": one.body}
        content = {"application/json": asked}
        described["requestBody"] = {"required": not one.may_be_empty, "content": content}
        described["parameters"] = [*one.parameters, _TIMEOUT]
    return described


def _curl(path: str, body: dict[str, Any] | None) -> str:
    line = f"curl {ADDRESS}{path.format(name=MODEL_NAME)}"
    if body is None:
        return line
    return (
        f"{line} \\\n  -H 'Content-Type: application/json' \\\n  -d '{json.dumps(body, indent=2)}'"
    )
