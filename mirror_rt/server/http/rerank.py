"""Speak the protocols of rerankers: of text-embeddings-inference, Jina, Cohere, vLLM and others."""

from __future__ import annotations

import re
from typing import Any

import orjson

from mirror_rt.server.admission.problems import unusable
from mirror_rt.server.exchange import Answer
from mirror_rt.server.http import rerank_schemas as schemas
from mirror_rt.server.http.answers import (
    LabelsOfAll,
    LabelsOfOne,
    RankedDocuments,
    Ranks,
    Values,
)
from mirror_rt.server.http.call import Call
from mirror_rt.server.http.decoding import STAND_IN, BodyDecoder
from mirror_rt.server.http.inputs import check_number, check_texts
from mirror_rt.server.http.operations import MODEL_NAME, RERANK, TEI, TEXT, operation
from mirror_rt.server.http.pieces import NUMPY, results_answer, truncated_header
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
from mirror_rt.tokens.pairs import Pair

_rerank = BodyDecoder(schemas.RerankRequest, "texts", list[str])
_documents = BodyDecoder(schemas.DocumentsRequest, "documents", schemas.Documents)
_input = BodyDecoder(schemas.InputRequest, "documents", schemas.Documents)
_passages = BodyDecoder(
    schemas.PassagesRequest, "passages", list[schemas.Document], schemas.Document(STAND_IN)
)
_pairs = BodyDecoder(schemas.PairsRequest, "text_2", list[str])
_labels = BodyDecoder(schemas.LabelsRequest, "input", list[str])
_predict = BodyDecoder(schemas.PredictRequest, "inputs", list[str | list[str]])
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
    request=schemas.RerankRequest, or_requests=(schemas.DocumentsRequest,), body=_ASKED,
)  # fmt: skip
async def rerank(call: Call) -> Answer:
    if _DOCUMENTS_KEY.search(call.body):
        return await documents(call)
    request = await call.read(_rerank, gives="scores")
    cut = cut_or_refuse(call, request)
    encoded = await score_texts(call, [request.query], request.texts, "texts", cut)
    scores = probabilities(encoded, call.service.facts, raw=request.raw_scores)[:, 0]

    def result(i: int) -> dict[str, Any]:
        found = {"index": i, "score": scores[i]}
        return found | ({"text": request.texts[i]} if request.return_text else {})

    return results_answer(b"[", result, None, encoded, scores, request.top_n)


@operation(
    RERANK, "/v1/reranking", "Texts in the order of a query",
    "Takes the fields of Mixedbread. Long texts are cut.",
    Values, about="The texts, the best first.", request=schemas.InputRequest,
    body={"query": _ASKED["query"], "input": _ASKED["texts"]},
    example={
        "data": [{"index": 1, "score": 0.9862}], "id": "5a3f0c",
        "model": MODEL_NAME, "object": "list", "usage": _USAGE, "top_k": 2, "return_input": False,
    },
)  # fmt: skip
@operation(
    RERANK, "/v2/rerank", "Documents in the order of a query",
    "Takes the same as /v1/rerank; returns documents only on demand, as Cohere's second version.",
    RankedDocuments, request=schemas.DocumentsRequest, body=_OF_DOCUMENTS,
    example={"results": [_FOUND], **_TAIL},
)  # fmt: skip
@operation(
    RERANK, "/v1/rerank", "Documents in the order of a query",
    "Takes the fields of Jina, Cohere, Voyage, Infinity and vLLM. Long documents are cut.",
    RankedDocuments, request=schemas.DocumentsRequest, body=_OF_DOCUMENTS,
    example={"results": [_FOUND | {"document": {"text": "A kitten naps."}}], **_TAIL},
)  # fmt: skip
async def documents(call: Call) -> Answer:
    # The form of the answer follows from the path, or from a field that one kind of clients sends.
    mixedbread = call.exchange.route == "/v1/reranking"
    decode: BodyDecoder[Any] = _input if mixedbread else _documents
    request: schemas.RankedRequest = await call.read(decode, gives="scores")
    texts = [one if isinstance(one, str) else one.text for one in request.documents]
    encoded = await score_texts(
        call, [request.query], texts, "input" if mixedbread else "documents",
        "error" if request.truncate is False else "truncate", request.max_tokens_per_doc,
    )  # fmt: skip
    scores = probabilities(encoded, call.service.facts, raw=bool(request.raw_scores))[:, 0]
    second, infinity = call.exchange.route == "/v2/rerank", request.raw_scores is not None
    voyage = any(getattr(request, name, None) is not None for name in ("top_k", "truncation"))
    plain, shown = infinity or voyage or mixedbread, request.return_documents
    shown = not (second or plain) if shown is None else bool(shown)
    score, document = ("score", "input") if mixedbread else ("relevance_score", "document")

    def result(i: int) -> dict[str, Any]:
        found = {"index": i, score: scores[i]}
        return found | ({document: texts[i] if plain else {"text": texts[i]}} if shown else {})

    tail = tail_of(call, "rerank" if infinity else "list")
    if mixedbread:
        tail |= {"top_k": request.top_n or len(texts), "return_input": shown}
    else:
        tail["meta"] = {
            "api_version": {"version": "2" if second else "1"},
            "billed_units": {"search_units": 1}, "tokens": {"input_tokens": call.exchange.tokens},
        }  # fmt: skip
    name = b"data" if voyage or mixedbread else b"results"
    return results_answer(b'{"%s":[' % name, result, tail, encoded, scores, request.top_n)


@operation(
    RERANK, "/v1/ranking", "Passages in the order of a query", "Takes the fields of NIM.",
    Values, about="The passages, the best first, with the outputs of the model.",
    request=schemas.PassagesRequest,
    body={"query": {"text": _ASKED["query"]}, "passages": [{"text": TEXT}]},
    example={"rankings": [{"index": 1, "logit": 4.27}], "usage": _USAGE},
)  # fmt: skip
async def ranking(call: Call) -> Answer:
    request = await call.read(_passages, gives="scores")
    cut = None if request.truncate is None else request.truncate == "END"
    encoded = await score_texts(
        call, [request.query.text], [one.text for one in request.passages], "passages",
        cut_or_refuse(call, schemas.CutRequest(truncate=cut)),
    )  # fmt: skip
    logits = probabilities(encoded, call.service.facts, raw=True)[:, 0]

    def result(i: int) -> dict[str, Any]:
        return {"index": i, "logit": logits[i]}

    return results_answer(b'{"rankings":[', result, {"usage": call.usage()}, encoded, logits)


@operation(
    RERANK, "/score", "A score of each pair of texts",
    "Takes the fields of vLLM: one text and several, or as many of both. Long texts are cut only "
    "where the request says so.",
    Values, about="The scores, in the order of the pairs.", request=schemas.PairsRequest,
    body={"text_1": _ASKED["query"], "text_2": _ASKED["texts"]}, also=("/v1/score",),
    example={
        "data": [{"index": 0, "object": "score", "score": 0.0179}], "id": "5a3f0c",
        "model": MODEL_NAME, "object": "list", "usage": _USAGE,
    },
)  # fmt: skip
async def score(call: Call) -> Answer:
    request = await call.read(_pairs, gives="scores")
    first, second = (as_list(one) for one in (request.text_1, request.text_2))
    if len(first) not in (1, len(second)):
        raise unusable("text_1", f"{len(first)} texts, and text_2 has {len(second)}")
    encoded = await score_texts(call, first, second, "text_2", cut_or_refuse(call, request))
    scores = probabilities(encoded, call.service.facts)[:, 0]

    def result(i: int) -> dict[str, Any]:
        return {"index": i, "object": "score", "score": scores[i]}

    return results_answer(b'{"data":[', result, tail_of(call), encoded)


@operation(
    RERANK, "/classify", "The labels of texts", "Takes the fields of vLLM, and of Infinity.",
    Values, about="The labels, in the order of the texts.", request=schemas.LabelsRequest,
    body={"input": [TEXT]},
    example={
        "data": [{"index": 0, "label": "entailment", "probs": [0.9862], "num_classes": 1}],
        "id": "5a3f0c", "model": MODEL_NAME, "object": "list", "usage": _USAGE,
    },
)  # fmt: skip
async def classify(call: Call) -> Answer:
    request = await call.read(_labels, gives="scores")
    texts, infinity = as_list(request.input), request.raw_scores is not None
    check_number(texts, "input", call.config.max_items)
    items = [Pair(text, None) for text in texts]
    check_texts(texts, "input")
    encoded = await score_items(call, items, cut_or_refuse(call, request))
    facts = call.service.facts
    scores, labels = probabilities(encoded, facts, raw=bool(request.raw_scores)), facts.labels

    def result(i: int) -> Any:
        row = scores[i]
        if infinity:
            return by_score(labels, row)
        best = labels[int(row.argmax())]
        return {"index": i, "label": best, "probs": row, "num_classes": len(labels)}

    tail = tail_of(call, "classify" if infinity else "list")
    return results_answer(b'{"data":[', result, tail, encoded)


@operation(
    TEI, "/predict", "The labels of texts or pairs",
    "Gives each text, or pair of texts, the labels of a cross-encoder and their scores.",
    (LabelsOfOne, LabelsOfAll),
    about="The labels of a text or a pair; of a list of them, a list for each.",
    example=[{"label": "entailment", "score": 0.9862}],
    request=schemas.PredictRequest, body={"inputs": [TEXT, "An animal rests."]},
)  # fmt: skip
async def predict(call: Call) -> Answer:
    request = await call.read(_predict, gives="scores")
    given: Any = request.inputs
    if several := any(isinstance(one, list) for one in given):
        check_number(given, "inputs", call.config.max_items)
    items = as_items(given if several else [given])
    encoded = await score_items(call, items, cut_or_refuse(call, request))
    parameters = request.parameters or schemas.PredictParameters()
    applied = "none" if request.raw_scores else parameters.function_to_apply
    scores = probabilities(encoded, call.service.facts, raw=applied == "none", function=applied)
    labels = call.service.facts.labels

    def result(i: int) -> list[dict[str, Any]]:
        return by_score(labels, scores[i])[: parameters.top_k]

    # Hugging Face's client, which sends parameters, expects a list for each text.
    if several or request.parameters is not None:
        return results_answer(b"[", result, None, encoded)
    return Answer(orjson.dumps(result(0), option=NUMPY), headers=truncated_header(encoded))
