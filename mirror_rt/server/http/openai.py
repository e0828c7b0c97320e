"""Speak OpenAI's protocol, /v1/embeddings and /v1/models, and Cohere's /v2/embed."""

from __future__ import annotations

import base64
import math
from collections.abc import Iterator
from typing import Any

import orjson

from mirror_rt.server.admission.problems import Problem, unusable
from mirror_rt.server.exchange import Answer
from mirror_rt.server.http.answers import Embeddings, Values
from mirror_rt.server.http.call import Call
from mirror_rt.server.http.decoding import BodyDecoder
from mirror_rt.server.http.operations import (
    EMBEDDED,
    MODEL_NAME,
    NAMED,
    OPENAI,
    TEXT,
    operation,
)
from mirror_rt.server.http.pieces import results_answer, rows_of, vectors_answer
from mirror_rt.server.http.schemas import EmbeddingsRequest, InputList, TextsRequest
from mirror_rt.server.models.registry import Registry

_decode = BodyDecoder(EmbeddingsRequest, "input", InputList)
_decode_texts = BodyDecoder(TextsRequest, "input", list[str])
_META = {"api_version": {"version": "2"}, "billed_units": {"input_tokens": 6}}
_MODEL = {"id": MODEL_NAME, "object": "model", "created": 1795366515, "owned_by": "mirror_rt"}


@operation(
    OPENAI, "/v1/embeddings", "A vector for each text",
    "Encodes texts or token ids. The field `dimensions` is here to keep the example short.",
    Embeddings, request=EmbeddingsRequest, body={"input": [TEXT], "dimensions": 4},
    also=("/embeddings",),
    example={
        "object": "list", "data": [{"object": "embedding", "index": 0, "embedding": EMBEDDED}],
        "model": MODEL_NAME, "usage": {"prompt_tokens": 6, "total_tokens": 6},
    },
)  # fmt: skip
async def embeddings(call: Call) -> Answer:
    request = await call.read(_decode)
    encoded = await call.encode(call.items(request.input, "input"), **call.options(request))
    vectors, kinds = encoded.embeddings, request.encoding_format or "float"
    kinds = [kinds] if isinstance(kinds, str) else kinds

    def result(i: int) -> dict[str, Any]:
        row = vectors[i]
        found = {kind: row if kind == "float" else _packed(row) for kind in kinds}
        if len(found) > 1:
            return {"object": "embedding_dict", "index": i, "embedding": found}
        return {"object": "embedding", "index": i, "embedding": found[kinds[0]]}

    tail = {"model": call.service.model.name, "usage": call.usage()}
    return results_answer(b'{"object":"list","data":[', result, tail, encoded)


def _packed(vector: Any) -> str:
    return base64.b64encode(vector.astype("<f4", copy=False)).decode()


@operation(
    OPENAI, "/v2/embed", "A vector for each text, as Cohere does",
    "Takes the fields of Cohere, and cuts long texts as it does. At /v1/embed, Cohere's first "
    "version, vectors are in an object where `embedding_types` is given, and else in a list.",
    Values, about="The vectors, in the order of the texts.", request=TextsRequest,
    body={"texts": [TEXT], "output_dimension": 4}, also=("/v1/embed",),
    example={
        "embeddings": {"float": [EMBEDDED]}, "response_type": "embeddings_by_type",
        "id": "5a3f0c", "texts": [TEXT], "meta": _META,
    },
)  # fmt: skip
async def texts(call: Call) -> Answer:
    request, exchange = await call.read(_decode_texts), call.exchange
    most = call.service.facts.max_length
    if (request.max_tokens or math.inf) < most:
        raise unusable("max_tokens", f"texts are cut at {most} tokens, and not before")
    request.on_too_long = request.on_too_long or call.config.on_too_long or "truncate"
    encoded = await call.encode(call.items(request.input, "texts"), **call.options(request))
    first = exchange.scope["path"].endswith("/v1/embed")
    by_type = not first or getattr(request, "embedding_types", None) is not None
    tail = {
        "response_type": "embeddings_by_type" if by_type else "embeddings_floats",
        "id": exchange.request_id, "texts": request.input,
        "meta": {"api_version": {"version": "1" if first else "2"},
                 "billed_units": {"input_tokens": exchange.tokens}},
    }  # fmt: skip

    def pieces() -> Iterator[bytes]:
        yield b'{"embeddings":' + b'{"float":' * by_type
        yield from rows_of(encoded.embeddings)
        yield b"}" * by_type + b"," + orjson.dumps(tail)[1:]

    return vectors_answer(pieces(), encoded)


@operation(
    OPENAI, "/v1/models", "The models", "Lists the models that are served.", Values,
    about="The models.", also=("/models",), example={"object": "list", "data": [_MODEL]},
)  # fmt: skip
async def models(call: Call) -> Answer:
    data = [_describe(call.registry, name) for name in call.registry.models.names]
    return Answer(orjson.dumps({"object": "list", "data": data}))


@operation(
    OPENAI, "/v1/models/{name:path}", "One model", "Describes a model.", Values,
    about="A model; `created` is the time of its export, in Unix seconds.", example=_MODEL,
    statuses=(401, 404), parameters=(NAMED,),
)  # fmt: skip
async def model(call: Call) -> Answer:
    if call.name not in call.registry.models.names:
        raise Problem(404, "no such model: /v1/models lists them", "model_not_found", "model")
    return Answer(orjson.dumps(_describe(call.registry, call.name)))


def _describe(registry: Registry, name: str) -> dict[str, Any]:
    found = registry.models.names[name]
    language = found.language if name in registry.models.by_name else None
    values = {"id": name, "object": "model", "created": found.created, "owned_by": "mirror_rt"}
    return values | ({"language": language} if language is not None else {})
