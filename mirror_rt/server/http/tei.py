"""The protocol of text-embeddings-inference: /embed, /embed_all, /similarity, /tokenize, /info."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from typing import Any, TypeVar
from urllib.parse import parse_qsl

import msgspec
import orjson

from mirror_rt import __version__
from mirror_rt.encoding.options import EncodeKeywords
from mirror_rt.encoding.pipeline import Vectors
from mirror_rt.errors import DeadlineError
from mirror_rt.server.admission.problems import Problem
from mirror_rt.server.http.exchange import Answer, Exchange
from mirror_rt.server.http.inputs import items_of
from mirror_rt.server.http.openai import truncated_header
from mirror_rt.server.http.schemas import (
    EmbedAllRequest,
    EmbedRequest,
    SimilarityParameters,
    SimilarityRequest,
    TokenizeRequest,
)
from mirror_rt.server.models.registry import Registry
from mirror_rt.server.models.service import Items, ModelService
from mirror_rt.vectors.search import cosine_similarity

__all__ = ["embed", "embed_all", "info", "similarity", "tokenize"]

_embed = msgspec.json.Decoder(EmbedRequest)
_embed_all = msgspec.json.Decoder(EmbedAllRequest)
_similarity = msgspec.json.Decoder(SimilarityRequest)
_tokenize = msgspec.json.Decoder(TokenizeRequest)
_ROWS = 64
T = TypeVar("T")


async def embed(registry: Registry, exchange: Exchange, body: bytes) -> Answer:
    """POST /embed, and POST / like it."""
    request = _embed.decode(body)
    service = registry.service(exchange, request.model, request.lang)
    items = _items(registry, service, exchange, request.inputs)
    options = _options(registry, request) | {
        "normalize_embeddings": request.normalize,
        "truncate_dim": request.dimensions,
    }
    timeout = exchange.timeout(registry.config.timeout)
    encoded = await service.encode(items, timeout, options, exchange.times)
    exchange.tokens = sum(encoded.token_counts.tolist())
    content = _rows(list(encoded.embeddings))
    short = len(items) <= _ROWS
    return Answer(b"".join(content) if short else content, headers=truncated_header(encoded))


async def embed_all(registry: Registry, exchange: Exchange, body: bytes) -> Answer:
    """POST /embed_all: a vector for each token, before pooling."""
    request = _embed_all.decode(body)
    service = registry.service(exchange, request.model, request.lang)
    if not service.encoder.has_token_vectors:
        raise Problem(501, "this graph gives no token vectors", "not_supported")
    items = _items(registry, service, exchange, request.inputs)
    options = _options(registry, request)
    vectors = await _aside(
        registry, exchange, service, len(items),
        lambda: service.encoder.encode_tokens(items, **options),
    )  # fmt: skip
    exchange.tokens = sum(map(len, vectors))
    return Answer(_rows(vectors, at_a_time=1))


async def similarity(registry: Registry, exchange: Exchange, body: bytes) -> Answer:
    """POST /similarity: cosines of a text with others."""
    request = _similarity.decode(body)
    service = registry.service(exchange, request.model, request.lang)
    texts = [request.inputs.source_sentence, *request.inputs.sentences]
    if len(texts) < 2:
        raise Problem(400, "inputs.sentences: it is empty", "empty", "inputs")
    items = _items(registry, service, exchange, texts)
    options = _options(registry, request.parameters or SimilarityParameters())
    timeout = exchange.timeout(registry.config.timeout)
    encoded = await service.encode(items, timeout, options, exchange.times)
    exchange.tokens = sum(encoded.token_counts.tolist())
    cosines = cosine_similarity(encoded.embeddings[:1], encoded.embeddings[1:])[0]
    return Answer(
        orjson.dumps(cosines, option=orjson.OPT_SERIALIZE_NUMPY), headers=truncated_header(encoded)
    )


async def tokenize(registry: Registry, exchange: Exchange, body: bytes) -> Answer:
    """POST /tokenize: the tokens of texts, and where they are in them."""
    request = _tokenize.decode(body)
    service = registry.service(exchange, request.model, request.lang)
    texts = [request.inputs] if isinstance(request.inputs, str) else request.inputs
    items = _items(registry, service, exchange, texts)
    prompt = service.encoder.prompts.choose(None if request.prompt_name else "",
                                            request.prompt_name)  # fmt: skip

    def work() -> bytes:
        tokens = service.encoder.token_pieces(
            texts, prompt=prompt, special_tokens=request.add_special_tokens
        )
        exchange.tokens = sum(map(len, tokens))
        return orjson.dumps([[piece._asdict() for piece in pieces] for pieces in tokens])

    return Answer(await _aside(registry, exchange, service, len(items), work))


async def info(registry: Registry, exchange: Exchange, _: bytes) -> Answer:
    """GET /info: a model (`?model=`, `?lang=`; the default one without), and its limits."""
    asked = dict(parse_qsl(exchange.scope["query_string"].decode("latin-1")))
    model, config = registry.models.find(asked.get("model"), asked.get("lang")), registry.config
    encoder, manifest = model.encoder, model.encoder.manifest
    return Answer(
        orjson.dumps(
            {
                "model_id": model.name,
                "model_sha": None,
                "model_dtype": encoder.variant.precision,
                "model_type": {"embedding": {"pooling": manifest.pooling}},
                "max_concurrent_requests": config.max_waiting_texts,
                "max_input_length": encoder.max_length,
                "max_batch_tokens": config.token_budget,
                "max_batch_requests": None,
                "max_client_batch_size": config.max_items,
                "auto_truncate": config.on_too_long == "truncate",
                "tokenization_workers": 1,
                "version": __version__,
                "sha": None,
                "docker_label": None,
                "dimension": encoder.dimension,
                "language": model.language,
                "prompts": list(encoder.prompts.by_name),
                "models": list(registry.models.by_name),
            }
        )
    )


def _items(registry: Registry, service: ModelService, exchange: Exchange, inputs: Any) -> Items:
    items = items_of(
        inputs,
        name="inputs",
        most=registry.config.max_items,
        max_length=service.encoder.max_length,
    )
    exchange.texts = len(items)
    return items


def _options(registry: Registry, request: EmbedAllRequest | SimilarityParameters) -> EncodeKeywords:
    options: EncodeKeywords = {"on_too_long": registry.config.on_too_long}
    if request.truncate is not None:
        options["on_too_long"] = "truncate" if request.truncate else "error"
    if request.prompt_name is not None:
        options["prompt_name"] = request.prompt_name
    return options


async def _aside(
    registry: Registry, exchange: Exchange, service: ModelService, texts: int, work: Callable[[], T]
) -> T:
    """Do what the scheduler cannot, in a thread of its own, one request at a time."""
    timeout, arrived = exchange.timeout(registry.config.timeout), time.monotonic()

    def timed() -> T:
        began = time.monotonic()
        try:
            return work()
        finally:
            if exchange.times is not None:
                exchange.times.add(arrived, began, time.monotonic() - began)

    service.admit(texts, timeout)
    try:
        async with asyncio.timeout(timeout):
            return await asyncio.get_running_loop().run_in_executor(service.aside, timed)
    except TimeoutError as error:
        raise DeadlineError(timeout) from error
    finally:
        service.release(texts)


def _rows(vectors: list[Vectors], at_a_time: int = _ROWS) -> Iterator[bytes]:
    """A list of arrays in pieces."""
    yield b"["
    for start in range(0, len(vectors), at_a_time):
        part = orjson.dumps(vectors[start : start + at_a_time], option=orjson.OPT_SERIALIZE_NUMPY)
        yield (b"," if start else b"") + part[1:-1]
    yield b"]"
