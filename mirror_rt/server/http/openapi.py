"""Write the OpenAPI document, whose request schemas are the types that bodies are decoded to."""

from __future__ import annotations

import functools
from typing import Any

import msgspec

from mirror_rt import __version__
from mirror_rt.server.http import schemas

__all__ = ["openapi_document"]

_REASONS = {
    400: "not JSON, or nothing to encode",
    401: "no API key, or a wrong one",
    404: "no such model",
    408: "not within the time given",
    413: "too many items, bytes or tokens",
    415: "a compressed body",
    422: "a field has an unusable value",
    424: "the model failed on the input",
    429: "too much waits: Retry-After says when to come back",
    501: "the graph gives no token vectors",
    503: "not ready",
}
_ANY, _STRING, _INTEGER = {"type": "object"}, {"type": "string"}, {"type": "integer"}


def _list_of(items: dict[str, Any]) -> dict[str, Any]:
    return {"type": "array", "items": items}


def _object_of(**properties: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "required": list(properties), "properties": properties}


_VECTOR = _list_of({"type": "number"})
_EMBEDDING = {
    "description": "numbers, or base64 of little-endian float32",
    "anyOf": [_VECTOR, _STRING],
}
_EMBEDDINGS = _object_of(
    object={"const": "list"},
    data=_list_of(_object_of(object={"const": "embedding"}, index=_INTEGER, embedding=_EMBEDDING)),
    model=_STRING,
    usage=_object_of(prompt_tokens=_INTEGER, total_tokens=_INTEGER),
)
_PLACE = {"type": ["integer", "null"]}
_TOKEN = _object_of(
    id=_INTEGER, text=_STRING, special={"type": "boolean"}, start=_PLACE, stop=_PLACE
)

# Maps a path to its summary, its request and its answer.
_POSTS: dict[str, tuple[str, type[msgspec.Struct], dict[str, Any]]] = {
    "/v1/embeddings": ("A vector for each text (OpenAI)", schemas.EmbeddingsRequest, _EMBEDDINGS),
    "/embed": ("A vector for each text (TEI)", schemas.EmbedRequest, _list_of(_VECTOR)),
    "/embed_all": ("A vector for each token of each text", schemas.EmbedAllRequest,
                   _list_of(_list_of(_VECTOR))),
    "/similarity": ("Cosines of a text with others", schemas.SimilarityRequest, _VECTOR),
    "/tokenize": ("The tokens of texts", schemas.TokenizeRequest, _list_of(_list_of(_TOKEN))),
    "/": ("As /embed, where Hugging Face's client asks", schemas.EmbedRequest, _list_of(_VECTOR)),
}  # fmt: skip
_GETS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "/v1/models": ("The models (OpenAI)", "application/json", _ANY),
    "/info": ("What is served, and its limits (TEI)", "application/json", _ANY),
    "/": ("The status page", "text/html", _STRING),
    "/status": ("Models, load, queue and memory", "application/json", _ANY),
    "/health": ("Live: the process answers", "application/json", _ANY),
    "/ready": ("Ready: every model has just run", "application/json", _ANY),
    "/metrics": ("Metrics for Prometheus", "text/plain", _STRING),
}
_OPEN = ("/", "/health", "/ready")


@functools.cache
def openapi_document() -> dict[str, Any]:
    """Return the document, in OpenAPI 3.1."""
    requests = [request for _, request, _ in _POSTS.values()]
    _, components = msgspec.json.schema_components(
        list(dict.fromkeys(requests)), ref_template="#/components/schemas/{name}"
    )
    components["OpenAIError"] = _object_of(error=_ANY)
    components["Error"] = _object_of(error=_STRING, error_type=_STRING)
    paths: dict[str, Any] = {}
    for path, (summary, request, answer) in _POSTS.items():
        paths.setdefault(path, {})["post"] = _post(path, summary, request, answer)
    for path, (summary, media, answer) in _GETS.items():
        paths.setdefault(path, {})["get"] = _get(path, summary, media, answer)
    choice = {"in": "query", "required": False, "schema": {"type": "string", "maxLength": 256}}
    paths["/info"]["get"]["parameters"] = [choice | {"name": name} for name in ("model", "lang")]
    paths["/info"]["get"]["responses"] |= _problems("/info", [404, 422])
    parameter = {"name": "name", "in": "path", "required": True, "schema": _STRING}
    one = _get("/v1/models/", "One of the models (OpenAI)", "application/json", _ANY)
    one["responses"] |= _problems("/v1/models/", [404])
    paths["/v1/models/{name}"] = {"get": one | {"parameters": [parameter]}}
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "mirror_rt",
            "version": __version__,
            "description": "Text embeddings, in the protocols of OpenAI and of "
            "text-embeddings-inference.",
        },
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{"key": []}, {}],
    }


def _post(
    path: str, summary: str, request: type[msgspec.Struct], answer: dict[str, Any]
) -> dict[str, Any]:
    schema = {"$ref": f"#/components/schemas/{request.__name__}"}
    statuses = [status for status in _REASONS if status != 501 or path == "/embed_all"]
    return {
        "summary": summary,
        "operationId": f"post{path.replace('/', '_')}",
        "parameters": [
            {
                "name": "X-Request-Timeout",
                "in": "header",
                "description": "seconds after which the answer is of no use",
                "schema": {"type": "number", "exclusiveMinimum": 0},
            }
        ],
        "requestBody": {"required": True, "content": {"application/json": {"schema": schema}}},
        "responses": {"200": _answer(answer)} | _problems(path, statuses),
    }


def _get(path: str, summary: str, media: str, answer: dict[str, Any]) -> dict[str, Any]:
    statuses = [503] if path == "/ready" else [] if path in _OPEN else [401]
    return {
        "summary": summary,
        "operationId": f"get{path.replace('/', '_')}",
        "responses": {"200": _answer(answer, media)} | _problems(path, statuses),
    }


def _answer(schema: dict[str, Any], media: str = "application/json") -> dict[str, Any]:
    return {"description": "done", "content": {media: {"schema": schema}}}


def _problems(path: str, statuses: list[int]) -> dict[str, Any]:
    name = "OpenAIError" if path.startswith("/v1/") else "Error"
    content = {"application/json": {"schema": {"$ref": f"#/components/schemas/{name}"}}}
    return {str(s): {"description": _REASONS[s], "content": content} for s in statuses}
