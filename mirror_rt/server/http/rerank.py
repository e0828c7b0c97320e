"""Speak the protocols of rerankers: of text-embeddings-inference, Jina, Cohere, vLLM and others."""

from __future__ import annotations

import re
from typing import Any

import orjson

from mirror_rt.server.admission.problems import Problem
from mirror_rt.server.exchange import Answer, Exchange
from mirror_rt.server.http.answers import (
    LabelsOfAll,
    LabelsOfOne,
    RankedDocuments,
    Ranks,
    Values,
)
from mirror_rt.server.http.decoding import STAND_IN, BodyDecoder
from mirror_rt.server.http.inputs import check_number, check_texts
from mirror_rt.server.http.operations import MODEL_NAME, RERANK, TEI, TEXT, operation
from mirror_rt.server.http.pieces import NUMPY, results_answer, truncated_header
from mirror_rt.server.http.rerank_schemas import (
    CutRequest,
    Document,
    Documents,
    DocumentsRequest,
    InputRequest,
    LabelsRequest,
    PairsRequest,
    PassagesRequest,
    PredictParameters,
    PredictRequest,
    RerankRequest,
)
from mirror_rt.server.http.scoring import (
    as_items,
    as_list,
    by_score,
    cut_or_refuse,
    probabilities,
    score_items,
    score_texts,
    tail_of,
)
from mirror_rt.server.models.registry import Registry
from mirror_rt.tokens.pairs import Pair

_rerank = BodyDecoder(RerankRequest, "texts", list[str])
_documents = BodyDecoder(DocumentsRequest, "documents", Documents)
_input = BodyDecoder(InputRequest, "documents", Documents)
_passages = BodyDecoder(PassagesRequest, "passages", list[Document], Document(STAND_IN))
_pairs = BodyDecoder(PairsRequest, "text_2", list[str])
_labels = BodyDecoder(LabelsRequest, "input", list[str])
_predict = BodyDecoder(PredictRequest, "inputs", list[str | list[str]])
# Examples for the documents.
_ASKED = {"query": "Which animal sleeps?", "texts": ["Stocks fell.", TEXT]}
_OF_DOCUMENTS = {"query": _ASKED["query"], "documents": _ASKED["texts"]}
_FOUND = {"index": 1, "relevance_score": 0.9862}
_USAGE = {"prompt_tokens": 24, "total_tokens": 24}
_TAIL = {
    "id": "5a3f0c", "model": MODEL_NAME, "object": "list", "usage": _USAGE,
    "meta": {"api_version": {"version": "1"}, "billed_units": {"search_units": 1},
             "tokens": {"input_tokens": 24}},
}  # fmt: skip
# In a text the quotes would be escaped, so this finds a key.
_DOCUMENTS_KEY = re.compile(rb'"documents"\s*:')


@operation(
    TEI, "/rerank", "Texts in the order of a query",
    "Scores each text with the query by a cross-encoder with one output. With `documents` in place "
    "of `texts` it answers as /v1/rerank, as vLLM and Infinity do.",
    (Ranks, RankedDocuments), about="The texts, the best first.",
    example=[{"index": 1, "score": 0.9862}, {"index": 0, "score": 0.0179}],
    request=RerankRequest, or_requests=(DocumentsRequest,), body=_ASKED,
)  # fmt: skip
async def rerank(registry: Registry, exchange: Exchange, body: bytes) -> Answer:
    """Answer POST /rerank: the texts by their scores, the best first."""
    if _DOCUMENTS_KEY.search(body):
        return await documents(registry, exchange, body)
    request = await _rerank(body, registry.config)
    service = await registry.service(exchange, request.model, request.lang, reranks=True)
    encoded = await score_texts(
        service, exchange, [request.query], request.texts, "texts", cut_or_refuse(service, request)
    )
    scores = probabilities(encoded, raw=request.raw_scores)[:, 0]

    def result(i: int) -> dict[str, Any]:
        found = {"index": i, "score": scores[i]}
        return found | ({"text": request.texts[i]} if request.return_text else {})

    return results_answer(b"[", result, None, encoded, scores, request.top_n)


@operation(
    RERANK, "/v1/reranking", "Texts in the order of a query",
    "Takes the fields of Mixedbread. Long texts are cut.",
    Values, about="The texts, the best first.", request=InputRequest,
    body={"query": _ASKED["query"], "input": _ASKED["texts"]},
    example={
        "data": [{"index": 1, "score": 0.9862}], "id": "5a3f0c",
        "model": MODEL_NAME, "object": "list", "usage": _USAGE, "top_k": 2, "return_input": False,
    },
)  # fmt: skip
@operation(
    RERANK, "/v2/rerank", "Documents in the order of a query",
    "Takes the same as /v1/rerank; returns documents only on demand, as Cohere's second version.",
    RankedDocuments, request=DocumentsRequest, body=_OF_DOCUMENTS,
    example={"results": [_FOUND], **_TAIL},
)  # fmt: skip
@operation(
    RERANK, "/v1/rerank", "Documents in the order of a query",
    "Takes the fields of Jina, Cohere, Voyage, Infinity and vLLM. Long documents are cut.",
    RankedDocuments, request=DocumentsRequest, body=_OF_DOCUMENTS,
    example={"results": [_FOUND | {"document": {"text": "A kitten naps."}}], **_TAIL},
)  # fmt: skip
async def documents(registry: Registry, exchange: Exchange, body: bytes) -> Answer:
    """Answer POST /v1/rerank, /v2/rerank and /v1/reranking; and /rerank where it has `documents`.

    Whose form the answer has, the path says, or a field that only clients of that server send.
    """
    mixedbread = exchange.route == "/v1/reranking"
    request = await (_input if mixedbread else _documents)(body, registry.config)
    service = await registry.service(exchange, request.model, request.lang, reranks=True)
    texts = [one if isinstance(one, str) else one.text for one in request.documents]
    encoded = await score_texts(
        service, exchange, [request.query], texts, "input" if mixedbread else "documents",
        "error" if request.truncate is False else "truncate", request.max_tokens_per_doc,
    )  # fmt: skip
    scores = probabilities(encoded, raw=bool(request.raw_scores))[:, 0]
    second, infinity = exchange.route == "/v2/rerank", request.raw_scores is not None
    voyage = any(getattr(request, name, None) is not None for name in ("top_k", "truncation"))
    plain, shown = infinity or voyage or mixedbread, request.return_documents
    shown = not (second or plain) if shown is None else bool(shown)
    score, document = ("score", "input") if mixedbread else ("relevance_score", "document")

    def result(i: int) -> dict[str, Any]:
        found = {"index": i, score: scores[i]}
        return found | ({document: texts[i] if plain else {"text": texts[i]}} if shown else {})

    tail = tail_of(service, exchange, "rerank" if infinity else "list")
    if mixedbread:
        tail |= {"top_k": request.top_n or len(texts), "return_input": shown}
    else:
        tail["meta"] = {
            "api_version": {"version": "2" if second else "1"},
            "billed_units": {"search_units": 1}, "tokens": {"input_tokens": exchange.tokens},
        }  # fmt: skip
    name = b"data" if voyage or mixedbread else b"results"
    return results_answer(b'{"%s":[' % name, result, tail, encoded, scores, request.top_n)


@operation(
    RERANK, "/v1/ranking", "Passages in the order of a query", "Takes the fields of NIM.",
    Values, about="The passages, the best first, with the outputs of the model.",
    request=PassagesRequest, example={"rankings": [{"index": 1, "logit": 4.27}], "usage": _USAGE},
    body={"query": {"text": _ASKED["query"]}, "passages": [{"text": TEXT}]},
)  # fmt: skip
async def ranking(registry: Registry, exchange: Exchange, body: bytes) -> Answer:
    """Answer POST /v1/ranking, as NIM does."""
    request = await _passages(body, registry.config)
    service = await registry.service(exchange, request.model, request.lang, reranks=True)
    cut = None if request.truncate is None else request.truncate == "END"
    encoded = await score_texts(
        service, exchange, [request.query.text], [one.text for one in request.passages],
        "passages", cut_or_refuse(service, CutRequest(truncate=cut)),
    )  # fmt: skip
    logits = probabilities(encoded, raw=True)[:, 0]
    tail = {"usage": tail_of(service, exchange)["usage"]}

    def result(i: int) -> dict[str, Any]:
        return {"index": i, "logit": logits[i]}

    return results_answer(b'{"rankings":[', result, tail, encoded, logits)


@operation(
    RERANK, "/score", "A score of each pair of texts",
    "Takes the fields of vLLM: one text and several, or as many of both. Long texts are cut only "
    "where the request says so.",
    Values, about="The scores, in the order of the pairs.", request=PairsRequest,
    body={"text_1": _ASKED["query"], "text_2": _ASKED["texts"]}, also=("/v1/score",),
    example={
        "data": [{"index": 0, "object": "score", "score": 0.0179}], "id": "5a3f0c",
        "model": MODEL_NAME, "object": "list", "usage": _USAGE,
    },
)  # fmt: skip
async def score(registry: Registry, exchange: Exchange, body: bytes) -> Answer:
    """Answer POST /score, as vLLM does."""
    request = await _pairs(body, registry.config)
    service = await registry.service(exchange, request.model, request.lang, reranks=True)
    first, second = (as_list(one) for one in (request.text_1, request.text_2))
    if len(first) not in (1, len(second)):
        why = f"text_1: {len(first)} texts, and text_2 has {len(second)}"
        raise Problem(422, why, "invalid_value", "text_1")
    cut = cut_or_refuse(service, request)
    encoded = await score_texts(service, exchange, first, second, "text_2", cut)
    scores = probabilities(encoded)[:, 0]

    def result(i: int) -> dict[str, Any]:
        return {"index": i, "object": "score", "score": scores[i]}

    return results_answer(b'{"data":[', result, tail_of(service, exchange), encoded)


@operation(
    RERANK, "/classify", "The labels of texts", "Takes the fields of vLLM, and of Infinity.",
    Values, about="The labels, in the order of the texts.", request=LabelsRequest,
    body={"input": [TEXT]},
    example={
        "data": [{"index": 0, "label": "entailment", "probs": [0.9862], "num_classes": 1}],
        "id": "5a3f0c", "model": MODEL_NAME, "object": "list", "usage": _USAGE,
    },
)  # fmt: skip
async def classify(registry: Registry, exchange: Exchange, body: bytes) -> Answer:
    """Answer POST /classify: as Infinity does where there is `raw_scores`, and else as vLLM."""
    request = await _labels(body, registry.config)
    service = await registry.service(exchange, request.model, request.lang, reranks=True)
    texts, infinity = as_list(request.input), request.raw_scores is not None
    check_number(texts, "input", service.config.max_items)
    items = [Pair(text, None) for text in texts]
    check_texts(texts, "input")
    encoded = await score_items(service, exchange, items, cut_or_refuse(service, request))
    scores, labels = probabilities(encoded, raw=bool(request.raw_scores)), service.facts.labels

    def result(i: int) -> Any:
        row = scores[i]
        if infinity:
            return by_score(labels, row)
        best = labels[int(row.argmax())]
        return {"index": i, "label": best, "probs": row, "num_classes": len(labels)}

    tail = tail_of(service, exchange, "classify" if infinity else "list")
    return results_answer(b'{"data":[', result, tail, encoded)


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
    items = as_items(given if several else [given])
    encoded = await score_items(service, exchange, items, cut_or_refuse(service, request))
    parameters = request.parameters or PredictParameters()
    applied = "none" if request.raw_scores else parameters.function_to_apply
    scores = probabilities(encoded, raw=applied == "none", function=applied)
    labels = service.facts.labels

    def result(i: int) -> list[dict[str, Any]]:
        return by_score(labels, scores[i])[: parameters.top_k]

    # Hugging Face's client, which sends parameters, expects a list for each text.
    if several or request.parameters is not None:
        return results_answer(b"[", result, None, encoded)
    return Answer(orjson.dumps(result(0), option=NUMPY), headers=truncated_header(encoded))
