"""Write the OpenAPI document: the types that bodies are decoded to, the answers, and examples."""

from __future__ import annotations

import functools
import json
from dataclasses import KW_ONLY, dataclass
from typing import Any

import msgspec

from mirror_rt.server.http import openapi_answers as answers
from mirror_rt.server.http import rerank_schemas, schemas
from mirror_rt.version import __version__

# The server's address in the curl samples, which the page at /docs replaces by its own.
ADDRESS = "http://localhost:8080"
_OPENAI, _TEI, _WATCH = "OpenAI", "text-embeddings-inference", "Operation"
_OIP, _RERANK = "Open Inference Protocol", "Rerankers"
_TAGS = {
    _OPENAI: "The protocol of OpenAI's clients: set their base URL to this server's `/v1`.",
    _TEI: "The protocol of Hugging Face's server of that name, and of its clients.",
    _OIP: "The protocol of KServe, Triton and their clients, version 2; `text` is its input, "
    "`embedding` its output.",
    _RERANK: "The protocols of Cohere's and Jina's rerankers; text-embeddings-inference's are "
    "/rerank and /predict.",
    _WATCH: "Probes, load and metrics of the server.",
}
_INTRODUCTION = """
Text embeddings, in the protocols of OpenAI, of text-embeddings-inference and of KServe.

Each path has a sample for curl. Where the server wants an API key, add
`-H 'Authorization: Bearer KEY'`; the paths that stay open are the probes and these pages.

An answer with status 429 or 503 may be asked for again after the seconds in `Retry-After`. Every
answer has an `X-Request-Id`, which the server's log repeats.
"""
_REASONS = {
    400: "The body is not JSON, or has nothing to encode.",
    401: "There is no API key, or a wrong one.",
    404: "There is no such model.",
    408: "The answer was not ready within the time given.",
    413: "There are too many items, bytes or tokens.",
    415: "The body is compressed.",
    422: "A field has an unusable value.",
    424: "The model failed on the input.",
    429: "Too much waits: `Retry-After` says when to come back.",
    501: "The graph gives no token vectors.",
    503: "The server is not ready.",
}


def _parameter(where: str, name: str, description: str, **schema: Any) -> dict[str, Any]:
    return {"in": where, "name": name, "description": description, "schema": schema}


def _query(name: str, description: str) -> dict[str, Any]:
    return _parameter("query", name, description, type="string", maxLength=256)


_TIMEOUT = _parameter(
    "header", "X-Request-Timeout", "The seconds after which the answer is of no use.",
    type="number", exclusiveMinimum=0,
)  # fmt: skip
_NAME = _parameter("path", "name", "The name of a model.", type="string")
_NAME |= {"required": True, "example": answers.NAME}
_JSON_LENGTH = _parameter(
    "header", "Inference-Header-Content-Length",
    "The bytes of the JSON, where texts follow it as bytes.", type="integer", minimum=0,
)  # fmt: skip


@dataclass(frozen=True)
class _Operation:
    """One method of a path: a POST if it has a request, else a GET."""

    tag: str
    path: str
    summary: str
    description: str
    answer: dict[str, Any]
    _: KW_ONLY
    request: type[msgspec.Struct] | None = None
    or_requests: tuple[type[msgspec.Struct], ...] = ()
    body: dict[str, Any] | None = None  # an example of the request
    media: str = "application/json"
    octets: bool = False  # whether the answer may be bytes, too
    statuses: tuple[int, ...] = (401,)
    parameters: tuple[dict[str, Any], ...] = ()


_POST = (400, 401, 404, 408, 413, 415, 422, 424, 429, 503)
_TEXT = "A cat sleeps."
_QUESTION = {"query": "Which animal sleeps?", "texts": ["Stocks fell.", _TEXT]}
_DOCUMENTS = {"query": _QUESTION["query"], "documents": _QUESTION["texts"]}
_OPERATIONS = (
    _Operation(
        _OPENAI, "/v1/embeddings", "A vector for each text",
        "Encodes texts or token ids. The field `dimensions` is here to keep the example short.",
        answers.EMBEDDINGS, request=schemas.EmbeddingsRequest, statuses=_POST,
        body={"input": [_TEXT], "dimensions": 4},
    ),
    _Operation(_OPENAI, "/v1/models", "The models", "Lists the models that are served.",
               answers.MODELS),
    _Operation(
        _OPENAI, "/v1/models/{name}", "One model", "Describes a model.", answers.MODEL,
        statuses=(401, 404),
        parameters=(_NAME,),
    ),
    _Operation(
        _TEI, "/embed", "A vector for each text",
        "Encodes texts or token ids. The field `dimensions` is here to keep the example short.",
        answers.VECTORS, request=schemas.EmbedRequest, statuses=_POST,
        body={"inputs": [_TEXT], "dimensions": 4},
    ),
    _Operation(
        _TEI, "/", "The same as /embed or /similarity",
        "Answers as /similarity where `inputs` is an object, and else as /embed: Hugging Face's "
        "client asks here. Where the default model is a reranker, as /rerank or /predict.",
        answers.OF_ANY_MODEL, request=schemas.EmbedRequest, statuses=_POST,
        or_requests=(schemas.SimilarityRequest, rerank_schemas.RerankRequest,
                     rerank_schemas.PredictRequest),
        body={"inputs": [_TEXT], "dimensions": 4},
    ),
    _Operation(
        _TEI, "/embed_all", "A vector for each token",
        "Returns the vectors of all tokens of each text, before pooling, special tokens included. "
        "The example shows the beginning of each vector.",
        answers.TOKEN_VECTORS, request=schemas.EmbedAllRequest, statuses=(*_POST, 501),
        body={"inputs": ["Hello"]},
    ),
    _Operation(
        _TEI, "/similarity", "The cosines of a text with others",
        "Compares a text with others: one cosine, from -1 to 1, for each of them.",
        answers.COSINES, request=schemas.SimilarityRequest, statuses=_POST,
        body={"inputs": {"source_sentence": _TEXT,
                         "sentences": ["A kitten naps.", "Stocks fell."]}},
    ),
    _Operation(
        _TEI, "/tokenize", "The tokens of texts", "Shows how the model splits each text.",
        answers.TOKENS, request=schemas.TokenizeRequest, statuses=_POST,
        body={"inputs": "Hello world"},
    ),
    _Operation(
        _TEI, "/decode", "The texts of token ids", "Joins the tokens of each list to a text.",
        answers.TEXTS, request=schemas.DecodeRequest, statuses=_POST,
        body={"ids": [101, 7592, 2088, 102]},
    ),
    _Operation(
        _TEI, "/rerank", "Texts in the order of a query",
        "Scores each text with the query by a cross-encoder with one output.",
        answers.RANKS, request=rerank_schemas.RerankRequest, statuses=_POST, body=_QUESTION,
    ),
    _Operation(
        _TEI, "/predict", "The labels of texts or pairs",
        "Gives each text, or pair of texts, the labels of a cross-encoder and their scores.",
        answers.LABELS, request=rerank_schemas.PredictRequest, statuses=_POST,
        body={"inputs": [_TEXT, "An animal rests."]},
    ),
    _Operation(
        _RERANK, "/v1/rerank", "Documents in the order of a query",
        "Takes the fields of Jina, and of the first version of Cohere. Long documents are cut.",
        answers.JINA_RANKS, request=rerank_schemas.JinaRerankRequest, statuses=_POST,
        body=_DOCUMENTS,
    ),
    _Operation(
        _RERANK, "/v2/rerank", "Documents in the order of a query",
        "Takes the fields of Cohere's second version. Long documents are cut.",
        answers.COHERE_RANKS, request=rerank_schemas.CohereRerankRequest, statuses=_POST,
        body=_DOCUMENTS,
    ),
    _Operation(
        _TEI, "/info", "A model and its limits", "Says what is served, and what is accepted.",
        answers.INFO, statuses=(401, 404, 422),
        parameters=(_query("model", "The name of a model; without it the default model."),
                    _query("lang", "The language of a model of a pack.")),
    ),
    _Operation(
        _OIP, "/v2/models/{name}/infer", "A vector for each text",
        "Encodes the tensor `text` to the tensor `embedding`. The parameter `dimensions` is here "
        "to keep the example short.",
        answers.INFERRED, request=schemas.InferRequest, statuses=_POST, octets=True,
        parameters=(_NAME, _JSON_LENGTH),
        body={"inputs": [{"name": "text", "datatype": "BYTES", "shape": [1, 1], "data": [_TEXT]}],
              "parameters": {"dimensions": 4}},
    ),
    _Operation(_OIP, "/v2/models/{name}", "The tensors of a model", "Describes input and output.",
               answers.TENSORS, statuses=(401, 404, 422), parameters=(_NAME,)),
    _Operation(_OIP, "/v2/models/{name}/ready", "Is a model ready?", "Has just run every model.",
               answers.MODEL_READY, statuses=(401, 404, 503), parameters=(_NAME,)),
    _Operation(_OIP, "/v2", "The server", "Names the extensions of the protocol.", answers.SERVER),
    _Operation(_OIP, "/v2/health/live", "Is the process alive?", "Answers as /health does.",
               answers.LIVE_V2, statuses=()),
    _Operation(_OIP, "/v2/health/ready", "Is every model ready?", "Answers as /ready does.",
               answers.READY_V2, statuses=(503,)),
    _Operation(_WATCH, "/", "The status page", "Shows models, load and queue in a browser.",
               answers.PAGE, media="text/html", statuses=()),
    _Operation(_WATCH, "/status", "Models, load, queue and memory",
               "Returns the numbers of the status page.", answers.STATUS),
    _Operation(_WATCH, "/health", "Is the process alive?", "Answers as long as the process does.",
               answers.HEALTH, statuses=()),
    _Operation(_WATCH, "/ready", "Is every model ready?", "Has just run every model.",
               answers.READY, statuses=(503,)),
    _Operation(_WATCH, "/metrics", "Metrics for Prometheus", "Returns counters and histograms.",
               answers.METRICS, media="text/plain"),
)  # fmt: skip


@functools.cache
def openapi_document() -> dict[str, Any]:
    """Return the document, in OpenAPI 3.1."""
    requests = dict.fromkeys(one.request for one in _OPERATIONS if one.request is not None)
    _, components = msgspec.json.schema_components(
        list(requests), ref_template="#/components/schemas/{name}"
    )
    paths: dict[str, Any] = {}
    for one in _OPERATIONS:
        method = "get" if one.request is None else "post"
        paths.setdefault(one.path, {})[method] = _operation(method, one)
    return {
        "openapi": "3.1.0",
        "info": {"title": "mirror_rt", "version": __version__, "description": _INTRODUCTION},
        "tags": [{"name": name, "description": text} for name, text in _TAGS.items()],
        "paths": paths,
        "components": {
            "schemas": components | answers.ERRORS,
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{"key": []}, {}],
    }


def _operation(method: str, one: _Operation) -> dict[str, Any]:
    name = {_OPENAI: "OpenAIError", _OIP: "InferenceError", _RERANK: "RerankError"}.get(
        one.tag, "Error"
    )
    problem = {"application/json": {"schema": {"$ref": f"#/components/schemas/{name}"}}}
    responses: dict[str, Any] = {
        "200": {
            "description": one.answer["description"],
            "content": {one.media: {"schema": one.answer}},
        }
    }
    if one.octets:
        responses["200"]["content"]["application/octet-stream"] = {"schema": {"type": "string"}}
    for status in one.statuses:
        responses[str(status)] = {"description": _REASONS[status], "content": problem}
    described = {
        "tags": [one.tag],
        "summary": f"{one.path}: {one.summary}",  # a name of its own in the list of /docs
        "description": one.description,
        "operationId": f"{method}{one.path.translate({ord(c): '_' for c in '/{}'})}",
        "parameters": list(one.parameters),
        "responses": responses,
        "x-codeSamples": [{"lang": "shell", "label": "curl", "source": _curl(one)}],
    }
    if one.request is not None:
        kinds = [kind.__name__ for kind in (one.request, *one.or_requests)]
        refs = [{"$ref": f"#/components/schemas/{name}"} for name in kinds]
        schema = refs[0] if len(refs) == 1 else {"anyOf": refs}
        content = {"application/json": {"schema": schema, "example": one.body}}
        described["requestBody"] = {"required": True, "content": content}
        described["parameters"] = [*one.parameters, _TIMEOUT]
    return described


def _curl(one: _Operation) -> str:
    line = f"curl {ADDRESS}{one.path.format(name=answers.NAME)}"
    if one.body is None:
        return line
    body = json.dumps(one.body, indent=2)
    return f"{line} \\\n  -H 'Content-Type: application/json' \\\n  -d '{body}'"
