"""Speak OpenAI's protocol: /v1/embeddings and /v1/models."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from typing import Any

import orjson

from mirror_rt.pipeline.pipeline import EncodedTexts
from mirror_rt.server.admission.problems import Problem
from mirror_rt.server.exchange import Answer, Exchange
from mirror_rt.server.http.answers import Embeddings, Values
from mirror_rt.server.http.decoding import BodyDecoder
from mirror_rt.server.http.inputs import ROWS, encode, options_of, vectors_answer
from mirror_rt.server.http.operations import (
    EMBEDDED,
    MODEL_NAME,
    NAMED,
    OPENAI,
    TEXT,
    operation,
)
from mirror_rt.server.http.schemas import EmbeddingsRequest, InputList
from mirror_rt.server.models.registry import Registry

_decode = BodyDecoder(EmbeddingsRequest, "input", InputList)
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
async def embeddings(registry: Registry, exchange: Exchange, body: bytes) -> Answer:
    """Answer POST /v1/embeddings."""
    request = await _decode(body, registry.config)
    service = await registry.service(exchange, request.model, request.lang)
    options = options_of(request, service)
    encoded = await encode(request.input, "input", service, exchange, options)
    usage = dict.fromkeys(("prompt_tokens", "total_tokens"), exchange.tokens)
    tail = {"model": service.model.name, "usage": usage}
    content = _content(encoded, tail, as_base64=request.encoding_format == "base64")
    return vectors_answer(content, encoded)


@operation(
    OPENAI, "/v1/models", "The models", "Lists the models that are served.", Values,
    about="The models.", also=("/models",), example={"object": "list", "data": [_MODEL]},
)  # fmt: skip
async def models(registry: Registry, _: Exchange, __: bytes) -> Answer:
    """Answer GET /v1/models."""
    data = [_describe(registry, name) for name in registry.models.names]
    return Answer(orjson.dumps({"object": "list", "data": data}))


@operation(
    OPENAI, "/v1/models/{name:path}", "One model", "Describes a model.", Values,
    about="A model; `created` is the time of its export, in Unix seconds.", example=_MODEL,
    statuses=(401, 404), parameters=(NAMED,),
)  # fmt: skip
async def model(registry: Registry, exchange: Exchange, _: bytes) -> Answer:
    """Answer GET /v1/models/{name}."""
    name = exchange.scope["path_params"]["name"]
    if name not in registry.models.names:
        raise Problem(404, "no such model: /v1/models lists them", "model_not_found", "model")
    return Answer(orjson.dumps(_describe(registry, name)))


def _describe(registry: Registry, name: str) -> dict[str, Any]:
    found = registry.models.names[name]
    language = found.language if name in registry.models.by_name else None
    values = {"id": name, "object": "model", "created": found.created, "owned_by": "mirror_rt"}
    return values | ({"language": language} if language is not None else {})


def _content(encoded: EncodedTexts, tail: dict[str, Any], *, as_base64: bool) -> Iterator[bytes]:
    """Yield the JSON object in pieces: many vectors at once would hold up everybody else."""
    vectors = encoded.embeddings
    yield b'{"object":"list","data":'
    for start in range(0, len(vectors), ROWS):
        part: list[Any] = list(vectors[start : start + ROWS])
        if as_base64:
            part = [base64.b64encode(row.astype("<f4", copy=False)).decode() for row in part]
        rows = [
            {"object": "embedding", "index": i, "embedding": row}
            for i, row in enumerate(part, start)
        ]
        data = orjson.dumps(rows, option=orjson.OPT_SERIALIZE_NUMPY)
        yield (b"," if start else b"[") + data[1:-1]
    yield b"]," + orjson.dumps(tail)[1:]
