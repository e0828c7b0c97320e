"""Speak the protocols of rerankers: text-embeddings-inference's, Jina's and Cohere's."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import orjson

from mirror_rt.inference.vector_layers import ACTIVATIONS
from mirror_rt.pipeline.results import EncodedTexts
from mirror_rt.server.admission.problems import Problem
from mirror_rt.server.exchange import Answer, Exchange
from mirror_rt.server.http.answers import LabelsOfAll, LabelsOfOne, RankedDocuments, Ranks
from mirror_rt.server.http.decoding import BodyDecoder
from mirror_rt.server.http.inputs import ROWS, check_number, check_texts, too_long, truncated_header
from mirror_rt.server.http.operations import MODEL_NAME, RERANK, TEI, TEXT, operation
from mirror_rt.server.http.rerank_schemas import (
    CohereRerankRequest,
    Document,
    JinaRerankRequest,
    PredictParameters,
    PredictRequest,
    RerankRequest,
    ScoreRequest,
)
from mirror_rt.server.models.registry import Registry
from mirror_rt.server.models.service import ModelService
from mirror_rt.tokens.pairs import Pair

_rerank = BodyDecoder(RerankRequest, "texts", list[str])
_jina = BodyDecoder(JinaRerankRequest, "documents", list[str | Document])
_cohere = BodyDecoder(CohereRerankRequest, "documents", list[str])
_predict = BodyDecoder(PredictRequest, "inputs", list[str | list[str]])
# Examples for the documents.
_ASKED = {"query": "Which animal sleeps?", "texts": ["Stocks fell.", TEXT]}
_DOCUMENTS = {"query": _ASKED["query"], "documents": _ASKED["texts"]}
_FOUND = {"index": 1, "relevance_score": 0.9862}
_COST = {"billed_units": {"search_units": 1}, "tokens": {"input_tokens": 24}}
# Bytes of a result without its text, in memory.
_RESULT = 256

Scores = npt.NDArray[np.float64]


@operation(
    TEI, "/rerank", "Texts in the order of a query",
    "Scores each text with the query by a cross-encoder with one output.",
    Ranks, example=[{"index": 1, "score": 0.9862}, {"index": 0, "score": 0.0179}],
    request=RerankRequest, body=_ASKED,
)  # fmt: skip
async def rerank(registry: Registry, exchange: Exchange, body: bytes) -> Answer:
    """Answer POST /rerank: the texts by their scores, the best first."""
    request = await _rerank(body, registry.config)
    service = await registry.service(exchange, request.model, request.lang, reranks=True)
    encoded = await _scored(
        service, exchange, request.query, request.texts, "texts", _cut(service, request)
    )
    scores = _scores(encoded, raw=request.raw_scores)[:, 0]

    def result(i: int) -> dict[str, Any]:
        found = {"index": i, "score": scores[i]}
        return found | ({"text": request.texts[i]} if request.return_text else {})

    return _answer(b"[", scores, None, result, b"]", encoded)


@operation(
    RERANK, "/v1/rerank", "Documents in the order of a query",
    "Takes the fields of Jina, and of the first version of Cohere. Long documents are cut.",
    RankedDocuments, request=JinaRerankRequest, body=_DOCUMENTS,
    example={
        "results": [_FOUND | {"document": {"text": "A kitten naps."}}], "id": "5a3f0c",
        "meta": {"api_version": {"version": "1"}, **_COST}, "model": MODEL_NAME, "object": "list",
        "usage": {"prompt_tokens": 24, "total_tokens": 24},
    },
)  # fmt: skip
async def jina(registry: Registry, exchange: Exchange, body: bytes) -> Answer:
    """Answer POST /v1/rerank, with the fields that Jina and Cohere have there."""
    request = await _jina(body, registry.config)
    service = await registry.service(exchange, request.model, request.lang, reranks=True)
    texts = [one if isinstance(one, str) else one.text for one in request.documents]
    encoded = await _scored(service, exchange, request.query, texts, "documents", "truncate")
    scores = _scores(encoded)[:, 0]

    def result(i: int) -> dict[str, Any]:
        found = {"index": i, "relevance_score": scores[i]}
        return found | ({"document": {"text": texts[i]}} if request.return_documents else {})

    usage = dict.fromkeys(("prompt_tokens", "total_tokens"), exchange.tokens)
    head = {"model": service.model.name, "object": "list", "usage": usage}
    tail = _cohere_tail(exchange, "1") | head
    return _answer(*_framed(tail, scores, request.top_n, result, encoded))


@operation(
    RERANK, "/v2/rerank", "Documents in the order of a query",
    "Takes the fields of Cohere's second version. Long documents are cut.",
    RankedDocuments, request=CohereRerankRequest, body=_DOCUMENTS,
    example={
        "results": [_FOUND], "id": "5a3f0c", "meta": {"api_version": {"version": "2"}, **_COST},
    },
)  # fmt: skip
async def cohere(registry: Registry, exchange: Exchange, body: bytes) -> Answer:
    """Answer POST /v2/rerank, as Cohere does."""
    request = await _cohere(body, registry.config)
    service = await registry.service(exchange, request.model, None, reranks=True)
    encoded = await _scored(
        service, exchange, request.query, request.documents, "documents", "truncate",
        request.max_tokens_per_doc,
    )  # fmt: skip
    scores = _scores(encoded)[:, 0]

    def result(i: int) -> dict[str, Any]:
        return {"index": i, "relevance_score": scores[i]}

    tail = _cohere_tail(exchange, "2")
    return _answer(*_framed(tail, scores, request.top_n, result, encoded))


@operation(
    TEI, "/predict", "The labels of texts or pairs",
    "Gives each text, or pair of texts, the labels of a cross-encoder and their scores.",
    (LabelsOfOne, LabelsOfAll),
    about="The labels of a text or a pair; of a list of them, a list for each.",
    example=[{"label": "entailment", "score": 0.9862}],
    request=PredictRequest, body={"inputs": [TEXT, "An animal rests."]},
)  # fmt: skip
async def predict(registry: Registry, exchange: Exchange, body: bytes) -> Answer:
    """Answer POST /predict: the labels of texts or pairs, and their scores, the best first."""
    request = await _predict(body, registry.config)
    service = await registry.service(exchange, request.model, request.lang, reranks=True)
    given: Any = request.inputs
    if several := any(isinstance(one, list) for one in given):
        check_number(given, "inputs", service.config.max_items)
    items = _items(given if several else [given])
    encoded = await _run(service, exchange, items, _cut(service, request))
    parameters = request.parameters or PredictParameters()
    applied = "none" if request.raw_scores else parameters.function_to_apply
    scores = _scores(encoded, raw=applied == "none", function=applied)
    labels = service.facts.labels

    def result(i: int) -> list[dict[str, Any]]:
        order = np.argsort(-scores[i], kind="stable")[: parameters.top_k].tolist()
        return [{"label": labels[j], "score": scores[i, j]} for j in order]

    # Hugging Face's client, which sends parameters, expects a list for each text.
    if several or request.parameters is not None:
        return _answer(b"[", None, None, result, b"]", encoded)
    return Answer(orjson.dumps(result(0), option=_NUMPY), headers=truncated_header(encoded))


async def _scored(
    service: ModelService, exchange: Exchange, query: str, texts: Sequence[str], name: str,
    cut: str, most_tokens: int | None = None,
) -> EncodedTexts:  # fmt: skip
    """Check the texts in the field `name`, and score each, or its first tokens, with the query."""
    if len(service.facts.labels) != 1:
        raise Problem(422, f"{service.model.name} gives several scores, which have no order: ask "
                      "/predict", "wrong_model", "model")  # fmt: skip
    check_number(texts, name, service.config.max_items)
    check_texts([query], "query")
    check_texts(texts, name)
    items = [Pair(query, text) for text in texts]
    return await _run(service, exchange, items, cut, most_tokens)


async def _run(
    service: ModelService, exchange: Exchange, items: list[Pair], cut: str,
    most_tokens: int | None = None,
) -> EncodedTexts:  # fmt: skip
    exchange.texts = len(items)
    timeout = exchange.timeout(service.config.timeout)
    shorten = None if most_tokens is None else partial(_shorten, service, most_tokens)
    encoded = await service.encode(
        items, timeout, exchange.times, shorten, on_too_long=cast(Any, cut)
    )
    exchange.tokens = sum(encoded.token_counts.tolist())
    return encoded


def _items(inputs: Sequence[str | list[str]]) -> list[Pair]:
    items = []
    for i, given in enumerate(inputs):
        texts = [given] if isinstance(given, str) else given
        if not 1 <= len(texts) <= 2:
            why = f"inputs: item {i} has {len(texts)} texts, expected one or two"
            raise Problem(422, why, "invalid_value", "inputs")
        check_texts(texts, "inputs", i)
        items.append(Pair(texts[0], texts[1] if len(texts) > 1 else None))
    return items


def _shorten(service: ModelService, most: int, pairs: list[Pair]) -> list[Pair]:
    """Cut the documents of pairs to their first tokens."""
    tokenizer = service.loaded.pipeline.tokenizer

    def cut(text: str) -> str:
        text = text[: tokenizer.clip_characters]
        if len(text) <= most:  # a token has a character at least
            return text
        pieces = tokenizer.pieces(text, special_tokens=False)
        return text[: pieces[most - 1].stop] if len(pieces) > most else text

    return [pair._replace(document=cut(cast(str, pair.document))) for pair in pairs]


def _cut(service: ModelService, request: ScoreRequest) -> str:
    """Return what becomes of pairs that are too long: they are cut, or refused."""
    choice = service.config.on_too_long
    choice = "truncate" if choice == "chunk" else choice
    return too_long(choice, request.truncate, request.truncation_direction)


_NUMPY = orjson.OPT_SERIALIZE_NUMPY


def _scores(encoded: EncodedTexts, *, raw: bool = False, function: str | None = None) -> Scores:
    """Return the scores of logits [n, C]: probabilities, or the logits themselves."""
    logits = encoded.embeddings.astype(np.float64)
    if raw:
        return logits
    default = "sigmoid" if logits.shape[1] == 1 else "softmax"
    return ACTIVATIONS[function or default](logits)


def _cohere_tail(exchange: Exchange, version: str) -> dict[str, Any]:
    units = {"search_units": 1}
    meta = {"api_version": {"version": version}, "billed_units": units,
            "tokens": {"input_tokens": exchange.tokens}}  # fmt: skip
    return {"id": exchange.request_id, "meta": meta}


def _framed(
    tail: dict[str, Any], scores: Scores, most: int | None, result: Callable[[int], Any],
    encoded: EncodedTexts,
) -> tuple[bytes, Scores, int | None, Callable[[int], Any], bytes, EncodedTexts]:  # fmt: skip
    end = b"]," + orjson.dumps(tail)[1:]
    return b'{"results":[', scores, most, result, end, encoded


def _answer(
    head: bytes, scores: Scores | None, most: int | None, result: Callable[[int], Any], tail: bytes,
    encoded: EncodedTexts,
) -> Answer:  # fmt: skip
    """Write the results of the best pairs, or of all in their order, in pieces if they are many."""
    n = len(encoded.embeddings)
    order = list(range(n)) if scores is None else np.argsort(-scores, kind="stable").tolist()
    order = order[:most]

    def pieces() -> Iterator[bytes]:
        yield head
        for start in range(0, len(order), ROWS):
            rows = [result(i) for i in order[start : start + ROWS]]
            yield (b"," if start else b"") + orjson.dumps(rows, option=_NUMPY)[1:-1]
        yield tail

    headers = truncated_header(encoded)
    if len(order) <= ROWS:
        return Answer(b"".join(pieces()), headers=headers)
    return Answer(pieces(), headers=headers, held=_RESULT * len(order))
