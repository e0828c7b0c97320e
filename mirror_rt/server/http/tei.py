"""Speak text-embeddings-inference's protocol: embeddings, similarity, tokens and /info."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, cast
from urllib.parse import parse_qsl

import orjson

from mirror_rt.pipeline.options import EncodeKeywords
from mirror_rt.server.admission.problems import Problem
from mirror_rt.server.exchange import Answer
from mirror_rt.server.http import answers, schemas
from mirror_rt.server.http.call import Call
from mirror_rt.server.http.decoding import BodyDecoder
from mirror_rt.server.http.inputs import check_lengths, check_number, too_long
from mirror_rt.server.http.operations import (
    EMBEDDED,
    MODEL_NAME,
    POST_STATUSES,
    TEI,
    TEXT,
    operation,
    parameter,
)
from mirror_rt.server.http.pieces import (
    NUMPY,
    arrays_of,
    begun,
    listed,
    results_answer,
    rows_of,
    truncated_header,
    vectors_answer,
)
from mirror_rt.server.http.rerank import predict, rerank
from mirror_rt.server.http.rerank_schemas import PredictRequest, RerankRequest
from mirror_rt.server.models.service import ModelFacts
from mirror_rt.sparse.options import SparseOptions
from mirror_rt.sparse.sparse_encoder import SparseEncoder
from mirror_rt.vectors.search import cosine_similarity
from mirror_rt.version import __version__

_embed = BodyDecoder(schemas.EmbedRequest, "inputs", schemas.InputList)
_embed_all = BodyDecoder(schemas.EmbedAllRequest, "inputs", schemas.InputList)
_similarity = BodyDecoder(schemas.SimilarityRequest, "inputs.sentences", list[str])
_tokenize = BodyDecoder(schemas.TokenizeRequest, "inputs", list[str])
_decode = BodyDecoder(schemas.DecodeRequest, "ids", schemas.IdLists, [0] * 1000)
# In a text the quotes would be escaped, so this finds a key.
_INPUTS = re.compile(rb'"inputs"\s*:\s*(.)')
_QUERY = re.compile(rb'"query"\s*:')


@operation(
    TEI, "/", "The same as /embed or /similarity",
    "Answers as /similarity where `inputs` is an object, and else as /embed: Hugging Face's client "
    "asks here. Where the default model is a reranker, as /rerank or /predict, and where it is a "
    "sparse encoder, as /embed_sparse.",
    (answers.Vectors, answers.WordWeights, answers.Cosines, answers.Ranks, answers.LabelsOfOne,
     answers.LabelsOfAll),
    about="The answer of the path that is meant.", example=[EMBEDDED],
    request=schemas.EmbedRequest,
    or_requests=(schemas.SimilarityRequest, RerankRequest, PredictRequest),
    body={"inputs": [TEXT], "dimensions": 4},
)  # fmt: skip
async def root(call: Call) -> Answer:
    gives = call.registry.models.default.gives
    if gives == "scores":
        return await (rerank if _QUERY.search(call.body) else predict)(call)
    if gives == "words":
        return await embed_sparse(call)
    found = _INPUTS.search(call.body)
    return await (similarity if found is not None and found[1] == b"{" else embed)(call)


@operation(
    TEI, "/embed", "A vector for each text",
    "Encodes texts or token ids. The field `dimensions` is here to keep the example short.",
    answers.Vectors, example=[EMBEDDED], request=schemas.EmbedRequest,
    body={"inputs": [TEXT], "dimensions": 4},
)  # fmt: skip
async def embed(call: Call) -> Answer:
    request = await call.read(_embed)
    options = _options(call, request) | {
        "normalize_embeddings": request.normalize,
        "truncate_dim": request.dimensions or None,
    }
    encoded = await call.encode(call.items(request.inputs, "inputs"), **options)
    return vectors_answer(rows_of(encoded.embeddings), encoded)


@operation(
    TEI, "/embed_all", "A vector for each token",
    "Returns the vectors of all tokens of each text, before pooling, special tokens included. The "
    "example shows the beginning of each vector.",
    answers.TokenVectors, request=schemas.EmbedAllRequest, body={"inputs": ["Hello"]},
    example=[[[0.1623, 0.0429, 0.0673], [-0.5365, 0.6194, 0.7126], [-0.7608, 0.3314, 0.1633]]],
    statuses=(*POST_STATUSES, 501),
)  # fmt: skip
async def embed_all(call: Call) -> Answer:
    request, exchange = await call.read(_embed_all), call.exchange
    if not call.service.encoder.has_token_vectors:
        raise Problem(501, "this graph gives no token vectors", "not_supported")
    items = call.items(request.inputs, "inputs")
    options = _options(call, request)
    vectors = call.service.token_vectors(items, call.seconds, options, exchange.times)
    return await begun(arrays_of(vectors, exchange))


@operation(
    TEI, "/embed_sparse", "The weights of words in each text",
    "Encodes texts or token ids with a sparse encoder: the words of the vocabulary that a text is "
    "about, in their order, with their weights.",
    answers.WordWeights, request=schemas.EmbedAllRequest, body={"inputs": [TEXT]},
    example=[[{"index": 4937, "value": 2.1367}, {"index": 25126, "value": 1.8042}]],
)  # fmt: skip
async def embed_sparse(call: Call) -> Answer:
    request = await call.read(_embed_all, gives="words")
    items = call.items(request.inputs, "inputs")
    check_number(items, "inputs", min(call.config.max_items, call.service.most_texts))
    encoded = await call.encode(items, **_options(call, request))
    encoder = cast(SparseEncoder, call.service.loaded)

    def weights(row: int) -> list[dict[str, float]]:
        (vector,) = encoder.take(encoded.embeddings[row : row + 1], SparseOptions())
        pairs = zip(vector.indices.tolist(), vector.values.tolist(), strict=True)
        return [{"index": index, "value": value} for index, value in pairs]

    return results_answer(b"[", weights, None, encoded)


@operation(
    TEI, "/similarity", "The cosines of a text with others",
    "Compares a text with others: one cosine, from -1 to 1, for each of them.",
    answers.Cosines, example=[0.7135484, 0.009120454], request=schemas.SimilarityRequest,
    body={"inputs": {"source_sentence": TEXT, "sentences": ["A kitten naps.", "Stocks fell."]}},
)  # fmt: skip
async def similarity(call: Call) -> Answer:
    request = await call.read(_similarity)
    if not request.inputs.sentences:
        raise Problem(400, "inputs.sentences: it is empty", "empty", "inputs")
    texts = [request.inputs.source_sentence, *request.inputs.sentences]
    options = _options(call, request.parameters or schemas.SimilarityParameters())
    encoded = await call.encode(call.items(texts, "inputs"), **options)
    cosines = cosine_similarity(encoded.embeddings[:1], encoded.embeddings[1:])[0]
    content = orjson.dumps(cosines, option=NUMPY)
    return Answer(content, headers=truncated_header(encoded))


@operation(
    TEI, "/tokenize", "The tokens of texts", "Shows how the model splits each text.",
    answers.Tokens, request=schemas.TokenizeRequest, body={"inputs": "Hello world"},
    example=[[
        {"id": 101, "text": "[CLS]", "special": True, "start": None, "stop": None},
        {"id": 7592, "text": "Hello", "special": False, "start": 0, "stop": 5},
        {"id": 2088, "text": "world", "special": False, "start": 6, "stop": 11},
        {"id": 102, "text": "[SEP]", "special": True, "start": None, "stop": None},
    ]],
)  # fmt: skip
async def tokenize(call: Call) -> Answer:
    request = await call.read(_tokenize)
    service, exchange = call.service, call.exchange
    texts = [request.inputs] if isinstance(request.inputs, str) else request.inputs
    check_number(texts, "inputs", call.config.max_items)
    exchange.texts = len(texts)
    check_lengths(texts, "inputs", service.most_characters)
    name = request.prompt_name
    prompt = service.encoder.prompts.choose(None if name else "", name)
    special = request.add_special_tokens  # `work` may outlive the request, and must not hold it

    tokenizer = service.encoder.pipeline.tokenizer

    def work(chosen: Sequence[str]) -> bytes:
        tokens = [tokenizer.pieces(prompt + text, special_tokens=special) for text in chosen]
        exchange.tokens = (exchange.tokens or 0) + sum(map(len, tokens))
        return b",".join(orjson.dumps([piece._asdict() for piece in found]) for found in tokens)

    return await begun(listed(service.tokens(texts, call.seconds, work, "show")))


@operation(
    TEI, "/decode", "The texts of token ids", "Joins the tokens of each list to a text.",
    answers.Texts, example=["hello world"], request=schemas.DecodeRequest,
    body={"ids": [101, 7592, 2088, 102]},
)  # fmt: skip
async def decode(call: Call) -> Answer:
    request = await call.read(_decode)
    ids = call.items(cast("schemas.InputList", request.ids), "ids")
    tokenizer, skip = call.service.encoder.pipeline.tokenizer, request.skip_special_tokens

    def work(chosen: Sequence[list[int]]) -> bytes:
        return b",".join(map(orjson.dumps, tokenizer.texts_of(chosen, skip_special=skip)))

    return await begun(listed(call.service.tokens(ids, call.seconds, work, "join")))


@operation(
    TEI, "/info", "A model and its limits", "Describes a served model, and what it accepts.",
    answers.Values, about="A model and its limits, in the names of text-embeddings-inference.",
    example={
        "model_id": MODEL_NAME, "served_model_name": MODEL_NAME, "model_dtype": "fp32",
        "model_type": {"embedding": {"pooling": "mean"}}, "max_input_length": 512,
        "max_client_batch_size": 2048, "auto_truncate": True, "version": "0.1.0",
        "dimension": 384, "matryoshka": [64, 128], "language": None, "space": "0ae1b6e2c9d3f457",
        "prompts": [], "models": [MODEL_NAME],
    },
    statuses=(401, 404, 422),
    parameters=tuple(
        parameter("query", name, about, type="string", maxLength=256)
        for name, about in {
            "model": "The name of a model; without it the default model.",
            "lang": "The language of a model of a pack.",
        }.items()
    ),
)  # fmt: skip
async def info(call: Call) -> Answer:
    asked = dict(parse_qsl(call.exchange.scope["query_string"].decode("latin-1")))
    config, registry = call.config, call.registry
    model = registry.models.find(asked.get("model"), asked.get("lang"), gives=None)
    facts = registry.facts[model]
    values = {
        "model_id": model.name,
        "served_model_name": model.name,
        "model_sha": None,
        "model_dtype": facts.precision,
        "model_type": _type_of(facts),
        "max_concurrent_requests": config.max_waiting_texts,
        "max_input_length": facts.max_length,
        "max_batch_tokens": config.token_budget,
        "max_batch_requests": None,
        "max_client_batch_size": config.max_items,
        "auto_truncate": config.on_too_long in (None, "truncate", "truncate-left"),
        "tokenization_workers": 1,
        "version": __version__,
        "sha": None,
        "docker_label": None,
        "dimension": facts.dimension,
        "matryoshka": facts.matryoshka,
        "language": model.language,
        "space": facts.space,
        "prompts": facts.prompts,
        "models": list(registry.models.by_name),
    }
    return Answer(orjson.dumps(values))


def _type_of(facts: ModelFacts) -> dict[str, Any]:
    if not facts.labels:
        return {"embedding": {"pooling": facts.pooling}}
    numbered = dict(enumerate(facts.labels))
    ids = {"id2label": {str(i): label for i, label in numbered.items()},
           "label2id": {label: i for i, label in numbered.items()}}  # fmt: skip
    return {"reranker" if len(numbered) == 1 else "classifier": ids}


def _options(
    call: Call, request: schemas.EmbedAllRequest | schemas.SimilarityParameters
) -> EncodeKeywords:
    choice = call.config.on_too_long or "truncate"
    options: EncodeKeywords = {
        "on_too_long": too_long(choice, request.truncate, request.truncation_direction)
    }
    if request.prompt_name is not None:
        options["prompt_name"] = request.prompt_name
    return options
