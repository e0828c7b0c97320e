"""Describe the answers of the server as schemas, each with an example of a real one."""

from __future__ import annotations

from typing import Any

NAME = "all-MiniLM-L6-v2"  # the model of the examples
Schema = dict[str, Any]


def _list_of(items: Schema, description: str, **more: Any) -> Schema:
    return {"type": "array", "items": items, "description": description, **more}


def _object_of(description: str, *examples: Any, **properties: Schema) -> Schema:
    """Return an object that has all of these fields, with an example if one is given."""
    schema = {"type": "object", "description": description, "required": list(properties),
              "properties": properties}  # fmt: skip
    return schema | {"examples": list(examples)} if examples else schema


def _a(kind: str | list[str], description: str) -> Schema:
    return {"type": kind, "description": description}


def _always(value: str, description: str) -> Schema:
    return {"const": value, "description": description}


def _any(description: str, example: dict[str, Any]) -> Schema:
    return _a("object", description) | {"examples": [example]}


_NUMBERS = _list_of({"type": "number"}, "One number a dimension.")
_EMBEDDED = [0.6463976, 0.12261579, -0.21663997, 0.72125083]
EMBEDDINGS = _object_of(
    "The vectors, in the order of the texts.",
    {
        "object": "list",
        "data": [{"object": "embedding", "index": 0, "embedding": _EMBEDDED}],
        "model": NAME,
        "usage": {"prompt_tokens": 6, "total_tokens": 6},
    },
    object=_always("list", "The kind of this object."),
    data=_list_of(
        _object_of(
            "One text.",
            object=_always("embedding", "The kind of this object."),
            index=_a("integer", "The place of the text in the request, from 0."),
            embedding={
                "description": "Numbers, or base64 of little-endian float32.",
                "anyOf": [_NUMBERS, {"type": "string"}],
            },
        ),
        "An object for each text.",
    ),
    model=_a("string", "The model that encoded the texts."),
    usage=_object_of(
        "The tokens that were encoded.",
        prompt_tokens=_a("integer", "The tokens of all texts, special tokens included."),
        total_tokens=_a("integer", "The same number."),
    ),
)
VECTORS = _list_of(_NUMBERS, "A vector for each text, in their order.", examples=[[_EMBEDDED]])
TOKEN_VECTORS = _list_of(
    _list_of(_NUMBERS, "A vector for each token."),
    "A list for each text, in their order.",
    examples=[[[[0.1623, 0.0429, 0.0673], [-0.5365, 0.6194, 0.7126], [-0.7608, 0.3314, 0.1633]]]],
)
COSINES = _list_of(
    {"type": "number"}, "A cosine for each of the sentences.", examples=[[0.7135484, 0.009120454]]
)
_SCORE = _a("number", "From 0 to 1, or by `raw_scores` the output of the model.")
_PLACE_OF_TEXT = _a("integer", "The place of the text in the request, from 0.")
RANKS = _list_of(
    _object_of("One text; with `return_text` also its `text`.", index=_PLACE_OF_TEXT, score=_SCORE),
    "The texts, the best first.",
    examples=[[{"index": 1, "score": 0.9862}, {"index": 0, "score": 0.0179}]],
)
_LABELS = _list_of(
    _object_of("One label.", label=_a("string", "Its name."), score=_SCORE),
    "The labels of one input, the best first.",
)
LABELS = {
    "description": "The labels of a text or a pair; of a list of them, a list for each.",
    "anyOf": [_LABELS, _list_of(_LABELS, "A list for each input, in their order.")],
    "examples": [[{"label": "entailment", "score": 0.9862}]],
}
OF_ANY_MODEL = {
    "description": "What the path that is meant would answer.",
    "anyOf": [VECTORS, COSINES, RANKS, LABELS],
    "examples": VECTORS["examples"],
}
_RESULTS = _list_of(
    _object_of("One document.", index=_PLACE_OF_TEXT, relevance_score=_a("number", "0 to 1.")),
    "The documents, the best first; under /v1/ each has its text in `document`.",
)
_RESULT = {"index": 1, "relevance_score": 0.9862}
_META = {"api_version": {"version": "2"}, "billed_units": {"search_units": 1},
         "tokens": {"input_tokens": 24}}  # fmt: skip
COHERE_RANKS = _object_of(
    "The documents by their scores.",
    {"results": [_RESULT], "id": "5a3f0c", "meta": _META},
    results=_RESULTS,
    id=_a("string", "The name of the request in the log."),
    meta=_a("object", "The version of the protocol, and what was computed."),
)
JINA_RANKS = COHERE_RANKS | {
    "examples": [
        {
            "results": [_RESULT | {"document": {"text": "A kitten naps."}}],
            "id": "5a3f0c",
            "meta": _META | {"api_version": {"version": "1"}},
            "model": NAME,
            "object": "list",
            "usage": {"prompt_tokens": 24, "total_tokens": 24},
        }
    ]
}
TEXTS = _list_of({"type": "string"}, "A text for each list.", examples=[["hello world"]])
_PLACE = ["integer", "null"]
TOKENS = _list_of(
    _list_of(
        _object_of(
            "One token.",
            id=_a("integer", "The number of the token in the vocabulary."),
            text=_a("string", "The token as text."),
            special=_a("boolean", "Whether the model added the token."),
            start=_a(_PLACE, "The first character; null for tokens that the model added."),
            stop=_a(_PLACE, "The character after the last one, or null."),
        ),
        "The tokens of one text.",
    ),
    "A list for each text, in their order.",
    examples=[[[
        {"id": 101, "text": "[CLS]", "special": True, "start": None, "stop": None},
        {"id": 7592, "text": "Hello", "special": False, "start": 0, "stop": 5},
        {"id": 2088, "text": "world", "special": False, "start": 6, "stop": 11},
        {"id": 102, "text": "[SEP]", "special": True, "start": None, "stop": None},
    ]]],
)  # fmt: skip
_MODEL = {"id": NAME, "object": "model", "created": 1795366515, "owned_by": "mirror_rt"}
MODEL = _any("A model; `created` is the time of its export, in Unix seconds.", _MODEL)
MODELS = _any("The models.", {"object": "list", "data": [_MODEL]})
INFO = _any(
    "A model and its limits, in the names of text-embeddings-inference.",
    {
        "model_id": NAME,
        "served_model_name": NAME,
        "model_dtype": "fp32",
        "model_type": {"embedding": {"pooling": "mean"}},
        "max_input_length": 512,
        "max_client_batch_size": 2048,
        "auto_truncate": False,
        "version": "0.1.0",
        "dimension": 384,
        "language": None,
        "space": "0ae1b6e2c9d3f457",
        "prompts": [],
        "models": [NAME],
    },
)
STATUS = _any(
    "Models, load, queue and memory of the process that answered.",
    {
        "version": "0.1.0",
        "process": 4711,
        "uptime_seconds": 10.7,
        "state": "ready",
        "ready": True,
        "refusing": None,
        "open_requests": 0,
        "resident_bytes": 263090176,
        "default": NAME,
        "last_minute": {"requests_per_second": 0.47, "latency_seconds": {"p50": 0.021}},
        "models": [{"name": NAME, "waiting_texts": 0, "texts": 7, "tokens": 44}],
    },
)
HEALTH = _any("The process answers.", {"status": "live"})
READY = _any("Every model has just run.", {"status": "ready"})
_NAMED = "The name of the model."
INFERRED = _object_of(
    "The vectors; by `binary_data` they follow this object as bytes, and the header "
    "`Inference-Header-Content-Length` says how many bytes it has.",
    {
        "model_name": NAME,
        "outputs": [{"name": "embedding", "datatype": "FP32", "shape": [1, 4], "data": _EMBEDDED}],
    },
    model_name=_a("string", _NAMED),
    outputs=_list_of(
        _object_of(
            "The tensor `embedding`, and its values, row by row, as `data`.",
            name=_always("embedding", "The name of the output."),
            datatype=_always("FP32", "The type of the values."),
            shape=_list_of({"type": "integer"}, "The texts, and the dimensions of a vector."),
        ),
        "The one output.",
    ),
)
TENSORS = _any(
    "The tensors of the model; -1 is any number of texts.",
    {
        "name": NAME,
        "platform": "mirror_rt_onnx",
        "inputs": [{"name": "text", "datatype": "BYTES", "shape": [-1, 1]}],
        "outputs": [{"name": "embedding", "datatype": "FP32", "shape": [-1, 384]}],
    },
)
MODEL_READY = _any("The model has just run.", {"name": NAME, "ready": True})
SERVER = _any(
    "The server.", {"name": "mirror_rt", "version": "0.1.0", "extensions": ["binary_tensor_data"]}
)
LIVE_V2 = _any("The process answers.", {"live": True})
READY_V2 = _any("Every model has just run.", {"ready": True})
METRICS = _a("string", "Prometheus' text format.")
PAGE = _a("string", "A page of HTML.")
ERRORS = {
    "OpenAIError": _object_of(
        "An error, as OpenAI's clients expect it.",
        error=_object_of(
            "What went wrong.",
            {
                "message": "input: item 0 is empty",
                "type": "invalid_request_error",
                "param": "input",
                "code": "empty",
            },
            message=_a("string", "One line for people."),
            type=_a("string", "The kind of error."),
            param=_a(["string", "null"], "The field that is wrong."),
            code=_a(["string", "null"], "A word for programs."),
        ),
    ),
    "RerankError": _object_of(
        "An error, in which clients of Cohere and of Jina find their message.",
        {
            "message": "documents: item 0 is empty",
            "detail": "documents: item 0 is empty",
            "code": "empty",
        },
        message=_a("string", "One line for people."),
        detail=_a("string", "The same line."),
        code=_a(["string", "null"], "A word for programs."),
    ),
    "InferenceError": _object_of(
        "An error, as the Open Inference Protocol has it.",
        {"error": "inputs: item 0 is empty"},
        error=_a("string", "One line for people."),
    ),
    "Error": _object_of(
        "An error, as text-embeddings-inference writes it.",
        {"error": "inputs: item 0 is empty", "error_type": "Empty"},
        error=_a("string", "One line for people."),
        error_type=_a("string", "The kind of error."),
    ),
}
